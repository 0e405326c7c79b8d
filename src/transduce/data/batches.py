"""From token ids to batches (§5.1), in an order that is a function of (seed, epoch).

    TokenStore -> plan(seed, epoch) -> Batch, position

Everything a restart needs is `DataPosition(epoch, index)`: which epoch, and how many of its batches are done.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduce.config.schema import DataConfig
from transduce.data.token_file import TOO_LONG
from transduce.data.token_store import SHOWN, SIDES, Pair, TokenStore
from transduce.data.vocabulary import BOS, EOS, PAD, TokenizerLike
from transduce.errors import UserError

# ---- the plan of an epoch ----------------------------------------------------------------------------------------

BAND = 2  # target lengths that are sorted together by source length
CUT_PAIRS = 1 << 20  # looked at together when batches are cut, for the memory


@dataclass(frozen=True)
class SortKeys:
    """How a pair becomes one uint64, in whose order pairs of like length are neighbours, for 36 million are many.

    From the highest bits: band of target lengths; source length, rising in one band and falling in the next (no jump
    from band to band); target length within its band; as many random bits as there is room for; number of the pair.
    longest: the greatest length. pairs: how many numbers there are.
    """

    longest: int
    pairs: int

    @property
    def length_bits(self) -> int:
        return self.longest.bit_length()

    @property
    def pair_bits(self) -> int:
        return (self.pairs - 1).bit_length()

    def pack(self, pairs: np.ndarray, lengths: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The keys of pairs with these lengths (n,2), in no order."""
        src, tgt = lengths.astype(np.uint64).T
        falling = (tgt // BAND) % 2 == 1
        keys = (tgt // BAND) << self.length_bits | np.where(falling, (1 << self.length_bits) - 1 - src, src)
        keys = keys << 1 | tgt % BAND
        random_bits = 64 - 2 * self.length_bits - self.pair_bits
        chance = generator.integers(1 << random_bits, size=len(keys), dtype=np.uint64)
        return (keys << random_bits | chance) << self.pair_bits | pairs.astype(np.uint64)

    def lengths(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source and the target lengths of keys, int64."""
        high = (keys >> (64 - 2 * self.length_bits)).astype(np.int64)
        tgt = (high >> (self.length_bits + 1)) * BAND + high % 2
        src = (high >> 1) & ((1 << self.length_bits) - 1)
        return np.where((tgt // BAND) % 2 == 1, (1 << self.length_bits) - 1 - src, src), tgt


@dataclass(frozen=True)
class Plan:
    """An epoch: batch i is the pairs order[offsets[batch]:offsets[batch + 1]], where batch is batch_order[i]."""

    order: np.ndarray  # numbers of pairs, uint32
    offsets: np.ndarray  # where each batch begins in the order, and the end
    batch_order: np.ndarray

    def __len__(self) -> int:
        return len(self.batch_order)

    def __getitem__(self, i: int) -> np.ndarray:
        batch = self.batch_order[i]
        return self.order[self.offsets[batch] : self.offsets[batch + 1]].astype(np.int64)


def plan(keys: np.ndarray, sort_keys: SortKeys, *, batch_tokens: int, generator: np.random.Generator) -> Plan:
    """Batches of the pairs in `keys`, which are overwritten.

    Pairs of like length share a batch, with at most `batch_tokens` tokens on either side (one that has more is alone);
    which pairs of equal length meet, and the order of the batches, come from `generator`.
    """
    keys.sort()
    offsets = _cut(keys, sort_keys, batch_tokens)
    keys &= np.uint64((1 << sort_keys.pair_bits) - 1)
    assert sort_keys.pair_bits <= 32
    return Plan(keys.astype(np.uint32), offsets, generator.permutation(len(offsets) - 1))


def _cut(keys: np.ndarray, sort_keys: SortKeys, batch_tokens: int) -> np.ndarray:
    """Where batches of sorted pairs begin, and the end: each takes as many pairs as fit."""
    offsets, begin, at_once = [0], 0, max(CUT_PAIRS, batch_tokens)  # any batch has fewer pairs than tokens
    while begin < len(keys):
        ends = [np.cumsum(lengths) for lengths in sort_keys.lengths(keys[begin : begin + at_once])]
        count, place = len(ends[0]), 0
        while place < count:
            fits = [side.searchsorted((side[place - 1] if place else 0) + batch_tokens, side="right") for side in ends]
            end = max(int(min(fits)), place + 1)
            if end == count and begin + count < len(keys):
                break  # more may fit, of what comes next
            offsets.append(begin + end)
            place = end
        begin += place
    return np.array(offsets)


# ---- batches -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataPosition:
    """Where the data is: the epoch, and the number of its batches already used."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Batch:
    """Padded ids of pairs. src (B,S) ends in EOS; tgt_in (B,T) is BOS and the target; tgt_out (B,T) target and EOS.

    src_mask (B,S) and tgt_mask (B,T) are True where a token is real; tgt_indices (N,): where in tgt_mask, flattened.
    pairs: their numbers in the store, int64 (B,).
    """

    src: Tensor
    src_mask: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    tgt_mask: Tensor
    tgt_indices: Tensor
    pairs: np.ndarray

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`, which nobody waits for."""
        parts = (self.src, self.src_mask, self.tgt_in, self.tgt_out, self.tgt_mask, self.tgt_indices)
        src, src_mask, tgt_in, tgt_out, tgt_mask, tgt_indices = (part.to(device, non_blocking=True) for part in parts)
        return Batch(src, src_mask, tgt_in, tgt_out, tgt_mask, tgt_indices, self.pairs)

    def real(self, decoded: Tensor) -> tuple[Tensor, Tensor]:
        """What a decoder has made of the real target tokens, (B,T,D) -> (N,D), and their truth (N,).

        By their places, for how many are True in a mask on a GPU is known only to who waits for it.
        """
        return decoded.flatten(0, 1).index_select(0, self.tgt_indices), self.tgt_out.take(self.tgt_indices)


def pad(rows: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Rows of ids of any lengths as one int64 tensor (B, longest), and its mask."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, PAD, np.int64)
    ids[mask] = np.concatenate(rows)
    return torch.from_numpy(ids), torch.from_numpy(mask)


def indices_of(mask: Tensor) -> Tensor:
    """Where a mask, flattened, is True."""
    return mask.flatten().nonzero()[:, 0]


def collate(src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray | None = None) -> Batch:
    """A batch of pairs given as ids without BOS and EOS. pairs: their numbers in a store; None: they count from 0."""
    src_ids, src_mask = pad([np.append(ids, EOS) for ids in src])
    tgt_in, tgt_mask = pad([np.concatenate(([BOS], ids)) for ids in tgt])
    tgt_out, _ = pad([np.append(ids, EOS) for ids in tgt])
    numbers = np.arange(len(src)) if pairs is None else pairs.astype(np.int64)
    return Batch(src_ids, src_mask, tgt_in, tgt_out, tgt_mask, indices_of(tgt_mask), numbers)


# Source rows, target rows (ids without BOS and EOS) and the numbers of the pairs -> the batch of a task, such as Batch.
Collate = Callable[[list[np.ndarray], list[np.ndarray], np.ndarray], Any]

GROWTH = 3  # BPE-dropout with probability p lengthens text by about 2.8 p (docs/log); batches leave room for it


class Batches:
    """The endless stream of training batches of a store.

    Each item is this rank's micro-batches of one optimizer step, and the state after it. The pairs of a step are dealt
    like cards, first to the ranks, then to the micro-batches of each: all ranks together see what one alone would. The
    last ranks may get none. Raises UserError if `config` leaves no pair to train on.
    """

    def __init__(
        self,
        store: TokenStore,
        tokenizer: TokenizerLike,
        config: DataConfig,
        *,
        seed: int,
        accumulate: int = 1,
        rank: int = 0,
        ranks: int = 1,
        collate: Collate = collate,
    ):
        self.store, self.tokenizer, self.config = store, tokenizer, config
        self._collate = collate
        self.seed, self.accumulate, self.rank, self.ranks = seed, accumulate, rank, ranks
        self.usable, self._most, longest = 0, 0, 1  # pairs, sort keys of an epoch, tokens on a side
        for _, lengths, weight in store.lengths():
            kept = lengths[self._is_usable(lengths)]
            self.usable += len(kept)
            self._most += len(kept) * math.ceil(weight)
            longest = max(longest, int(kept.max(initial=1)))
        if not self.usable:
            raise UserError(
                f"no pair of {', '.join(corpus.name for corpus in store.corpora)} can be used for training: all "
                f"{len(store)} have an empty side or more than data.max_tokens={config.max_tokens} tokens on one side"
            )
        self._sort_keys = SortKeys(longest, len(store))
        self._planned: tuple[int, Plan] | None = None

    def stream(self, position: DataPosition) -> Iterator[tuple[list[Any], DataPosition]]:
        """All batches from `position` on."""
        epoch, index = position.epoch, position.index
        while True:
            size = len(self.plan(epoch))
            for i in range(index, size):
                after = DataPosition(epoch, i + 1) if i + 1 < size else DataPosition(epoch + 1, 0)
                yield self._step(self.plan(epoch)[i], epoch), after
            epoch, index = epoch + 1, 0

    def plan(self, epoch: int) -> Plan:
        """The batches of an epoch, by the lengths without BPE-dropout: a function of (seed, epoch).

        The newest one is remembered. With 36 million pairs it takes about 450 MB to make, and 150 MB to keep.
        """
        if self._planned is None or self._planned[0] != epoch:
            self._planned = None  # its memory is needed for the new one
            budget = int(self.config.batch_tokens / (1 + GROWTH * self.config.bpe_dropout))
            generator = np.random.default_rng([self.seed, epoch])
            keys = self._keys(epoch, generator)
            self._planned = epoch, plan(keys, self._sort_keys, batch_tokens=budget, generator=generator)
        return self._planned[1]

    def where(self, pairs: np.ndarray, shown: int = SHOWN) -> str:
        """Where the text of `pairs` is (see `TokenStore.where`)."""
        return self.store.where(pairs, shown)

    def _is_usable(self, lengths: np.ndarray) -> np.ndarray:
        """Which pairs have no empty side, and none that is too long."""
        longest = min(self.config.max_tokens, TOO_LONG - 1)
        return np.all((lengths > 1) & (lengths <= longest), axis=1)

    def _keys(self, epoch: int, generator: np.random.Generator) -> np.ndarray:
        """The sort keys of all pairs of an epoch, each as often as its weight says."""
        keys, size = np.empty(self._most, np.uint64), 0  # memory that is never written to is never taken
        for first, lengths, weight in self.store.lengths():
            chosen = np.flatnonzero(self._is_usable(lengths))
            chosen = np.repeat(chosen, _times(weight, self.seed, epoch, first, chosen))
            keys[size : size + len(chosen)] = self._sort_keys.pack(first + chosen, lengths[chosen], generator)
            size += len(chosen)
        return keys[:size]

    def _step(self, members: np.ndarray, epoch: int) -> list[Any]:
        """This rank's micro-batches of one step: part p of all is every pair p, p + parts, ..., so of like size."""
        pairs = [self.store[pair] for pair in members]
        src, tgt = self._side(0, members, pairs, epoch), self._side(1, members, pairs, epoch)
        parts = self.ranks * self.accumulate
        mine = range(self.rank, min(parts, len(members)), self.ranks)
        return [self._collate(src[part::parts], tgt[part::parts], members[part::parts]) for part in mine]

    def _side(self, side: int, members: np.ndarray, pairs: list[Pair], epoch: int) -> list[np.ndarray]:
        """The ids of one side of `pairs`; if BPE-dropout makes them too many, the last ones go without it."""
        plain = [pair.ids[side] for pair in pairs]
        if not self.config.bpe_dropout:
            return plain
        rows = [self._dropped_out(side, number, pair, epoch) for number, pair in zip(members, pairs, strict=True)]
        excess = sum(len(row) + 1 for row in rows) - self.config.batch_tokens
        for place in reversed(range(len(rows))):
            if excess <= 0:
                break
            excess -= len(rows[place]) - len(plain[place])
            rows[place] = plain[place]
        return rows

    def _dropped_out(self, side: int, number: int, pair: Pair, epoch: int) -> np.ndarray:
        """One side of a pair encoded anew, with BPE-dropout, unless that makes it longer than the cap."""
        key = f"{self.seed}:{epoch}:{number}:{SIDES[side]}"
        ids = self.tokenizer.encode_dropout(pair.line(side), p=self.config.bpe_dropout, key=key)
        return np.asarray(ids) if len(ids) < self.config.max_tokens else pair.ids[side]


def _times(weight: float, seed: int, epoch: int, first: int, chosen: np.ndarray) -> np.ndarray:
    """How often each of the pairs `first` + `chosen` comes in an epoch (see `Corpus.weight`)."""
    if weight == int(weight):
        return np.full(len(chosen), int(weight))
    start = np.random.default_rng([seed, first]).random(int(chosen[-1]) + 1 if len(chosen) else 0)[chosen]
    return (np.floor(weight * (epoch + 1) + start) - np.floor(weight * epoch + start)).astype(np.int64)
