"""A task: all that the training loop needs to know about what a model learns.

    Config -> build -> model;  ids -> collate -> Batch;  model, Batch -> loss;  model -> evaluate -> scores

Translation (`transduce.train.TranslationTask`) is the first task. The loop, `Gradients` and `Batches` use the task that
they get as an argument, so another task needs no change in them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from transduce.config.schema import Config
from transduce.data.batches import Batch
from transduce.data.vocabulary import TokenizerLike
from transduce.model.build import Model
from transduce.model.transformer import mixed_precision
from transduce.training.loss import projected_cross_entropy


class Task(Protocol):
    """What a model learns. An implementation keeps no state: all that is random depends on the arguments alone."""

    def build(self, config: Config) -> nn.Module:
        """Return a new model, initialised from torch's global generator."""
        ...

    def collate(self, src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray) -> Batch:
        """Return the micro-batch of some pairs: their ids without BOS and EOS, and their numbers in the store (B,)."""
        ...

    def loss(self, model: Any, batch: Batch, label_smoothing: float, precision: str) -> Tensor:
        """Return the loss (a scalar, in nats), summed over the real target tokens of `batch`."""
        ...

    def evaluate(
        self, model: Any, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        """Return scores of `model` on validation pairs: "loss" per target token, and others, for which more is better.

        `train.best_by` names the score that decides which checkpoint is the best.
        """
        ...

    def describe(self, scores: dict[str, float]) -> str:
        """Return the scores of `evaluate` in words, and how they were computed, for the model card."""
        ...


def translation_loss(model: Model, batch: Batch, label_smoothing: float, precision: str = "fp32") -> Tensor:
    """Return the summed cross entropy of a batch of translations (§5.4), a scalar; padding never reaches the softmax.

    precision: "fp32" or "bf16", of the forward pass.
    """
    with mixed_precision(precision, batch.src.device):
        memory = model.encode(batch.src, batch.src_mask)
        decoded = model.decode(batch.tgt_in, memory, batch.src_mask)  # (B,T,D)
        hidden, targets = batch.real(decoded)  # (N,D), (N,)
        return projected_cross_entropy(hidden, model.output.weight, targets, label_smoothing, model.output.bias)
