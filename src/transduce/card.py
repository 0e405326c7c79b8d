"""The model card: README.md of a model folder, for whoever finds the model later."""

import platform
from pathlib import Path
from typing import Protocol

import torch

from transduce.config import Config


class Trained(Protocol):
    """What the card tells of the training."""

    step: int
    seconds: float


def model_card(
    config: Config, origin: str, train: tuple[Path, Path], valid: tuple[Path, Path], tally: Trained, scores: dict[str, float]
) -> str:
    """The card as Markdown: what the weights are, of which data, and how good on the validation text."""
    from transduce import __version__

    model = config.model
    return f"""# A translation model

Weights: {origin}, after {tally.step:,} steps in {tally.seconds:,.0f} s of training.

| | |
|---|---|
| architecture | Transformer, {model.n_layers} + {model.n_layers} layers, d_model {model.d_model}, d_ff {model.d_ff}, {model.n_heads} heads |
| norm, positions | {model.norm}, {model.positions} |
| tokenizer | {config.data.tokenizer}, {model.vocab_size:,} pieces, shared |
| trained on | {train[0].name} and {train[1].name} |
| validated on | {valid[0].name} and {valid[1].name} |
| validation | loss {scores["loss"]:.4f}, perplexity {scores["perplexity"]:.3f}, BLEU {scores["bleu"]:.2f} (sacreBLEU 13a, greedy) |
| made with | transduce {__version__}, torch {torch.__version__}, Python {platform.python_version()} |

All settings are in config.json. Use it: `transduce translate THIS_FOLDER < in.txt > out.txt`
"""
