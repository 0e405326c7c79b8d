"""The size of a training text: the pairs that a training uses, and the shares of the others."""

from pathlib import Path

import pytest
from support.toy_task import write_lines

from transduce.data.corpora import Corpus
from transduce.data.text_size import measure


@pytest.mark.parametrize("period", [2, 5, 10])
def test_pairs_with_a_blank_side_do_not_count(tmp_path: Path, period: int) -> None:
    """Also where they are in a regular order."""
    lines = ["a b c d" if number % period else " " for number in range(1_100)]
    text = measure([Corpus(write_lines(tmp_path / "a", lines), write_lines(tmp_path / "b", ["x y"] * 1_100), 2.0)])
    assert text.blank == pytest.approx(1 / period) and text.equal == 0
    assert text.pairs == pytest.approx(2 * 1_100 * (1 - 1 / period)) and text.mean_tokens == pytest.approx(1 + 4 * 1.25)


def test_a_text_of_blank_pairs_has_a_size(tmp_path: Path) -> None:
    text = measure([Corpus(write_lines(tmp_path / "a", [""]), write_lines(tmp_path / "b", ["x"]))])
    assert (text.pairs, text.tokens, text.blank) == (1, 1, 1.0)
