"""The probabilities that words translate words, learned from pairs by IBM model 1 (Brown et al. 1993). Without torch.

Model 1 writes each target token t by one token s of the source, each with equal chance, or by an empty one, which
stands for none of them. The probabilities p(t | s) are learned by expectation maximisation. In each round a target
token is divided among the tokens of its source, in proportion to p(t | s). Mere counts of pairs would prefer common
tokens.

A pair of lines has as many entries as the product of its lengths. They are made again in each round, for some pairs at
a time. Only the p(t | s) of tokens that occur together stay in memory.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

ROUNDS = 5
MOST_ENTRIES = 1 << 22  # at a time

Ids = Sequence[Sequence[int]]  # of some lines


class _Entries(NamedTuple):
    """The entries of some pairs: each target token with each token of its source.

    keys: the different ones, ascending: s * vocabulary + t. places: of each entry, in keys. begins: the entries of a
    target token follow one another; the first of each.
    """

    keys: np.ndarray
    places: np.ndarray
    begins: np.ndarray


def lexical_probabilities(src: Ids, tgt: Ids, n_target: int, *, empty: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys s * n_target + t, ascending, of tokens that occur together, and p(t | s) by model 1 of each.

    src, tgt: ids of lines. n_target: the size of the target's vocabulary. empty: id of the empty source token.
    """
    keys = np.zeros(0, dtype=np.int64)
    for entries in _entries(src, tgt, n_target, empty):
        keys = np.union1d(keys, entries.keys)
    source = keys // n_target
    probabilities = np.ones(len(keys))
    for _ in range(ROUNDS):
        counts = np.zeros(len(keys))
        for entries in _entries(src, tgt, n_target, empty):
            in_all = np.searchsorted(keys, entries.keys)
            shares = probabilities[in_all][entries.places]
            lengths = np.diff(entries.begins, append=len(shares))
            shares /= np.add.reduceat(shares, entries.begins).repeat(lengths)
            counts[in_all] += np.bincount(entries.places, shares, minlength=len(in_all))
        probabilities = counts / np.bincount(source, counts)[source]
    return keys, probabilities


def _entries(src: Ids, tgt: Ids, n_target: int, empty: int) -> Iterator[_Entries]:
    """Yield the entries of all pairs, of about MOST_ENTRIES pairs of tokens at a time."""
    keys, lengths = list[np.ndarray](), list[np.ndarray]()
    n_entries = 0
    for source, target in zip(src, tgt, strict=True):
        if not len(target):
            continue
        by_target = np.append(array_of(source), empty) * n_target + array_of(target)[:, None]
        keys.append(by_target.ravel())
        lengths.append(np.full(len(target), by_target.shape[1]))
        n_entries += by_target.size
        if n_entries > MOST_ENTRIES:
            yield _unique(keys, lengths)
            keys, lengths = [], []
            n_entries = 0
    if keys:
        yield _unique(keys, lengths)


def _unique(keys: Sequence[np.ndarray], lengths: Sequence[np.ndarray]) -> _Entries:
    unique, places = np.unique(np.concatenate(keys), return_inverse=True)
    ends = np.concatenate(lengths).cumsum()
    return _Entries(unique, places, np.append(0, ends[:-1]))


def flat_entries(src: Ids, tgt: Ids, n_target: int, *, empty: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of all entries of some pairs, repeated ones too, and the first entry of each target token."""
    source, target = (np.fromiter((i for line in side for i in line), np.int64) for side in (_with(src, empty), tgt))
    n_source, n_tokens = (np.array([len(line) for line in side], np.int64) for side in (src, tgt))
    n_source += 1
    pairs = np.arange(len(n_tokens)).repeat(n_tokens)  # of each target token
    lengths = n_source[pairs]
    begins = lengths.cumsum() - lengths
    in_pair = np.arange(lengths.sum()) - begins.repeat(lengths)
    starts = n_source.cumsum() - n_source
    return source[starts[pairs].repeat(lengths) + in_pair] * n_target + target.repeat(lengths), begins


def _with(lines: Ids, empty: int) -> Iterator[list[int]]:
    return ([*line, empty] for line in lines)


def array_of(ids: Sequence[int]) -> np.ndarray:
    """Return ids as an array, also if there are none."""
    return np.array(ids, dtype=np.int64)
