"""Sides that hardly belong together: shuffled and shifted text is a finding, parallel text in any order is not."""

import random

import numpy as np
import pytest

from transduce.cleaning.alignment import BLOCK_PAIRS, SharedAnchors, length_correlation, unrelated_pairs
from transduce.data.overlap import ambiguous_lines
from transduce.demo.grammar import corpus as grammar

Pair = tuple[str, str]
PARALLEL: list[Pair] = grammar(3, 3 * BLOCK_PAIRS)
NUMBERED = [(f"Box {n:06} is here.", f"Hier ist Kiste {n:06}.") for n in range(BLOCK_PAIRS)]


def unrelated(pairs: list[Pair]) -> list[tuple[int, int]]:
    """Return the first and the last line, from 0, of each run of pairs whose sides hardly belong together."""
    anchors = SharedAnchors()
    for src, tgt in pairs:
        anchors.add(src, tgt)
    lengths = [np.array([len(line) for line in side], np.uint32) for side in zip(*pairs, strict=True)]
    return [(first, last) for first, last, _ in unrelated_pairs(lengths[0], lengths[1], anchors)]


def shuffled(pairs: list[Pair]) -> list[Pair]:
    targets = [tgt for _, tgt in pairs]
    random.Random(1).shuffle(targets)
    return [(src, tgt) for (src, _), tgt in zip(pairs, targets, strict=True)]


def by_length(pair: Pair) -> int:
    return len(pair[0])


@pytest.mark.parametrize(
    "pairs", [PARALLEL, sorted(PARALLEL), sorted(PARALLEL, key=by_length), PARALLEL[:100], NUMBERED, [("a", "b")] * 999]
)
def test_parallel_text_is_related(pairs: list[Pair]) -> None:
    assert unrelated(pairs) == []


@pytest.mark.parametrize("pairs", [PARALLEL, sorted(PARALLEL), sorted(PARALLEL, key=by_length)])
def test_shuffled_targets_are_unrelated(pairs: list[Pair]) -> None:
    assert unrelated(shuffled(pairs)) == [(0, len(PARALLEL) - 1)]


def test_the_lines_after_a_lost_line_are_named() -> None:
    targets = [tgt for _, tgt in PARALLEL]
    shifted = list(zip([src for src, _ in PARALLEL], targets[:BLOCK_PAIRS] + targets[BLOCK_PAIRS + 1 :], strict=False))
    assert unrelated(shifted) == [(BLOCK_PAIRS, len(shifted) - 1)]


def test_numbers_and_names_decide_where_lengths_cannot() -> None:
    names = ["Anna", "Bert", "Cora", "Dora", "Emil", "Fred", "Gerd", "Hans", "Ines", "Jens", "Karl", "Lena", "Mona"]
    pairs = [(f"This is {name}.", f"Das ist {name}.") for name in names * 50]
    src, tgt = (np.array([len(line) for line in side], np.uint32) for side in zip(*pairs, strict=True))
    assert length_correlation(src, tgt) is None
    assert unrelated(pairs) == []
    assert unrelated(shuffled(pairs)[:BLOCK_PAIRS]) == [(0, BLOCK_PAIRS - 1)]


def test_a_side_with_many_others_is_ambiguous() -> None:
    pairs, sides = [1, 2, 3, 3, 4, 5], [7, 7, 7, 7, 8, 7]
    usable = np.array([True, True, True, True, True, False])
    assert list(ambiguous_lines(pairs, sides, usable, 2)) == [(1, 3), (2, 3), (3, 3)]
    assert list(ambiguous_lines(pairs, sides, usable, 3)) == []
