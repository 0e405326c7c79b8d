"""The probabilities that words translate words, learned from pairs by IBM model 1 (Brown et al. 1993). Without torch.

Model 1 writes each target token t by one token s of the source, each with equal chance. An empty token s stands for
none of them. The probabilities p(t | s) are learned by expectation maximisation. In each round a target
token is divided among the tokens of its source, in proportion to p(t | s). Mere counts of pairs would prefer common
tokens.

A pair of lines has as many entries as the product of its lengths. The entries of a long text are made again in
each round, for some pairs at a time. Only the p(t | s) of tokens that occur together stay in memory.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

ROUNDS = 5
MOST_ENTRIES = 1 << 22  # at a time
MOST_KEPT = 1 << 25  # entries of a text that are made only once; 4 bytes each

LineIds = Sequence[Sequence[int]]  # of some lines
Integers = NDArray[np.int64]


def lexical_probabilities(
    src: LineIds, tgt: LineIds, n_target: int, *, empty: int
) -> tuple[Integers, NDArray[np.float64]]:
    """Return the keys s * n_target + t, ascending, of tokens that occur together, and p(t | s) by model 1 of each.

    src, tgt: ids of lines. n_target: the size of the target's vocabulary. empty: id of the empty source token.
    """
    keys, n_entries = np.zeros(0, dtype=np.int64), 0
    for portion, _ in _portions(src, tgt, n_target, empty):
        keys = _distinct(np.concatenate([keys, _distinct(portion)]))
        n_entries += len(portion)
    in_memory = [*_places(keys, src, tgt, n_target, empty)] if n_entries <= MOST_KEPT else None
    source = keys // n_target
    probabilities = np.ones(len(keys))
    for _ in range(ROUNDS):
        counts = np.zeros(len(keys))
        for of_entries, begins in in_memory or _places(keys, src, tgt, n_target, empty):
            shares = probabilities[of_entries]
            shares /= np.add.reduceat(shares, begins).repeat(np.diff(begins, append=len(shares)))
            counts += np.bincount(of_entries, shares, minlength=len(keys))
        probabilities = counts / np.bincount(source, counts)[source]
    return keys, probabilities


def _distinct(values: Integers) -> Integers:
    """Return the distinct values, ascending, in a sixth of the time of numpy.unique, which has a hash table."""
    in_order = np.sort(values)
    return in_order[np.diff(in_order, prepend=-1) != 0]


def _places(
    keys: Integers, src: LineIds, tgt: LineIds, n_target: int, empty: int
) -> Iterator[tuple[NDArray[np.int32], Integers]]:
    """Yield the places of the entries in `keys`, of some pairs at a time, and the first entry of each target token."""
    for portion, begins in _portions(src, tgt, n_target, empty):
        yield np.searchsorted(keys, portion).astype(np.int32), begins


def _portions(src: LineIds, tgt: LineIds, n_target: int, empty: int) -> Iterator[tuple[Integers, Integers]]:
    """Yield what `flat_entries` returns of all pairs, about MOST_ENTRIES entries at a time."""
    start, n_entries = 0, 0
    for i, (source, target) in enumerate(zip(src, tgt, strict=True), start=1):
        n_entries += (len(source) + 1) * len(target)
        if n_entries and (n_entries > MOST_ENTRIES or i == len(src)):
            yield flat_entries(src[start:i], tgt[start:i], n_target, empty=empty)
            start, n_entries = i, 0


def flat_entries(src: LineIds, tgt: LineIds, n_target: int, *, empty: int) -> tuple[Integers, Integers]:
    """Return the keys of the entries of some pairs, and the first entry of each target token.

    The entries of a target token, one for each token of its source and one for the empty one, follow one another.
    """
    source = np.fromiter((i for line in src for i in (*line, empty)), np.int64)
    target = np.fromiter((i for line in tgt for i in line), np.int64)
    n_source, n_tokens = (np.array([len(line) for line in side], np.int64) for side in (src, tgt))
    n_source += 1
    pairs = np.arange(len(n_tokens)).repeat(n_tokens)  # of each target token
    lengths = n_source[pairs]
    begins = lengths.cumsum() - lengths
    in_pair = np.arange(lengths.sum()) - begins.repeat(lengths)
    starts = n_source.cumsum() - n_source
    return source[starts[pairs].repeat(lengths) + in_pair] * n_target + target.repeat(lengths), begins
