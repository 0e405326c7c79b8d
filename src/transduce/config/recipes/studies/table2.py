"""Table 2 at small scale: the Transformer and its rivals, of one size, on the same pairs in the same batches.

The rivals are trained instead of GNMT and ConvS2S. They are smaller: GNMT and ConvS2S are too large for one core. The
Transformer is there twice: post-norm as in the paper, and pre-norm.

    transduce study table2 --search   the same search for each system -> CHOICES
    transduce study table2            the choices, trained at length and compared at equal cost

Each system has two shapes of 2.0 to 2.2 M parameters with 6,000 pieces. `recipe` has the settings that all share. Each
shape has its own number of steps: as many as fit into `BUDGET`.
"""

import math
from dataclasses import dataclass
from typing import Any

from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig

_TRANSFORMER = {
    "deep": {"d_model": 128, "n_layers": 4, "d_ff": 256},  # of multi30k-tiny
    "wide": {"d_model": 144, "n_layers": 2, "d_ff": 576},
}
SHAPES: dict[str, dict[str, dict[str, int]]] = {
    "post-norm": _TRANSFORMER,
    "pre-norm": _TRANSFORMER,
    "recurrent": {"deep": {"d_model": 176, "n_layers": 2}, "wide": {"d_model": 212, "n_layers": 1}},
    "convolutional": {"deep": {"d_model": 128, "n_layers": 6}, "wide": {"d_model": 168, "n_layers": 3}},
}
KINDS: dict[str, dict[str, Any]] = {
    "post-norm": {"kind": "transformer", "n_heads": 4, "norm": "post"},
    "pre-norm": {"kind": "transformer", "n_heads": 4, "norm": "pre"},
    "recurrent": {"kind": "recurrent"},
    "convolutional": {"kind": "convolutional"},
}


# Processor seconds of a step of each shape, on one core of a busy machine (docs/log/paper-tables.md, "Seconds of a
# step"). An idle machine takes about three quarters of it.
SECONDS = {
    "post-norm": {"deep": 0.36, "wide": 0.285},
    "pre-norm": {"deep": 0.35, "wide": 0.285},
    "recurrent": {"deep": 0.25, "wide": 0.26},
    "convolutional": {"deep": 0.31, "wide": 0.295},
}
BUDGET = 2_000  # of these seconds, for each training


@dataclass(frozen=True)
class Choice:
    """The settings of a system that the search varies. shape: a key of `SHAPES`. peak: the highest learning rate."""

    shape: str
    dropout: float
    peak: float


# From the search (docs/results/table2-search).
CHOICES = {
    "post-norm": Choice("wide", 0.1, 3.6e-3),
    "pre-norm": Choice("wide", 0.1, 7.2e-3),
    "recurrent": Choice("wide", 0.1, 7.2e-3),
    "convolutional": Choice("wide", 0.1, 3.6e-3),
}


def steps(system: str, shape: str) -> int:
    """Return the number of steps of a training, in hundreds."""
    return int(BUDGET / SECONDS[system][shape] / 100) * 100


def lr_factor(peak: float, d_model: int, warmup_steps: int) -> float:
    """Return the factor with which the learning rate of eq. 3 has its peak at `peak`."""
    return round(peak * math.sqrt(d_model * warmup_steps), 4)


def post_norm() -> Config:
    """The Transformer, post-norm as in the paper, in the small Table 2.

    Time: half an hour, one core.
    """
    return recipe("post-norm")


def pre_norm() -> Config:
    """The Transformer, pre-norm, in the small Table 2.

    Time: half an hour, one core.
    """
    return recipe("pre-norm")


def recurrent() -> Config:
    """LSTM, instead of GNMT: an encoder-decoder with attention. The encoder is bidirectional.

    Time: half an hour, one core.
    """
    return recipe("recurrent")


def convolutional() -> Config:
    """Gated convolutions, instead of ConvS2S: with attention in each decoder layer.

    Time: half an hour, one core.
    """
    return recipe("convolutional")


def recipe(system: str) -> Config:
    """Return the recipe of a system: its choice, and what all share. The study needs all checkpoints of a training."""
    choice = CHOICES[system]
    every = 100
    sizes: dict[str, Any] = {**KINDS[system], **SHAPES[system][choice.shape]}
    max_steps = steps(system, choice.shape)
    warmup_steps = max_steps // 10
    return Config(
        model=ModelConfig(**sizes, vocab_size=None, dropout=choice.dropout),
        data=DataConfig(vocab_size=6_000, batch_tokens=2_048, max_tokens=128, normalization="none"),
        train=TrainConfig(
            max_steps=max_steps,
            warmup_steps=warmup_steps,
            lr_factor=lr_factor(choice.peak, sizes["d_model"], warmup_steps),
            precision="bf16",
            log_every_steps=every,
            evaluate_every_steps=5 * every,
            checkpoint_every_steps=every,
            keep_checkpoints=max_steps // every + 1,
        ),
        search=SearchConfig(beam_size=5, length_penalty="power", alpha=1.0),
    )


SMALL = {
    "post-norm": post_norm,
    "pre-norm": pre_norm,
    "recurrent": recurrent,
    "convolutional": convolutional,
}
