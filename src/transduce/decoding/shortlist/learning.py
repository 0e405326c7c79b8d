"""Learn a vocabulary shortlist from pairs of ids, by IBM model 1 (Brown et al. 1993). Without torch.

Model 1 writes each target piece t by one piece s of the source, each with equal chance, or by EOS, which stands for
none of them. The probabilities p(t | s) are learned by expectation maximisation. In each round a target piece is
divided among the pieces of its source, in proportion to p(t | s). Mere counts of pairs would prefer common pieces.

A pair of lines has as many entries as the product of its lengths. They are made again in each round, for some pairs at
a time. Only the p(t | s) of pieces that occur together stay in memory.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transduce.data.text import is_blank, read_pairs
from transduce.data.vocabulary import CONTROLS, EOS, PAD, TokenizerLike
from transduce.decoding.shortlist.table import Shortlist
from transduce.errors import UserError

ROUNDS = 5
MOST_ENTRIES = 1 << 22  # at a time

Ids = Sequence[Sequence[int]]  # of some lines


def read_ids(
    src: Path, tgt: Path, tokenizer: TokenizerLike, n_pairs: int, max_tokens: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of `n_pairs` pairs of two texts, or of all if there are fewer, spread evenly over the texts.

    Pairs with a blank side, or one of more than `max_tokens` tokens, are left out. Raises UserError if none is left.
    """
    pairs, step = list[tuple[str, str]](), 1
    for number, pair in enumerate(pair for pair in read_pairs(src, tgt) if not any(map(is_blank, pair))):
        if number % step == 0:
            pairs.append(pair)
        if len(pairs) == 2 * n_pairs:
            pairs, step = pairs[::2], 2 * step
    count = min(n_pairs, len(pairs))
    pairs = [pairs[i * len(pairs) // count] for i in range(count)]
    sides = tokenizer.encode_batch([one for one, _ in pairs]), tokenizer.target.encode_batch([one for _, one in pairs])
    ids = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= max_tokens]
    if not ids:
        raise UserError(
            f"{src}: expected a pair of lines of up to {max_tokens} tokens, neither blank; give other texts"
        )
    return [one for one, _ in ids], [one for _, one in ids]


class _Entries(NamedTuple):
    """The entries of some pairs: each target piece with each piece of its source.

    keys: the different ones, ascending: s * vocabulary + t. places: of each entry, in keys. begins: the entries of a
    target piece follow one another; the first of each.
    """

    keys: np.ndarray
    places: np.ndarray
    begins: np.ndarray


def learn_shortlist(
    src: Ids,
    tgt: Ids,
    n_source: int,
    n_target: int,
    *,
    n_candidates: int,
    n_common: int,
) -> Shortlist:
    """Return the shortlist of a text: `n_candidates` for each source piece, and the `n_common` commonest of all.

    src, tgt: ids of its lines, without BOS and EOS. n_source, n_target: the sizes of the vocabularies.
    """
    counts = np.bincount(np.concatenate([np.zeros(0, np.int64), *map(_array, tgt)]), minlength=n_target)
    counts[: len(CONTROLS)] = counts.max() + 1  # always among them
    common = np.sort(np.argsort(-counts, kind="stable")[: n_common + len(CONTROLS)])
    keys, probabilities = lexical_probabilities(src, tgt, n_target)
    candidates = np.full((n_source, n_candidates), PAD, dtype=np.int32)
    source, target = np.divmod(keys, n_target)
    order = np.lexsort((-probabilities, source))  # stable: of equals the lowest target id first
    source = source[order]
    ranks = np.arange(len(order)) - np.searchsorted(source, source)
    is_best = ranks < n_candidates
    candidates[source[is_best], ranks[is_best]] = target[order[is_best]]
    return Shortlist(common.astype(np.int32), candidates)


def lexical_probabilities(src: Ids, tgt: Ids, n_target: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys s * n_target + t, ascending, of pieces that occur together, and p(t | s) by model 1 of each."""
    keys = np.zeros(0, dtype=np.int64)
    for entries in _entries(src, tgt, n_target):
        keys = np.union1d(keys, entries.keys)
    source = keys // n_target
    probabilities = np.ones(len(keys))
    for _ in range(ROUNDS):
        counts = np.zeros(len(keys))
        for entries in _entries(src, tgt, n_target):
            in_all = np.searchsorted(keys, entries.keys)
            shares = probabilities[in_all][entries.places]
            lengths = np.diff(entries.begins, append=len(shares))
            shares /= np.add.reduceat(shares, entries.begins).repeat(lengths)
            counts[in_all] += np.bincount(entries.places, shares, minlength=len(in_all))
        probabilities = counts / np.bincount(source, counts)[source]
    return keys, probabilities


def _entries(src: Ids, tgt: Ids, n_target: int) -> Iterator[_Entries]:
    """Yield the entries of all pairs, of about MOST_ENTRIES pairs of pieces at a time."""
    keys, lengths = list[np.ndarray](), list[np.ndarray]()
    n_entries = 0
    for source, target in zip(src, tgt, strict=True):
        if not len(target):
            continue
        by_target = np.append(_array(source), EOS) * n_target + _array(target)[:, None]
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


def _array(ids: Sequence[int]) -> np.ndarray:
    return np.array(ids, dtype=np.int64)
