"""Word error rate."""

import itertools

import pytest

from transduce.evaluation.word_errors import edit_distance, word_error_rate


def by_recursion(a: str, b: str) -> int:
    """Return the edit distance by its definition."""
    if not a or not b:
        return len(a) + len(b)
    return min(by_recursion(a[1:], b) + 1, by_recursion(a, b[1:]) + 1, by_recursion(a[1:], b[1:]) + (a[0] != b[0]))


def test_the_distance_is_that_of_the_definition() -> None:
    words = ["".join(letters) for n in range(4) for letters in itertools.product("ab", repeat=n)]
    for a, b in itertools.product(words, repeat=2):
        assert edit_distance(a, b) == edit_distance(b, a) == by_recursion(a, b)


@pytest.mark.parametrize(
    ("output", "reference", "rate"),
    [
        ("the cat sat", "the cat sat", 0),
        ("the bat sat", "the cat sat", 100 / 3),
        ("cat sat", "the cat sat", 100 / 3),
        ("the the cat  sat", "the cat sat", 100 / 3),
        ("a b c d", "e", 400),
        ("", "the cat", 100),
        ("", "", 0),
    ],
)
def test_errors_are_counted_in_words_of_the_reference(output: str, reference: str, rate: float) -> None:
    assert word_error_rate([output], [reference]) == pytest.approx(rate)


def test_long_texts_count_more() -> None:
    assert word_error_rate(["a b c", "x"], ["a b c", "y"]) == 25
