"""The Transformer of "Attention Is All You Need" as software.

    transduce.load("run/model").translate(["A dog runs."])    use a trained model
    transduce.fit(...)                                        train a model
    transduce.Transformer(transduce.ModelConfig(...))         build only the model
    transduce.family.load("gpt2")                             use a descendant, from a folder of Hugging Face

Each name is imported on first use, so that `import transduce` does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from transduce import family as family
    from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig
    from transduce.data.tokenizer import Tokenizer
    from transduce.decoding.hypothesis import AlignedWord, Attended, Scored, Translation
    from transduce.decoding.options import DecodingOptions, Sampling
    from transduce.decoding.phrases.line_constraint import LineConstraint
    from transduce.decoding.phrases.terms import Terms
    from transduce.errors import UserError
    from transduce.model.transformer import Transformer
    from transduce.train import fit
    from transduce.translate import Translator, load

__all__ = [
    "AlignedWord",
    "Attended",
    "Config",
    "DataConfig",
    "DecodingOptions",
    "LineConstraint",
    "ModelConfig",
    "Sampling",
    "Scored",
    "SearchConfig",
    "Terms",
    "Tokenizer",
    "TrainConfig",
    "Transformer",
    "Translation",
    "Translator",
    "UserError",
    "fit",
    "load",
]

_MODULES = {
    "config.schema": ("Config", "DataConfig", "ModelConfig", "SearchConfig", "TrainConfig"),
    "errors": ("UserError",),
    "decoding.hypothesis": ("AlignedWord", "Attended", "Scored", "Translation"),
    "decoding.phrases.line_constraint": ("LineConstraint",),
    "decoding.options": ("DecodingOptions", "Sampling"),
    "decoding.phrases.terms": ("Terms",),
    "model.transformer": ("Transformer",),
    "data.tokenizer": ("Tokenizer",),
    "train": ("fit",),
    "translate": ("Translator", "load"),
}


def __getattr__(name: str) -> Any:
    if name == "family":
        return importlib.import_module("transduce.family")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"transduce.{module}"), name)
    raise AttributeError(f"module 'transduce' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
