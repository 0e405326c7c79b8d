"""The size of a training text: the pairs that a training uses, and the shares of the others."""

from pathlib import Path

import pytest
from support.toy_task import write_lines

from transduce.config.recipes import auto
from transduce.data.corpora import Corpus
from transduce.data.text_size import estimated_tokens, measure
from transduce.data.tokenizer import Tokenizer


@pytest.mark.parametrize("period", [2, 5, 10])
def test_pairs_with_a_blank_side_do_not_count(tmp_path: Path, period: int) -> None:
    """Also where they are in a regular order."""
    lines = ["a b c d" if number % period else " " for number in range(1_100)]
    text = measure([Corpus(write_lines(tmp_path / "a", lines), write_lines(tmp_path / "b", ["x y"] * 1_100), 2.0)])
    assert text.blank == pytest.approx(1 / period) and text.equal == 0
    assert text.pairs == pytest.approx(2 * 1_100 * (1 - 1 / period)) and text.mean_tokens == pytest.approx(1 + 4 * 1.1)


def test_a_text_of_blank_pairs_has_a_size(tmp_path: Path) -> None:
    text = measure([Corpus(write_lines(tmp_path / "a", [""]), write_lines(tmp_path / "b", ["x"]))])
    assert (text.pairs, text.tokens, text.blank) == (1, 1, 1.0)


def test_long_pairs_do_not_count(tmp_path: Path) -> None:
    lines = ["a b c d" if number % 2 else "word " * 300 for number in range(1_100)]
    corpus = Corpus(write_lines(tmp_path / "a", lines), write_lines(tmp_path / "b", ["x y"] * 1_100))
    text = measure([corpus], 256)
    assert text.long == pytest.approx(0.5) and text.pairs == 550 and text.mean_tokens == pytest.approx(1 + 4 * 1.1)
    assert measure([corpus], 400).pairs == 1_100


def test_pairs_that_came_before_are_repeated(tmp_path: Path) -> None:
    lines = [f"line {number}" if number % 20 == 0 else "all rights reserved" for number in range(1_000)]
    path = write_lines(tmp_path / "a", lines)
    text = measure([Corpus(path, path)])
    assert text.repeated == pytest.approx(0.95, abs=0.002)


def test_a_text_of_rare_characters_gets_a_vocabulary_that_has_them_all(tmp_path: Path) -> None:
    characters = [chr(0x4E00 + i) for i in range(3_000)]  # a dictionary: each is in one pair
    src = write_lines(tmp_path / "a", characters)
    text = measure([Corpus(src, write_lines(tmp_path / "b", [f"meaning {i}" for i in range(3_000)]))])
    assert text.characters == 3_000 + len({*"meaning 0123456789"})
    config = auto.configure(auto.SIZES[0][1], text, steps=100, precision="fp32")
    assert {*characters} <= {*Tokenizer.learn(characters, vocab_size=config.data.vocab_size).vocabulary}


@pytest.mark.parametrize(
    "line",
    [
        "A man in a blue shirt is standing on a ladder.",
        "<b>Valve</b>, 4,710 kg (see <ph id='3'/>)",
        "यह एक छोटा घर है।",
    ],
)
def test_marks_and_digits_are_tokens_and_vowel_signs_are_not(line: str) -> None:
    """By a tokenizer whose vocabulary has each word."""
    tokenizer = Tokenizer.learn([line] * 100, vocab_size=600)
    assert estimated_tokens(line) == pytest.approx(len(tokenizer.encode(line)), rel=0.35)
