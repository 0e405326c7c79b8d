"""Repeated sentences: within one text, or in both training and validation text, which raises the validation scores.

And words: do the sides of a validation text have those of the same sides of the training text, or are they exchanged?
"""

import hashlib
import re
from collections import Counter
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
    source, whatever the target is. is_exchanged: True if the sides of the validation text look exchanged.
    """

    pairs: list[int]
    sources: list[int]
    is_exchanged: bool = False


def find_overlap(training: Iterable[tuple[str, str]], valid: Iterable[tuple[str, str]]) -> Overlap:
    """Return the overlap of two texts, without regard to white space around lines. `training` may be a stream.

    Pairs with a blank source do not count.
    """
    valid_pairs = [(src.strip(), tgt.strip()) for src, tgt in valid]
    sources = {src for src, _ in valid_pairs if src}
    pairs = set(valid_pairs)
    shared_sources = set()
    shared_pairs = set()
    sides = SideWords(valid_pairs)
    for number, (src, tgt) in enumerate(training):
        if number % EVERY == 0:
            sides.see(src, tgt)
        if (source := src.strip()) in sources:
            shared_sources.add(source)
            if (pair := (source, tgt.strip())) in pairs:
                shared_pairs.add(pair)
    numbered = list(enumerate(valid_pairs, start=1))
    return Overlap(
        [number for number, pair in numbered if pair in shared_pairs],
        [number for number, (src, _) in numbered if src in shared_sources],
        sides.are_exchanged,
    )


WORD = re.compile(r"[^\W\d_]{2,}")
FREQUENT = 30  # words, a third of any text: of, the, is
SAME_LANGUAGE = 0.2  # of 100 lines: at least 0.22 in one language, at most 0.06 in two


def frequent_words(lines: Iterable[str], text: Iterable[str]) -> float:
    """Return the share of the words of `lines` that are among the most frequent words of `text`, from 0 to 1."""
    counts, text_counts = (Counter(w for line in side for w in WORD.findall(line.lower())) for side in (lines, text))
    frequent = {word for word, _ in text_counts.most_common(FREQUENT)}
    return sum(counts[word] for word in frequent) / max(1, counts.total())


EXCHANGED = "expected source and target text, but the words of each are on the other side of the training text"
EVERY = 7  # every seventh training pair is compared; a prime, since a text may repeat its form after 2, 5 or 10 lines
LEAST_WORDS = 200  # on the other sides; fewer tell nothing
MARGIN = 20  # exchanged sides have 80 to 1,000 times as many words on the other sides in Multi30k, WMT news and Tanaka


class SideWords:
    """Counts the words of a training text that a validation text has on only one side, on the same and the other side.

    Two sides in one language, and copies, share their words; text without spaces has hardly any. So these count little.
    """

    def __init__(self, valid: Sequence[tuple[str, str]]) -> None:
        src, tgt = ({word for pair in valid for word in pair[side].split()} for side in (0, 1))
        self._only_src = src - tgt
        self._only_tgt = tgt - src
        self._same_side = 0
        self._other_side = 0

    def see(self, src: str, tgt: str) -> None:
        """Count the words of a training pair."""
        for word in src.split():
            self._same_side += word in self._only_src
            self._other_side += word in self._only_tgt
        for word in tgt.split():
            self._same_side += word in self._only_tgt
            self._other_side += word in self._only_src

    @property
    def are_exchanged(self) -> bool:
        """True if almost all of these words are on the other side in the training text."""
        return self._other_side > max(LEAST_WORDS, MARGIN * self._same_side)


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
