"""Repeated sentences: within one text, or in both training and validation text, which raises the validation scores."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.data.disk import synced_file
from transduce.data.token_store import TokenStore


@dataclass(frozen=True)
class Overlap:
    """The validation lines, by number from 1, whose pair or whose source is also in the training text.

    pairs: the lines of which both sides equal a training pair. sources: the lines of which the source equals a training
    source, whatever the target is.
    """

    pairs: list[int]
    sources: list[int]


def find_overlap(training: Iterable[tuple[str, str]], valid: Iterable[tuple[str, str]]) -> Overlap:
    """Return the overlap of two texts, without regard to white space around lines. `training` may be a stream.

    Pairs with a blank source do not count.
    """
    valid_pairs = [(src.strip(), tgt.strip()) for src, tgt in valid]
    sources = {src for src, _ in valid_pairs if src}
    pairs = set(valid_pairs)
    shared_sources = set()
    shared_pairs = set()
    for src, tgt in training:
        if (source := src.strip()) in sources:
            shared_sources.add(source)
            if (pair := (source, tgt.strip())) in pairs:
                shared_pairs.add(pair)
    numbered = list(enumerate(valid_pairs, start=1))
    return Overlap(
        [number for number, pair in numbered if pair in shared_pairs],
        [number for number, (src, _) in numbered if src in shared_sources],
    )


def cached_overlap(valid: Sequence[tuple[str, str]], store: TokenStore, path: Path) -> Overlap:
    """Return the overlap with the texts of a store. `path` keeps the result until one of the texts changes."""
    key = hashlib.sha256(msgspec.json.encode([store.key, valid])).hexdigest()
    with suppress(OSError, msgspec.MsgspecError):
        cached_key, overlap = msgspec.json.decode(path.read_bytes(), type=tuple[str, Overlap])
        if cached_key == key:
            return overlap
    overlap = find_overlap(store.lines(), valid)
    with synced_file(path) as file:
        file.write(msgspec.json.encode((key, overlap)))
    return overlap


def repeated_lines(hashes: Mapping[str, Sequence[int]], usable: NDArray[np.bool_]) -> Iterator[tuple[str, int, int]]:
    """Yield each repetition: its kind, the number of its line, and the number of the first such line, both from 1.

    hashes: by kind, a hash for each line. The kind "repeated", of whole pairs, comes first: a repeated pair does not
    also count as a repeated source or target. usable: False for lines to skip.
    """
    indices = np.flatnonzero(usable)
    is_repeated_pair = np.zeros(len(usable), bool)
    for kind, values in hashes.items():
        values = np.asarray(values)[usable]
        order = np.argsort(values, kind="stable")
        is_first = np.ones(len(order), bool)
        is_first[1:] = values[order][1:] != values[order][:-1]
        firsts = np.zeros(len(order), np.int64)
        firsts[order] = order[np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))]
        repeated = np.sort(order[~is_first])
        for i in repeated[~is_repeated_pair[indices[repeated]]].tolist():
            yield kind, int(indices[i]) + 1, int(indices[firsts[i]]) + 1
        if kind == "repeated":
            is_repeated_pair[indices[repeated]] = True


def ambiguous_lines(
    pairs: Sequence[int], side: Sequence[int], usable: NDArray[np.bool_], limit: int
) -> Iterator[tuple[int, int]]:
    """Yield the number of each line, from 1, whose side has more than `limit` different other sides, and how many.

    pairs, side: a hash for each line, of the pair and of one side. usable: False for lines to skip.
    """
    indices = np.flatnonzero(usable)
    _, firsts = np.unique(np.asarray(pairs)[indices], return_index=True)  # each pair once
    lines = indices[np.sort(firsts)]
    _, groups, counts = np.unique(np.asarray(side)[lines], return_inverse=True, return_counts=True)
    for i in np.flatnonzero(counts[groups] > limit).tolist():
        yield int(lines[i]) + 1, int(counts[groups[i]])
