"""The model card: README.md of a model folder, for whoever finds the model later."""

import platform

import torch

from transduce.config import Config


def model_card(config: Config, origin: str, facts: dict[str, str] | None = None) -> str:
    """The card as Markdown: what the weights are, and `facts`, such as data and validation scores."""
    from transduce import __version__

    model = config.model
    sizes = f"{model.n_layers} + {model.n_layers} layers, d_model {model.d_model}, d_ff {model.d_ff}"
    rows = {
        "weights": origin,
        "architecture": f"Transformer, {sizes}, {model.n_heads} heads, {model.norm}-norm, {model.positions} positions",
        "tokenizer": f"{config.data.tokenizer}, {model.vocab_size:,} pieces, shared by both languages",
        **(facts or {}),
        "made with": f"transduce {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""# A translation model

| | |
|---|---|
{table}

All settings are in config.json. To use it: `transduce translate THIS_FOLDER < in.txt > out.txt`
"""
