"""From the micro-batches of a step to the gradient of its whole batch: exact however it is cut, also by lack of memory.

    micro-batches of this rank -> loss -> backward -> sum over ranks -> .grad of every parameter, and a Gradient

The loss of a step is the mean over the target tokens of all micro-batches of all ranks. Each micro-batch therefore adds
the gradient of its summed loss, divided by the number of tokens of the whole.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from transduce.config.schema import TrainConfig
from transduce.data.batches import Batch, collate, indices_of
from transduce.data.vocabulary import UNK
from transduce.errors import is_out_of_memory
from transduce.model.build import Model
from transduce.model.cpu_backend import faster_products
from transduce.model.transformer import mixed_precision
from transduce.training import distributed, sharding
from transduce.training.loss import projected_cross_entropy

# ---- the gradient of a step --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gradient:
    """What is known of a step's gradient, over all ranks. The gradient itself is in .grad of the parameters.

    A GPU may still be at work on it: who first asks for loss or norm waits, the one wait for a GPU in a step.
    """

    figures: Tensor  # loss and norm, where they were computed
    src_tokens: int
    tgt_tokens: int

    @cached_property
    def _known(self) -> list[float]:
        return self.figures.tolist()

    @property
    def loss(self) -> float:
        """Summed over the target tokens, in nats."""
        return self._known[0]

    @property
    def norm(self) -> float:
        return self._known[1]

    @property
    def is_finite(self) -> bool:
        """Whether the step may be taken. A norm that overflows fp32 would overflow Adam's second moments, too."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Gradients:
    """Computes gradients of `model`, and remembers how large a micro-batch may be to fit into memory.

    say: how to tell a person that micro-batches will be smaller from now on.
    """

    def __init__(
        self, model: Model, config: TrainConfig, device: torch.device, say: Callable[[list[str]], None]
    ) -> None:
        self.model, self.config, self.device, self.say = model, config, device, say
        self.too_large: float = math.inf  # the size of the smallest micro-batch that did not fit
        self.in_shards = any(sharding.is_sharded(parameter) for parameter in model.parameters())

    def of(self, micro_batches: Sequence[Batch], *, seed: int) -> Gradient:
        """Put the gradient of the mean loss of a target token into .grad of every parameter, and say what it is like.

        seed: of dropout. When memory runs out, what was computed is dropped, the micro-batch is cut in two, and all of
        them are done again: without dropout the gradient is the same. Raises MemoryError if one pair alone is too much.
        """
        masks = [(int(batch.src_mask.sum()), int(batch.tgt_mask.sum())) for batch in micro_batches]
        here = torch.tensor([(0, 0), *masks]).sum(dim=0)
        src_tokens, tgt_tokens = distributed.sum_over_ranks(here).tolist()
        if self.in_shards:  # each rank has to go through the model as often as any other
            micro_batches = [*micro_batches, *[_nothing()] * (self.config.accumulate - len(micro_batches))]
        loss = None
        while loss is None:
            torch.manual_seed(seed)
            self.model.zero_grad()
            loss = self._accumulate([*self._fitting(micro_batches)], tgt_tokens)
        if not self.in_shards:  # of which they are summed already, in the backward pass
            distributed.sum_gradients(self.model.parameters())
        distributed.sum_over_ranks(loss)
        norm = sharding.full_tensor(get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None]))
        return Gradient(torch.stack([loss, norm.double()]), src_tokens, tgt_tokens)

    def _accumulate(self, micro_batches: Sequence[Batch], tokens: int) -> Tensor | None:
        """Add the gradient of each, and return their summed loss; None if one does not fit."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in micro_batches:
            loss = self._backward(batch, tokens)
            if loss is None:
                self._remember(batch)
                return None
            total += loss
        return total

    def _backward(self, batch: Batch, tokens: int) -> Tensor | None:
        """Add the gradient of one micro-batch, and return its summed loss; None if memory ran out.

        Whoever tries again must have left here: as long as an exception lives, so does all that its frames hold.
        """
        try:
            with faster_products(self.device), distributed.lost_ranks_raise():  # who may have parts of the model
                loss = batch_loss(self.model, batch.to(self.device), self.config.label_smoothing, self.config.precision)
                (loss / tokens).backward()
            return loss.detach()
        except (MemoryError, RuntimeError) as problem:
            if not is_out_of_memory(problem):
                raise
            return None

    def _remember(self, batch: Batch) -> None:
        """That `batch` does not fit. MemoryError if it cannot be cut."""
        if self.in_shards:  # the other ranks would not know, and wait
            raise MemoryError(
                f"a micro-batch of {size(batch):,} tokens does not fit, padding included, and with --shard none is "
                "cut; go on with more of them: --resume --set train.accumulate=N --allow-change train.accumulate"
            )
        if len(batch.pairs) == 1:
            raise MemoryError(
                f"not even one pair alone fits into memory, of {batch.src.size(1)} and {batch.tgt_in.size(1)} tokens; "
                "use a machine with more memory, or begin anew with a smaller model or data.max_tokens"
            )
        self.too_large = size(batch)
        self.say([f"out of memory: micro-batches of {self.too_large:,} tokens, padding included, are cut from now on"])

    def _fitting(self, micro_batches: Sequence[Batch]) -> Iterator[Batch]:
        """The same pairs in micro-batches smaller than any that did not fit, as far as pairs allow."""
        for batch in micro_batches:
            if size(batch) < self.too_large or len(batch.pairs) == 1:
                yield batch
            else:
                yield from self._fitting(halves(batch))


def batch_loss(model: Model, batch: Batch, label_smoothing: float, precision: str = "fp32") -> Tensor:
    """The summed loss of a batch (a scalar); positions that are padding never reach the softmax."""
    with mixed_precision(precision, batch.src.device):
        memory = model.encode(batch.src, batch.src_mask)
        decoded = model.decode(batch.tgt_in, memory, batch.src_mask)  # (B,T,D)
        hidden, targets = batch.real(decoded)  # (N,D), (N,)
        return projected_cross_entropy(hidden, model.output.weight, targets, label_smoothing, model.output.bias)


def dropout_seed(seed: int, step: int, rank: int = 0) -> int:
    """What seeds the dropout of one step of one rank, so that a run needs no generator's state to go on."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


# ---- cutting a micro-batch ---------------------------------------------------------------------------------------


def size(batch: Batch) -> int:
    """What a micro-batch needs memory for: its positions on both sides, padding included."""
    return batch.src.numel() + batch.tgt_in.numel()


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """The first and the second half of the pairs of a batch, each as wide as its own longest pair."""
    middle = (len(batch.pairs) + 1) // 2
    return _rows(batch, slice(middle)), _rows(batch, slice(middle, None))


def _nothing() -> Batch:
    """A micro-batch without a target token, which adds nothing to a gradient."""
    batch = collate([np.array([UNK])], [np.array([UNK])], np.array([], int))
    return dataclasses.replace(batch, tgt_mask=torch.zeros_like(batch.tgt_mask), tgt_indices=batch.tgt_indices[:0])


def _rows(batch: Batch, rows: slice) -> Batch:
    src_mask, tgt_mask = batch.src_mask[rows], batch.tgt_mask[rows]
    src_width, tgt_width = (int(mask.sum(1).max()) for mask in (src_mask, tgt_mask))
    return Batch(
        batch.src[rows, :src_width],
        src_mask[:, :src_width],
        batch.tgt_in[rows, :tgt_width],
        batch.tgt_out[rows, :tgt_width],
        tgt_mask[:, :tgt_width],
        indices_of(tgt_mask[:, :tgt_width]),
        batch.pairs[rows],
    )


# ---- the update --------------------------------------------------------------------------------------------------


def update(optimizer: torch.optim.Adam, count: int) -> None:
    """Let the optimizer make update number `count`, from 1; if memory runs out, once more.

    An update is never done by half: all that it writes to has been there since the optimizer was made, so that memory
    can run out only before the fused kernel writes. Only the counts of updates are set before.
    """
    if _stepped(optimizer):
        return
    for state in optimizer.state.values():
        state["step"].fill_(count - 1)
    optimizer.step()


def _stepped(optimizer: torch.optim.Adam) -> bool:
    try:
        optimizer.step()
        return True
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        return False
