"""A task: all that the training loop needs to know about what a model learns.

    Config -> build -> model;  ids -> collate -> Batch;  model, Batch -> loss;  model -> evaluate -> scores

Translation is `transduce.train.TranslationTask`, parsing `transduce.parsing.task`. The tasks in
`transduce.family.tasks` learn from one text, or from sentences and labels. The loop, `Gradients` and `Batches` use the
task that they get as an argument, so another task needs no change in them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from transduce.config.kinds import TASKS, import_object
from transduce.config.schema import Config, TrainConfig
from transduce.data.batches import Batch, Batches
from transduce.data.vocabulary import TokenizerLike
from transduce.model.build import Model
from transduce.model.transformer import mixed_precision
from transduce.training.loss import projected_cross_entropy, projected_rdrop

ModelType = TypeVar("ModelType", bound=nn.Module)
Learner = TypeVar("Learner", bound=nn.Module, contravariant=True)


class Task(Protocol[Learner]):
    """The task that a model learns. An implementation keeps no state: its randomness depends only on the arguments."""

    def build(self, config: Config) -> nn.Module:
        """Return a new model, initialised from torch's global generator."""
        ...

    def collate(
        self, src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray, key: tuple[int, int] = (0, 0)
    ) -> Batch:
        """Return the micro-batch of some pairs: their ids without BOS and EOS, and their numbers in the store (B,).

        With one text, `src` and `tgt` are the same lines. key: seed and epoch. The random choices in a row depend only
        on them and on the number of its pair, so that neither ranks nor a restart change it.
        """
        ...

    def check(
        self, pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, longest: int, names: tuple[str, ...]
    ) -> None:
        """Raise UserError for validation pairs that `evaluate` cannot score. It is called before the training.

        longest: maximum number of tokens that the model takes. names: names of the two texts, or of the one text, for
        the message.
        """
        ...

    def loss(self, model: Learner, batch: Batch, config: TrainConfig) -> Tensor:
        """Return the loss (a scalar, in nats), summed over the real target tokens of `batch`.

        Its gradient trains the model, and its value is in the log.
        """
        ...

    def evaluate(
        self, model: Learner, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        """Return scores of `model` on validation pairs: "loss" per target token, and others, for which more is better.

        `train.best_by` names the score that decides which checkpoint is the best.
        """
        ...

    def describe(self, scores: dict[str, float]) -> str:
        """Return the scores of `evaluate` in words, and how they were computed, for the model card."""
        ...


def task_of(name: str) -> Task[Any]:
    """Return the task that `train.task` names."""
    return import_object(TASKS[name].task_class)()


class RelativeTask(Generic[ModelType]):
    """What a task also has whose loss compares the model with the model that the run starts from, `reference`.

    The reference is frozen and in evaluation mode, on the device of the model.
    """

    reference: ModelType


class InspectingTask(ABC, Generic[Learner]):
    """What a task also has that leaves pairs out, or whose data are not all in the texts."""

    @abstractmethod
    def inspect(
        self, model: Learner, batches: Batches, texts: Sequence[tuple[tuple[str, ...], Sequence[tuple[str, str]]]]
    ) -> list[str]:
        """Return lines on the pairs that are left out. It is called before the training.

        texts: names of the files of each validation text, and its pairs. Raises UserError for a pair that would end
        the run.
        """
        ...


class Projecting(Protocol):
    """A model whose layer `output` makes logits of states."""

    @property
    def output(self) -> nn.Linear:
        """Return the layer."""
        ...


Projector = TypeVar("Projector", bound=Projecting)
# model, batch -> the states (N,D) at the real target tokens, and these tokens (N,)
TargetStates = Callable[[Projector, Batch], tuple[Tensor, Tensor]]


def translation_loss(
    model: Model, batch: Batch, label_smoothing: float, precision: str = "fp32", rdrop: float = 0.0
) -> Tensor:
    """Return the summed cross entropy of a batch of translations (§5.4), as `summed_loss` does."""
    return summed_loss(_outputs, model, batch, label_smoothing, precision, rdrop)


def summed_loss(
    outputs: TargetStates[Projector],
    model: Projector,
    batch: Batch,
    label_smoothing: float,
    precision: str = "fp32",
    rdrop: float = 0.0,
) -> Tensor:
    """Return the summed cross entropy of a batch (§5.4), a scalar; padding never reaches the softmax.

    outputs: computes the states that `model.output` projects to logits, at the places that count.
    precision: the precision of the forward pass, "fp32" or "bf16". rdrop: the alpha of R-Drop (Liang et al., 2021); 0:
    off.

    R-Drop runs each pair twice, with other dropout masks, and pulls both outputs together. The published loss has two
    cross entropies. Half of it is computed here, (CE(p) + CE(q)) / 2 + alpha / 4 * (KL(p||q) + KL(q||p)), so that alpha
    has its published meaning, and 0 gives the plain loss. The returned value, for the log, is the cross entropy without
    the divergences. Its gradient is the gradient of the whole loss.
    """
    with mixed_precision(precision, batch.src.device):
        if not rdrop:
            hidden, targets = outputs(model, batch)
            return projected_cross_entropy(hidden, model.output.weight, targets, label_smoothing, model.output.bias)
        hidden, targets = outputs(model, _twice(batch))
        loss, cross_entropy = projected_rdrop(
            hidden, model.output.weight, targets, label_smoothing, model.output.bias, rdrop
        )
        return (cross_entropy + (loss - loss.detach())) / 2


def _outputs(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the decoder's outputs (N,D) at the real target tokens, and these tokens (N,)."""
    memory = model.encode(batch.src, batch.src_mask)
    return batch.real(model.decode(batch.tgt_in, memory, batch.src_mask))


def _twice(batch: Batch) -> Batch:
    """Return each pair twice, in one batch, where the two copies of a real target token are neighbours."""
    tensors = (batch.src, batch.src_mask, batch.tgt_in, batch.tgt_out, batch.tgt_mask)
    src, src_mask, tgt_in, tgt_out, tgt_mask = (torch.cat([x, x]) for x in tensors)
    indices = torch.stack([batch.tgt_indices, batch.tgt_indices + batch.tgt_mask.numel()], dim=1).flatten()
    return Batch(src, src_mask, tgt_in, tgt_out, tgt_mask, indices, np.concatenate([batch.pairs, batch.pairs]))
