"""From token ids to batches (§5.1), in an order that is a function of (seed, epoch).

    TokenStore -> plan(seed, epoch) -> Batch, DataPosition

A restart needs only `DataPosition(epoch, index)`: the epoch, and the number of its batches already used.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from transduce.config.schema import DataConfig
from transduce.data.batch_plan import Plan, SortKeys, plan
from transduce.data.draws import NOISE, row_keys, times_in_epoch
from transduce.data.fill_in_middle import CUT_TOKENS, MiddleLast
from transduce.data.noise import NOISE_GROWTH, noisy_rows
from transduce.data.token_file import TOO_LONG
from transduce.data.token_store import LINES_IN_MESSAGE, TokenStore
from transduce.data.vocabulary import BOS, EOS, PAD, TokenizerLike
from transduce.errors import PairError, UserError


@dataclass(frozen=True)
class DataPosition:
    """The position in the training data: the epoch, and the number of its batches already used."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Batch:
    """Padded ids of pairs, and their masks.

    src (B,S): source and EOS. tgt_in (B,T): BOS and target. tgt_out (B,T): target and EOS. src_mask (B,S), tgt_mask
    (B,T): True for a real token, False for padding. tgt_indices (N,): the indices, in the flattened tgt_mask, of the
    tokens that the loss reads: the real ones, of a diffusion model the masked ones. pairs: the numbers of the pairs in
    the store, int64 (B,).
    """

    src: Tensor
    src_mask: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    tgt_mask: Tensor
    tgt_indices: Tensor
    pairs: np.ndarray

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on `device`. The copy does not block if the batch is in pinned memory."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory, which a GPU can read itself."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = (self.src, self.src_mask, self.tgt_in, self.tgt_out, self.tgt_mask, self.tgt_indices)
        src, src_mask, tgt_in, tgt_out, tgt_mask, tgt_indices = map(change, tensors)
        return Batch(src, src_mask, tgt_in, tgt_out, tgt_mask, tgt_indices, self.pairs)

    def real(self, decoded: Tensor) -> tuple[Tensor, Tensor]:
        """Return the decoder's output at the target tokens of the loss, (B,T,D) -> (N,D), and these tokens (N,).

        Selects by index. To select by mask, the CPU would wait for the GPU to count the True entries. MPS lacks `take`.
        """
        return (
            decoded.flatten(0, 1).index_select(0, self.tgt_indices),
            self.tgt_out.flatten().index_select(0, self.tgt_indices),
        )


# (source rows, target rows, numbers of the pairs, seed and epoch) -> the batch of a task, such as Batch.
# A row: ids without BOS and EOS. It raises PairError for a pair that it cannot use.
Collate = Callable[[list[np.ndarray], list[np.ndarray], np.ndarray, tuple[int, int]], Batch]


def collate(
    src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray | None = None, key: tuple[int, int] = (0, 0)
) -> Batch:
    """Return the batch of rows of ids without BOS and EOS. pairs: their numbers in a store; None: 0, 1, ...

    key: seed and epoch, for a task that draws random numbers; unused here.
    """
    src_ids, src_mask = pad(src, last=EOS)
    tgt_in, tgt_mask = pad(tgt, first=BOS)
    tgt_out, _ = pad(tgt, last=EOS)
    numbers = np.arange(len(src)) if pairs is None else pairs.astype(np.int64)
    return Batch(src_ids, src_mask, tgt_in, tgt_out, tgt_mask, indices_of(tgt_mask), numbers)


def pad(rows: list[np.ndarray], *, first: int | None = None, last: int | None = None) -> tuple[Tensor, Tensor]:
    """Return rows of ids as one int64 tensor (B, longest), and its mask.

    first: an id to add before each row. last: an id to add after each row. None: no id.
    """
    before = [] if first is None else [np.array([first])]
    after = [] if last is None else [np.array([last])]
    lengths = np.array([len(row) for row in rows]) + len(before) + len(after)
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, PAD, np.int64)
    ids[mask] = np.concatenate([piece for row in rows for piece in (*before, row, *after)])
    return torch.from_numpy(ids), torch.from_numpy(mask)


def indices_of(mask: Tensor) -> Tensor:
    """Return the indices of the True entries of a flattened mask."""
    return torch.from_numpy(np.flatnonzero(mask.numpy()))  # torch would use all threads, beside the threads of the step


SideRows = Sequence[list[np.ndarray]]  # the rows of one or both sides

GROWTH = 3  # BPE-dropout with probability p lengthens text by 2.2 p to 2.8 p (docs/log); plans leave room for it


@dataclass(frozen=True)
class Share:
    """The share of one rank in each optimizer step: rank `rank` of `ranks`, in `accumulate` micro-batches."""

    rank: int = 0
    ranks: int = 1
    accumulate: int = 1


class Batches:
    """The endless stream of training batches of a store.

    Each item holds the micro-batches of one optimizer step for one rank, and the position after the step. The pairs of
    a step are dealt in turn, first to the ranks, then to the micro-batches of each rank. So all ranks together get the
    pairs that a single rank would get. A rank reads only its own pairs. With more ranks than pairs, the last ranks get
    none.

    Each pair of a step has an equal part of the room that its plan leaves for BPE-dropout. A rank whose pairs need more
    keeps the merges of its last pairs. So the tokens of a step stay within the budget for any number of ranks.

    share: the rank, and the number of its micro-batches. collate: makes the batch of a task from rows of ids. Raises
    UserError if `config` leaves no pair to train on.
    """

    def __init__(
        self,
        store: TokenStore,
        tokenizer: TokenizerLike,
        config: DataConfig,
        *,
        seed: int,
        share: Share = Share(),
        collate: Collate = collate,
    ):
        self.store = store
        self.tokenizer = tokenizer
        self.config = config
        self.seed = seed
        self.share = share
        self._collate = collate
        self._noise = config.noise_probabilities
        self._middle_last = MiddleLast(tokenizer, config.fill_middle) if config.fill_middle else None
        self._cut_room = math.ceil(CUT_TOKENS * config.fill_middle)  # tokens of each line
        self.usable = 0  # pairs that can be used for training
        self.empty = 0  # pairs with an empty side
        self._most_keys = 0  # sort keys of an epoch, at most
        longest = 1
        epoch_pairs = 0.0
        for _, lengths, weight in store.lengths():
            usable = lengths[self.is_usable(lengths)]
            self.usable += len(usable)
            self.empty += int(np.any(lengths == 1, axis=1).sum())
            self._most_keys += len(usable) * math.ceil(weight)
            epoch_pairs += len(usable) * weight
            longest = max(longest, int(usable.max(initial=1)))
        names = ", ".join(corpus.name for corpus in store.corpora)
        if not self.usable:
            unit = "line" if store.is_one_text else "pair"
            raise UserError(
                f"{names}: expected a {unit} that can be used for training, but of {len(store):,} there are "
                f"{self.left_out}; give other text, or raise the limit"
            )
        if epoch_pairs < 1:  # otherwise a step would wait for millions of epochs without a pair
            raise UserError(
                f"{names}: expected weights with which an epoch has at least 1 of the {self.usable:,} usable pairs, "
                f"not {epoch_pairs:.2g} pairs; give larger weights"
            )
        self._sort_keys = SortKeys(longest + self._cut_room, len(store))
        self._newest_plan: tuple[int, Plan] | None = None

    def stream(self, position: DataPosition) -> Iterator[tuple[list[Batch], DataPosition]]:
        """Yield the micro-batches of each step from `position` on, and the position after the step."""
        epoch, index = position.epoch, position.index
        while True:
            size = len(self.plan(epoch))
            for i in range(index, size):
                after = DataPosition(epoch, i + 1) if i + 1 < size else DataPosition(epoch + 1, 0)
                yield self._step(self.plan(epoch)[i], epoch), after
            epoch += 1
            index = 0

    def plan(self, epoch: int) -> Plan:
        """Return the batches of an epoch, by the lengths without BPE-dropout: a function of (seed, epoch).

        The newest plan stays in memory. With 36 million pairs, making it takes about 450 MB, and keeping it 150 MB.
        """
        newest = self._newest_plan  # one access: another thread may replace it
        if newest is None or newest[0] != epoch:
            newest = self._newest_plan = None  # release its memory before the next plan is made
            generator = np.random.default_rng([self.seed, epoch])
            keys = self._keys(epoch, generator)
            newest = epoch, plan(keys, self._sort_keys, batch_tokens=self._budget, generator=generator)
            self._newest_plan = newest
        return newest[1]

    def where(self, pairs: np.ndarray, limit: int = LINES_IN_MESSAGE) -> str:
        """Return the lines of `pairs` for a message (see `TokenStore.where`)."""
        return self.store.where(pairs, limit)

    @property
    def left_out(self) -> str:
        """The pairs that are not usable, by cause, in words; empty if there are none."""
        too_long = len(self.store) - self.usable - self.empty
        side = "" if self.store.is_one_text else " on one side"
        causes = {
            "without text" if self.store.is_one_text else "with an empty side": self.empty,
            f"of more than data.max_tokens={self.config.max_tokens} tokens{side}": too_long,
        }
        return " and ".join(f"{count:,} {cause}" for cause, count in causes.items() if count)

    def is_usable(self, lengths: np.ndarray) -> np.ndarray:
        """Return True for each pair that has no empty side and no side that is too long."""
        longest = min(self.config.max_tokens, TOO_LONG - 1)
        return np.all((lengths > 1) & (lengths <= longest), axis=1)

    def _keys(self, epoch: int, generator: np.random.Generator) -> np.ndarray:
        """Return the sort keys of all pairs of an epoch, each repeated by the weight of its corpus."""
        keys, size = np.empty(self._most_keys, np.uint64), 0  # the system allocates only memory that is written
        for first, lengths, weight in self.store.lengths():
            usable = np.flatnonzero(self.is_usable(lengths))
            repeated = np.repeat(usable, times_in_epoch(weight, self.seed, epoch, first, usable))
            planned = lengths[repeated].astype(np.int64) + self._cut_room
            keys[size : size + len(repeated)] = self._sort_keys.pack(first + repeated, planned, generator)
            size += len(repeated)
        return keys[:size]

    def _step(self, pairs: np.ndarray, epoch: int) -> list[Batch]:
        """Return this rank's micro-batches of one step. It reads no pair of another rank."""
        own = pairs[self.share.rank :: self.share.ranks]
        if not len(own):
            return []
        rows = src, tgt = self.store.read(own)
        room = (self.config.batch_tokens - self._budget) * len(own) // len(pairs) + self._cut_room * len(own)
        if self._noise:
            keys = row_keys(self.seed, epoch, NOISE, own)
            src, tgt = self._fitting(rows, noisy_rows(rows, self._noise, self.tokenizer, keys), room)
        if self._middle_last:
            keys = row_keys(self.seed, epoch, NOISE, own)
            src, tgt = self._fitting(rows, self._middle_last.rows(rows, keys), room)
        if self.config.bpe_dropout:
            src = self._drop_merges(0, src, own, epoch, room - _growth(rows[0], src).sum())
            tgt = self._drop_merges(1, tgt, own, epoch, room - _growth(rows[1], tgt).sum())
        n = min(self.share.accumulate, len(own))
        try:
            return [self._collate(src[i::n], tgt[i::n], own[i::n], (self.seed, epoch)) for i in range(n)]
        except PairError as error:
            raise UserError(f"{self.where(np.array([error.number]))}: {error.problem}") from None

    @property
    def _budget(self) -> int:
        """The tokens of a batch on each side before noise and BPE-dropout."""
        growth = 0 if self.config.source_tokens == "words" else GROWTH * self.config.bpe_dropout
        growth += sum(NOISE_GROWTH[name] * probability for name, probability in self._noise.items())
        return int(self.config.batch_tokens / (1 + growth))

    def _drop_merges(
        self, side: int, rows: list[np.ndarray], pairs: np.ndarray, epoch: int, room: int
    ) -> list[np.ndarray]:
        """Return the ids of one side under BPE-dropout."""
        tokenizer = self.tokenizer.target if side else self.tokenizer
        keys = row_keys(self.seed, epoch, side, pairs)
        dropped = tokenizer.drop_merges(rows, p=self.config.bpe_dropout, keys=keys)
        return self._fitting((rows,), (dropped,), room)[0]

    def _fitting(self, rows: SideRows, changed: SideRows, room: int) -> SideRows:
        """Return the changed rows of one or both sides, as far as they fit.

        A row that would exceed data.max_tokens stays as it was, on both sides. So do the last rows, if together the
        rows of a side would grow by more than `room` tokens.
        """
        longest = self.config.max_tokens - 1
        fits = np.all([[len(row) <= longest for row in side] for side in changed], axis=0)
        growth = [_growth(*sides) * fits for sides in zip(rows, changed, strict=True)]
        fits &= np.all([np.maximum.accumulate(of_side.cumsum()) <= room for of_side in growth], axis=0)
        both = [zip(*sides, fits, strict=True) for sides in zip(rows, changed, strict=True)]
        return [[new if is_fit else row for row, new, is_fit in side] for side in both]


def _growth(rows: Sequence[np.ndarray], changed: Sequence[np.ndarray]) -> np.ndarray:
    """Return by how many tokens each row has grown."""
    return np.array([len(new) - len(row) for row, new in zip(rows, changed, strict=True)])
