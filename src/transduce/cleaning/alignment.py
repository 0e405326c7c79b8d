"""Find blocks of pairs whose sides hardly belong together, although no single pair looks wrong.

A shuffled side, or a line that is missing on one side, leaves pairs of ordinary sentences. Two kinds of evidence
remain:

    lengths     a long sentence has a long translation: the rank correlation of real text is 0.5 to 0.9
    anchors     numbers and names stay the same: a pair shares more of them than lines of two pairs

A block is 500 consecutive pairs, so that the report can name the lines.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, groupby, pairwise

import numpy as np
from numpy.typing import NDArray

BLOCK_PAIRS = 500
SAMPLE_PAIRS = 100_000  # for the correlation of the whole corpus

Lengths = NDArray[np.uint32]

# ---- lengths -----------------------------------------------------------------------------------------------------

LEAST_PAIRS = 100
LEAST_CORRELATION = (
    0.35  # a block of Multi30k has at least 0.81, of Tanaka (English-Japanese) 0.48; shuffled, at most 0.13
)
LEAST_SPREAD = 2.0  # the 95th percentile of the lengths over the 5th
LEAST_MEDIAN = 8  # characters; the lengths of words say less than the lengths of sentences


def length_correlation(src: Lengths, tgt: Lengths) -> float | None:
    """Return the rank correlation of the lengths of pairs. None: too few pairs, or the lengths vary little."""
    counts = src > 0
    if np.count_nonzero(counts) < LEAST_PAIRS:
        return None
    src, tgt = src[counts], tgt[counts]
    for lengths in (src, tgt):
        short, median, long = np.percentile(lengths, [5, 50, 95])
        if median < LEAST_MEDIAN or long < LEAST_SPREAD * short:
            return None
    return float(np.corrcoef(_ranks(src), _ranks(tgt))[0, 1])


def _ranks(values: Lengths) -> NDArray[np.float64]:
    """Return the rank of each value. Equal values share the mean of their ranks."""
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[indices]


# ---- numbers and names -------------------------------------------------------------------------------------------

ANCHOR = re.compile(r"\d{2,9}|\b[^\W\d_a-z][^\W\d_]{2,40}")  # the check for a-z makes it twice as fast
FREQUENT = 0.1  # of the lines of a block; a more frequent anchor does not distinguish them
ENOUGH_SHARED = 20  # pairs


class SharedAnchors:
    """Counts by block: the pairs that share an anchor (`own`), and the mixed lines that share one (`by_chance`).

    At most one block of text is in memory.
    """

    def __init__(self) -> None:
        self.own: list[int] = []
        self.by_chance: list[int] = []
        self._sides: tuple[list[frozenset[str]], list[frozenset[str]]] = [], []

    def add(self, src: str, tgt: str) -> None:
        """Add a pair without a blank side."""
        for side, line in zip(self._sides, (src, tgt), strict=True):
            side.append(_anchors(line))
        if len(self._sides[0]) == BLOCK_PAIRS:
            self.end_block()

    def end_block(self) -> None:
        """Count the pairs since the last block."""
        src, tgt = self._sides
        frequent = {
            anchor
            for side in self._sides
            for anchor, count in Counter(chain.from_iterable(side)).items()
            if count > FREQUENT * len(side)
        }
        half = len(tgt) // 2
        for counts, side in ((self.own, tgt), (self.by_chance, [*tgt[half:], *tgt[:half]])):
            counts.append(sum(bool((a & b) - frequent) for a, b in zip(src, side, strict=True)))
        self._sides = [], []


def _anchors(line: str) -> frozenset[str]:
    """Return the numbers of a line, and its words that begin with a capital letter."""
    words = ANCHOR.findall(line)
    return frozenset(f"{int(word)}" if word[0].isdecimal() else word for word in words if not word[0].islower())


# ---- the decision ------------------------------------------------------------------------------------------------


def unrelated_pairs(src: Lengths, tgt: Lengths, anchors: SharedAnchors) -> Iterator[tuple[int, int, str]]:
    """Yield the first pair, the last pair and the evidence of each run of blocks whose sides hardly belong together.

    src, tgt: the lengths of all pairs that were added to the anchors, 0 for a pair whose lengths do not count. Pairs
    are numbered from 0.
    """
    anchors.end_block()
    bounds = [*range(0, len(src), BLOCK_PAIRS), len(src)]
    blocks = [(src[start:end], tgt[start:end]) for start, end in pairwise(bounds)]
    evidence = [_evidence(*block) for block in zip(blocks, anchors.own, anchors.by_chance, strict=False)]
    if evidence.count(None) > len(evidence) / 2:  # a text that is sorted by length varies little within a block
        every = len(src) // SAMPLE_PAIRS + 1
        bounds = [0, len(src)]
        evidence = [_evidence((src[::every], tgt[::every]), sum(anchors.own), sum(anchors.by_chance))]
    for is_unrelated, group in groupby(zip(pairwise(bounds), evidence, strict=True), key=lambda block: bool(block[1])):
        if is_unrelated:
            ((first, end), reason), *others = group
            yield first, (others[-1][0][1] if others else end) - 1, reason or ""


def _evidence(lengths: tuple[Lengths, Lengths], own: int, by_chance: int) -> str | None:
    """Return the evidence that the sides of some pairs hardly belong together, "" if they do, None if it is unknown.

    lengths: the lengths of source and target; they decide if they vary enough. own: number of pairs that share an
    anchor. by_chance: number of pairs that would share one by chance.
    """
    if own >= ENOUGH_SHARED and own >= 2 * by_chance:
        return ""
    correlation = length_correlation(*lengths)
    if correlation is None:
        return f"{own} share names, {by_chance} by chance" if own < by_chance * 1.25 >= ENOUGH_SHARED else None
    noise = 3 / np.sqrt(len(lengths[0]))  # three standard deviations of the correlation in random order
    return f"length correlation {correlation:.2f}" if correlation < LEAST_CORRELATION - noise else ""
