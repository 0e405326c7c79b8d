"""BPE-dropout: it equals the library without drops, has the library's distribution, and is reproducible."""

import hashlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tokenizer_texts import HOSTILE, encode_dropout, in_a_new_process, learn, sentences
from tokenizers import Tokenizer as LibraryTokenizer

from transduce.data import bpe_dropout, draws, word_starts
from transduce.data.draws import row_keys
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import UNK
from transduce.data.word_starts import WordStarts
from transduce.errors import UserError


@pytest.fixture(params=["C++", "Python"])
def bpe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Tokenizer:
    """A tokenizer that drops merges in C++ or in Python."""
    if request.param == "Python":
        monkeypatch.setattr(bpe_dropout, "library", lambda: None)
    elif bpe_dropout.library() is None:
        pytest.skip("needs compiled BPE-dropout")
    return fresh(learn("bpe"))


def fresh(bpe: Tokenizer) -> Tokenizer:
    """Return a copy that remembers nothing."""
    return Tokenizer(bpe.to_json())


def test_without_drops_the_ids_stay(bpe: Tokenizer) -> None:
    """With p = 1e-15 the encoder runs, and drops no merge."""
    chance = random.Random(3)
    lines = [*HOSTILE, *sentences(300, seed=4), *("".join(chance.choices("thedogsr ,", k=40)) for _ in range(500))]
    for line in lines:
        assert encode_dropout(bpe, line, p=0.0, key="k") == bpe.encode(line)
        assert encode_dropout(bpe, line, p=1e-15, key="k") == bpe.encode(line)


def test_dropout_of_every_merge_leaves_characters(bpe: Tokenizer) -> None:
    for line in [*HOSTILE, *sentences(5)]:
        assert all(len(p) == 1 or p.startswith("<0x") for p in bpe.pieces(encode_dropout(bpe, line, p=1, key="k")))


def test_dropout_is_lossless(bpe: Tokenizer) -> None:
    lines = HOSTILE + list(sentences(20))
    for i in range(12):
        for line in lines:
            ids = encode_dropout(bpe, line, p=(0.02, 0.1, 0.5, 1.0)[i % 4], key=f"1:{i}")
            assert bpe.decode(ids) == line
            assert not ids or min(ids) > UNK


def test_dropout_is_a_function_of_ids_p_and_key(bpe: Tokenizer) -> None:
    line = next(sentences(1)) * 4
    ids = {key: encode_dropout(bpe, line, p=0.3, key=key) for key in map(str, range(30))}
    assert len(set(map(tuple, ids.values()))) > 25
    other = fresh(bpe)
    assert ids == {key: encode_dropout(other, line, p=0.3, key=key) for key in reversed(list(ids))}


def test_a_row_does_not_depend_on_the_other_rows(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [np.array(bpe.encode(line), np.uint16) for line in [*HOSTILE, *sentences(100), ""]]
    keys = row_keys(1, 0, 0, np.arange(len(rows)))
    together = bpe.drop_merges(rows, p=0.2, keys=keys)
    monkeypatch.setattr(word_starts, "MOST_RUNS", 1)
    other = fresh(bpe)
    for i, row in enumerate(together):
        (alone,) = other.drop_merges(rows[i : i + 1], p=0.2, keys=keys[i : i + 1])
        assert alone.tolist() == row.tolist()
    assert not np.array_equal(np.concatenate(together), np.concatenate(rows))


class Narrow:
    """numpy with integers of 32 bits unless a type is named, as numpy 1 on Windows has them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def array(self, values: Any, dtype: Any = None) -> np.ndarray:
        return self._narrow(np.array(values, dtype), dtype)

    def full(self, shape: Any, value: int, dtype: Any = None) -> np.ndarray:
        return self._narrow(np.full(shape, value, dtype), dtype)

    def arange(self, *bounds: int) -> np.ndarray:
        return self._narrow(np.arange(*bounds), None)

    def _narrow(self, values: np.ndarray, dtype: Any) -> np.ndarray:
        has_room = dtype is None and values.dtype == np.int64 and values.max(initial=0) < 1 << 31
        return values.astype(np.int32) if has_room else values


def test_integers_of_32_bits_are_enough_where_no_type_is_named(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [np.array(bpe.encode(line), np.uint16) for line in [*HOSTILE, *sentences(30)]]
    keys = row_keys(1, 0, 0, np.arange(len(rows)))
    expected = bpe.drop_merges(rows, p=0.2, keys=keys)
    for module in (bpe_dropout, word_starts, draws):
        monkeypatch.setattr(module, "np", Narrow())
    ours = fresh(bpe).drop_merges(rows, p=0.2, keys=keys)
    assert [row.tolist() for row in ours] == [row.tolist() for row in expected]


LETTERS = "ab" + "e\u0301" + "\u0301" + "1" + ".," + "▁" + "ő" + "☃" + "  "


def test_words_begin_where_the_library_cuts(bpe: Tokenizer) -> None:
    """Also around marks, characters without a piece, and in words of more than 64 characters."""
    chance = random.Random(3)
    texts = ["".join(chance.choices(LETTERS, k=chance.randint(1, 20))) for _ in range(400)]
    texts += [*HOSTILE, *sentences(50), "a" * 200, "b1" * 80 + "ő" * 70, "." * 65 + "\u0301" + "e" * 70, "12" * 40]
    engine = LibraryTokenizer.from_str(bpe.to_json())
    engine.encode_special_tokens = True
    finder = WordStarts({piece: i for i, piece in enumerate(bpe.vocabulary)}, engine)
    assert engine.normalizer is not None and engine.pre_tokenizer is not None
    for text in texts:
        words = engine.pre_tokenizer.pre_tokenize_str(engine.normalizer.normalize_str(text))
        ids = [engine.model.tokenize(word) for word, _ in words]
        row = np.array([token.id for of_word in ids for token in of_word], int)
        assert row.tolist() == bpe.encode(text)
        if len(row):
            assert finder.of(row, np.array([0])).tolist() == np.cumsum([0, *map(len, ids[:-1])]).tolist()


DROPOUT = """
import hashlib, sys
from support.tokenizer_texts import encode_dropout, sentences
from transduce.data.tokenizer import Tokenizer
tokenizer = Tokenizer.load(sys.argv[1])
ids = [encode_dropout(tokenizer, line, p=0.1, key=f"7:{i}") for i, line in enumerate(sentences(200))]
print(hashlib.sha256(repr(ids).encode()).hexdigest())
"""


def test_dropout_is_the_same_in_another_process(bpe: Tokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path / "tokenizer.json")
    ids = [encode_dropout(bpe, line, p=0.1, key=f"7:{i}") for i, line in enumerate(sentences(200))]
    expected = hashlib.sha256(repr(ids).encode()).hexdigest()
    for seed in ("1", "2"):
        assert in_a_new_process(DROPOUT, str(tmp_path / "tokenizer.json"), PYTHONHASHSEED=seed) == expected


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_is_distributed_as_in_the_library(bpe: Tokenizer, p: float) -> None:
    """Compare the frequencies of all segmentations of a word by a chi-squared test. The library cannot be seeded."""
    engine, runs = LibraryTokenizer.from_str(bpe.to_json()), 4_000
    engine.model.dropout = p
    for word in ("Kindergarten", "running", "springt"):
        encodings = engine.encode_batch_fast([word] * runs, add_special_tokens=False)
        expected = Counter(tuple(encoding.ids) for encoding in encodings)
        rows = bpe.drop_merges([np.array(bpe.encode(word))] * runs, p=p, keys=row_keys(1, 0, 0, np.arange(runs)))
        ours = Counter(tuple(row.tolist()) for row in rows)
        counts = np.array([(ours[ids], expected[ids]) for ids in ours | expected])
        a, b = counts[counts.sum(axis=1) >= 20].T
        freedom = len(a) - 1
        assert freedom > 3
        assert ((a - b) ** 2 / (a + b)).sum() < freedom + 8 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), float("inf")])
def test_an_invalid_probability_is_refused(bpe: Tokenizer, p: float) -> None:
    with pytest.raises(UserError, match="expected 0 to 1"):
        encode_dropout(bpe, "a", p=p, key="k")


def test_word_pieces_have_no_merges_to_drop() -> None:
    tokenizer = Tokenizer.learn(sentences(50), kind="wordpiece", vocab_size=600)
    with pytest.raises(UserError, match="data.bpe_dropout=0.1: expected 0, because"):
        encode_dropout(tokenizer, "a", p=0.1, key="k")
