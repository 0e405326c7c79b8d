"""The gradient of a step, the same for any division of its batch into micro-batches.

    micro-batches of this rank -> loss -> backward -> sum over ranks -> .grad of every parameter, and a Gradient

The loss of a step is the mean over the target tokens of all micro-batches of all ranks. Each micro-batch therefore adds
the gradient of its summed loss, divided by the number of target tokens of the whole step. A micro-batch that does not
fit into memory is cut in two.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from transduce.config.schema import TrainConfig
from transduce.data.batches import Batch
from transduce.data.vocabulary import UNK
from transduce.errors import is_out_of_memory
from transduce.model.cpu_backend import faster_products, limit_kept_code
from transduce.model.devices import in_float64
from transduce.training import distributed, halves, sharding
from transduce.training.bf16_weights import bf16_weights
from transduce.training.task import Task

# ---- the gradient of a step --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gradient:
    """The loss and the norm of a step's gradient, over all ranks. The gradient is in .grad of the parameters.

    A GPU may still compute them: the first access to loss or norm waits for it, the only wait for a GPU in a step.
    """

    loss_and_norm: Tensor  # (2,) on the device of the model, if it has float64
    src_tokens: int
    tgt_tokens: int

    @cached_property
    def _values(self) -> list[float]:
        return self.loss_and_norm.tolist()

    @property
    def loss(self) -> float:
        """The loss summed over the target tokens, in nats."""
        return self._values[0]

    @property
    def norm(self) -> float:
        """The 2-norm over all parameters."""
        return self._values[1]

    @property
    def is_finite(self) -> bool:
        """True if an update may use the gradient. A norm that overflows fp32 would also overflow Adam's moments."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Gradients:
    """Computes gradients of `model`, and remembers the size of micro-batch that did not fit into memory.

    task: computes the loss. print_lines: prints the message that micro-batches become smaller.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task[Any],
        config: TrainConfig,
        device: torch.device,
        print_lines: Callable[[list[str]], None],
    ) -> None:
        self.model = model
        self.task = task
        self.config = config
        self.device = device
        self.print_lines = print_lines
        self.too_large: float = math.inf  # the size of the smallest micro-batch that did not fit
        self.parameters = [*model.parameters()]
        self.is_sharded = any(map(sharding.is_sharded, self.parameters))
        limit_kept_code()
        self.bf16_weights = bf16_weights(model, config, device)
        trained = self.bf16_weights.model if self.bf16_weights else model
        self.workers = halves.Workers(trained, halves.count(model, device))

    def of(self, micro_batches: Sequence[Batch], *, seed: int) -> Gradient:
        """Set .grad of every parameter to the gradient of the mean loss of a target token, and return its figures.

        seed: the seed of dropout. If memory runs out, this drops the partial gradient, cuts the micro-batch in two, and
        computes all of them again. Without dropout the gradient is the same. Raises MemoryError if a single pair does
        not fit.
        """
        masks = [(int(batch.src_mask.sum()), int(batch.tgt_mask.sum())) for batch in micro_batches]
        own_counts = torch.tensor([(0, 0), *masks]).sum(dim=0)
        src_tokens, tgt_tokens = distributed.sum_over_ranks(own_counts).tolist()
        if self.is_sharded:  # each rank must run the model equally often
            empty = [self._empty_batch()] * (self.config.accumulate - len(micro_batches))
            micro_batches = [*micro_batches, *empty]
        if self.bf16_weights:
            self.bf16_weights.write()
        loss = None
        with distributed.lost_ranks_raise(), faster_products(self.device):  # other ranks may hold parts of the model
            while loss is None:
                halves.drop_gradients(self.parameters)
                self.workers.reset(seed)
                loss = self._accumulate([*self._fitting(micro_batches)], tgt_tokens)
        with halves.threads(self.workers.threads):
            self.workers.add_gradients()
            if not self.is_sharded:  # in shards the backward pass has summed them
                distributed.sum_gradients(self.parameters)
            distributed.sum_over_ranks(loss)
            norm = get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if self.is_sharded:
            norm = sharding.full_tensor(norm)
        return Gradient(torch.stack([loss, in_float64(norm)]), src_tokens, tgt_tokens)

    def _accumulate(self, micro_batches: Sequence[Batch], tokens: int) -> Tensor | None:
        """Add the gradient of each micro-batch, and return their summed loss; None if one does not fit."""
        total = in_float64(torch.zeros((), device=self.device))
        for batch in micro_batches:
            parts = cut(batch, len(self.workers.models))
            for loss in self.workers.run(partial(self._backward, tokens), parts):
                if loss is None:
                    self._remember_too_large(batch)
                    return None
                total = total + in_float64(loss)
        return total

    def _backward(self, tokens: int, model: nn.Module, batch: Batch) -> Tensor | None:
        """Add the gradient of one part, and return its summed loss; None if memory ran out.

        Retry only after this function returns: a live exception keeps the tensors of its frames in memory.
        """
        try:
            loss = self.task.loss(model, batch.to(self.device), self.config)
            (loss / tokens).backward()
            if self.bf16_weights:
                self.bf16_weights.add_gradients()
            return loss.detach()
        except (MemoryError, RuntimeError) as problem:
            if not is_out_of_memory(problem):
                raise
            return None

    def _remember_too_large(self, batch: Batch) -> None:
        """Let later steps cut micro-batches of this size. Raises MemoryError if `batch` cannot be cut."""
        if self.is_sharded:  # the other ranks would not know of the cut, and wait
            raise MemoryError(
                f"a micro-batch of {size(batch):,} tokens, padding included, does not fit into memory, and --shard "
                "does not cut it; use more micro-batches: --resume --set train.accumulate=N "
                "--allow-change train.accumulate"
            )
        if len(batch.pairs) == 1:
            raise MemoryError(
                f"a single pair of {batch.src.size(1)} and {batch.tgt_in.size(1)} tokens does not fit into memory; "
                "use a machine with more memory, or start a new run with a smaller model or data.max_tokens"
            )
        self.too_large = size(batch)
        self.print_lines(
            [f"out of memory: micro-batches of {self.too_large:,} tokens or more, padding included, are now cut in two"]
        )

    def _fitting(self, micro_batches: Sequence[Batch]) -> Iterator[Batch]:
        """Yield the same pairs in micro-batches smaller than any that did not fit, or of a single pair."""
        for batch in micro_batches:
            if size(batch) < self.too_large or len(batch.pairs) == 1:
                yield batch
            else:
                yield from self._fitting(cut(batch, 2))

    def _empty_batch(self) -> Batch:
        """Return a micro-batch without a target token, which adds nothing to a gradient."""
        batch = self.task.collate([np.array([UNK])], [np.array([UNK])], np.array([], int))
        return dataclasses.replace(batch, tgt_mask=torch.zeros_like(batch.tgt_mask), tgt_indices=batch.tgt_indices[:0])


def dropout_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the seed of dropout for one step of one rank. A checkpoint therefore stores no generator's state."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


# ---- cutting a micro-batch ---------------------------------------------------------------------------------------


def size(batch: Batch) -> int:
    """Return the number of positions on both sides of a micro-batch, padding included: its memory grows with them."""
    return batch.src.numel() + batch.tgt_in.numel()


def cut(batch: Batch, n: int) -> list[Batch]:
    """Return a batch in `n` parts with equal numbers of pairs. Each part is as wide as its longest pair."""
    n = max(1, min(n, len(batch.pairs)))
    if n == 1:
        return [batch]
    ends = [-(-len(batch.pairs) * i // n) for i in range(n + 1)]
    return [_rows(batch, slice(start, end)) for start, end in itertools.pairwise(ends)]


def _rows(batch: Batch, rows: slice) -> Batch:
    src_mask, tgt_mask = batch.src_mask[rows], batch.tgt_mask[rows]
    src_width, tgt_width = (int(mask.sum(1).max()) for mask in (src_mask, tgt_mask))
    row = batch.tgt_indices // batch.tgt_mask.size(1) - rows.start
    column = batch.tgt_indices % batch.tgt_mask.size(1)
    indices = row * tgt_width + column
    return Batch(
        batch.src[rows, :src_width],
        src_mask[:, :src_width],
        batch.tgt_in[rows, :tgt_width],
        batch.tgt_out[rows, :tgt_width],
        tgt_mask[:, :tgt_width],
        indices[(row >= 0) & (row < len(tgt_mask))],
        batch.pairs[rows],
    )


# ---- the update --------------------------------------------------------------------------------------------------


def update(optimizer: torch.optim.Adam, count: int) -> None:
    """Let the optimizer make update number `count`, from 1. If memory runs out, it tries a second time.

    No update is partial. All tensors that it writes to exist since the optimizer was created, so memory can run out
    only before the fused kernel writes. Only the counts of updates change before that; the second try resets them.
    Half of the threads compute: on a busy machine, with all of them, the update of a small model took 35 ms, not 2.
    """
    with halves.threads(max(1, torch.get_num_threads() // 2)):
        _step(optimizer, count)


def _step(optimizer: torch.optim.Adam, count: int) -> None:
    try:
        optimizer.step()
        return
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
    for state in optimizer.state.values():  # after the handler: a live exception keeps the tensors of its frames
        if "step" in state:
            state["step"].fill_(count - 1)
    optimizer.step()
