"""A prepared run: all that stays the same while it trains."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transduce.config.schema import Config
from transduce.data.batches import Batches
from transduce.data.vocabulary import TokenizerLike
from transduce.model import devices
from transduce.training.progress import OLD
from transduce.training.task import Task
from transduce.training.weights import set_weights


@dataclass(frozen=True)
class Run:
    """A run in the folder `out`, with its task, its text, and the lines to print before the first step.

    valid_pairs, valid_names: the validation text, and the names of its files: two, or one that holds all of it.
    old_pairs: validation text of the model that the run starts from, on which it should not become worse; may be empty.
    models: the model of the last evaluation, for the next one.
    """

    out: Path
    task: Task[Any]
    config: Config
    tokenizer: TokenizerLike
    batches: Batches
    valid_pairs: Sequence[tuple[str, str]]
    valid_names: tuple[str, ...]
    lines: Sequence[str]
    old_pairs: Sequence[tuple[str, str]] = ()
    is_from_model: bool = False
    is_sharded: bool = False
    models: list[nn.Module] = field(default_factory=list[nn.Module], repr=False)

    def evaluate(self, weights: dict[str, Tensor]) -> dict[str, float]:
        """Return the validation scores of a model with these weights; names on the old text begin with `OLD`.

        The model takes the memory that the gradient needs in a step. On a GPU with half of its memory free, it remains
        for the next evaluation. So do the steps of a search that the GPU has recorded. A sharded run evaluates on the
        CPU, because a GPU may have no room for a whole model.
        """
        device = torch.device("cpu") if self.is_sharded else devices.device()
        model = self.models.pop() if self.models else self.task.build(self.config).to(device)
        set_weights(model, weights, "the weights to evaluate")
        texts = {"": self.valid_pairs, OLD: self.old_pairs}
        scores = {
            prefix + name: value
            for prefix, pairs in texts.items()
            if pairs
            for name, value in self.task.evaluate(model.eval(), self.config, self.tokenizer, pairs).items()
        }
        if _has_room(device):
            self.models.append(model)
        elif device.type == "cuda":
            del model
            gc.collect()  # a model with recorded steps refers to itself
        return scores


def _has_room(device: torch.device) -> bool:
    """Return True for a GPU with half of its memory free, also in a training step.

    What is free now is not enough to know: before torch records steps, it gives back what the training will need.
    """
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return min(free, total - torch.cuda.max_memory_allocated(device)) > total / 2
