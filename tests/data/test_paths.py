"""The tokenizer of sound files and text."""

import numpy as np
import pytest

from transduce.data.paths import PathsAndText, path_of
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError

LINES = ["a b c", "c b a b"]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
@pytest.mark.parametrize("path", ["sounds/a.wav", "/größe/ü 1.flac", "日本.mp3"])
def test_a_path_is_its_bytes(kind: str, path: str) -> None:
    tokenizer = PathsAndText(Tokenizer.learn(LINES, kind=kind, vocab_size=600))
    ids = tokenizer.encode(f"{path}\n".strip("\n"))
    assert path_of(ids) == tokenizer.decode(ids) == path and len(ids) == 255
    assert max(ids) < tokenizer.vocab_size == tokenizer.text.vocab_size


def test_a_path_may_be_longer_and_a_blank_line_is_none() -> None:
    tokenizer = PathsAndText(Tokenizer.learn(LINES, vocab_size=300))
    long, blank = tokenizer.encode_batch(["a" * 300, " "])
    assert path_of(long) == "a" * 300 and len(long) == 300 and blank == []


def test_the_target_is_text() -> None:
    text = Tokenizer.learn(LINES, vocab_size=300)
    target = PathsAndText(text).target
    assert target.side == "target" and target.encode_batch(LINES) == text.encode_batch(LINES)
    assert target.decode(target.encode("a b")) == "a b"
    rows, keys = [np.array(text.encode("a b c"))], np.array([1], np.uint64)
    dropped = target.drop_merges(rows, p=1.0, keys=keys)
    assert dropped[0].tolist() == text.drop_merges(rows, p=1.0, keys=keys)[0].tolist()
    assert PathsAndText(text).drop_merges(rows, p=1.0, keys=keys)[0] is rows[0]


def test_it_is_read_from_its_file() -> None:
    tokenizer = PathsAndText(Tokenizer.learn(LINES, vocab_size=300))
    again = Tokenizer.from_json(tokenizer.to_json())
    assert isinstance(again, PathsAndText) and again.to_json() == tokenizer.to_json()
    assert again.target.encode("c b") == tokenizer.target.encode("c b")


@pytest.mark.parametrize("text", ["3", '"x"', "null"])
def test_a_damaged_file_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected a tokenizer of transduce"):
        Tokenizer.from_json('{"format": "transduce paths and text", "text": %s}' % text)  # noqa: UP031
