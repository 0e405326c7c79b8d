"""The plan of an epoch: which pairs share a batch, and in which order (§5.1)."""

from dataclasses import dataclass

import numpy as np

BAND = 2  # target lengths in one band; the pairs of a band are sorted by source length
CUT_PAIRS = 1 << 20  # pairs whose lengths are in memory at a time while batches are cut


@dataclass(frozen=True)
class SortKeys:
    """A pair packed into one uint64, so that 36 million pairs sort fast and pairs of similar length are neighbours.

    From the highest bits:

    - the band of target lengths
    - the source length, rising in one band and falling in the next, so that it does not jump between bands
    - the target length within its band
    - random bits in the remaining space
    - the number of the pair

    longest: the greatest length. pairs: number of pairs, which is one more than the greatest number of a pair.
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
        """Return the keys of pairs with these lengths (n,2), unsorted."""
        src, tgt = lengths.astype(np.uint64).T
        is_falling = (tgt // BAND) % 2 == 1
        keys = (tgt // BAND) << self.length_bits | np.where(is_falling, (1 << self.length_bits) - 1 - src, src)
        keys = keys << 1 | tgt % BAND
        random_bits = 64 - 2 * self.length_bits - self.pair_bits
        noise = generator.integers(1 << random_bits, size=len(keys), dtype=np.uint64)
        return (keys << random_bits | noise) << self.pair_bits | pairs.astype(np.uint64)

    def lengths(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and the target lengths of keys, int64."""
        high = (keys >> (64 - 2 * self.length_bits)).astype(np.int64)
        tgt = (high >> (self.length_bits + 1)) * BAND + high % 2
        src = (high >> 1) & ((1 << self.length_bits) - 1)
        return np.where((tgt // BAND) % 2 == 1, (1 << self.length_bits) - 1 - src, src), tgt


@dataclass(frozen=True)
class Plan:
    """The batches of an epoch. Batch i has pairs[offsets[b] : offsets[b + 1]] where b = batch_order[i].

    pairs: numbers in the store, uint32, sorted by length. offsets: the index in `pairs` of the first pair of each
    batch, and the end.
    """

    pairs: np.ndarray
    offsets: np.ndarray
    batch_order: np.ndarray

    def __len__(self) -> int:
        return len(self.batch_order)

    def __getitem__(self, i: int) -> np.ndarray:
        """Return the pairs of batch i, int64."""
        batch = self.batch_order[i]
        return self.pairs[self.offsets[batch] : self.offsets[batch + 1]].astype(np.int64)


def plan(keys: np.ndarray, sort_keys: SortKeys, *, batch_tokens: int, generator: np.random.Generator) -> Plan:
    """Return batches of the pairs in `keys`. Overwrites the keys.

    Pairs of similar length share a batch, with at most `batch_tokens` tokens on each side. A pair with more tokens is a
    separate batch. The random bits of the keys decide which pairs of equal length share a batch. `generator` draws the
    order of the batches.
    """
    keys.sort()
    offsets = _cut(keys, sort_keys, batch_tokens)
    keys &= np.uint64((1 << sort_keys.pair_bits) - 1)
    assert sort_keys.pair_bits <= 32
    return Plan(keys.astype(np.uint32), offsets, generator.permutation(len(offsets) - 1))


def _cut(keys: np.ndarray, sort_keys: SortKeys, batch_tokens: int) -> np.ndarray:
    """Return the first index of each batch of sorted pairs, and the end. Each batch holds as many pairs as fit."""
    offsets = [0]
    begin = 0
    window = max(CUT_PAIRS, batch_tokens)  # a batch has fewer pairs than tokens, so a window holds at least one batch
    while begin < len(keys):
        totals = [np.cumsum(lengths) for lengths in sort_keys.lengths(keys[begin : begin + window])]
        count = len(totals[0])
        start = 0
        while start < count:
            before = [total[start - 1] if start else 0 for total in totals]
            fits = [t.searchsorted(b + batch_tokens, side="right") for t, b in zip(totals, before, strict=True)]
            end = max(int(min(fits)), start + 1)
            if end == count and begin + count < len(keys):
                break  # pairs of the next window may also fit into this batch
            offsets.append(begin + end)
            start = end
        begin += start
    return np.array(offsets)
