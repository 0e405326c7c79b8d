"""BPE-dropout: it equals the library without drops, follows the paper's distribution, and is reproducible."""

import hashlib
import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from support.tokenizer_texts import HOSTILE, in_a_new_process, learn, sentences

from transduce.data import bpe_dropout
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import UNK
from transduce.errors import UserError


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return learn("bpe")


def without_cache(bpe: Tokenizer) -> Tokenizer:
    """Return a copy with an empty cache of segmentations."""
    return Tokenizer.from_json(bpe.to_json())


def test_without_drops_the_python_encoder_equals_the_library(bpe: Tokenizer) -> None:
    """With p = 1e-15 the Python encoder runs, and drops no merge."""
    chance = random.Random(3)
    lines = [*HOSTILE, *sentences(300, seed=4), *("".join(chance.choices("thedogsr ,", k=40)) for _ in range(500))]
    for line in lines:
        assert bpe.encode_dropout(line, p=0.0, key="k") == bpe.encode(line)
        assert bpe.encode_dropout(line, p=1e-15, key="k") == bpe.encode(line)


def test_dropout_of_every_merge_leaves_characters(bpe: Tokenizer) -> None:
    for line in [*HOSTILE, *sentences(5)]:
        assert all(len(p) == 1 or p.startswith("<0x") for p in bpe.pieces(bpe.encode_dropout(line, p=1, key="k")))


def test_dropout_is_lossless(bpe: Tokenizer) -> None:
    lines = HOSTILE + list(sentences(20))
    for i in range(40):
        for line in lines:
            ids = bpe.encode_dropout(line, p=(0.02, 0.1, 0.5, 1.0)[i % 4], key=f"1:{i}")
            assert bpe.decode(ids) == line
            assert not ids or min(ids) > UNK


def test_dropout_is_a_function_of_line_p_and_key(bpe: Tokenizer) -> None:
    line = next(sentences(1)) * 4
    ids = {key: bpe.encode_dropout(line, p=0.3, key=key) for key in map(str, range(30))}
    assert len(set(map(tuple, ids.values()))) > 25
    other = without_cache(bpe)
    assert ids == {key: other.encode_dropout(line, p=0.3, key=key) for key in reversed(list(ids))}


def test_the_cache_has_no_effect_on_the_ids(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [*HOSTILE, *sentences(100)]

    def encode() -> list[list[int]]:
        fresh = without_cache(bpe)
        return [fresh.encode_dropout(line, p=0.2, key=str(i)) for i, line in enumerate(lines)]

    usual = encode()
    monkeypatch.setattr(bpe_dropout, "MEMO_ENTRIES", 3)
    assert encode() == usual
    monkeypatch.setattr(bpe_dropout, "MEMO_LENGTH", 0)
    assert encode() == usual


DROPOUT = """
import hashlib, sys
from support.tokenizer_texts import sentences
from transduce.data.tokenizer import Tokenizer
tokenizer = Tokenizer.load(sys.argv[1])
ids = [tokenizer.encode_dropout(line, p=0.1, key=f"7:{i}") for i, line in enumerate(sentences(200))]
print(hashlib.sha256(repr(ids).encode()).hexdigest())
"""


def test_dropout_is_the_same_in_another_process(bpe: Tokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path / "tokenizer.json")
    ids = [bpe.encode_dropout(line, p=0.1, key=f"7:{i}") for i, line in enumerate(sentences(200))]
    expected = hashlib.sha256(repr(ids).encode()).hexdigest()
    for seed in ("1", "2"):
        assert in_a_new_process(DROPOUT, str(tmp_path / "tokenizer.json"), PYTHONHASHSEED=seed) == expected


def algorithm_1(word: list[str], merges: dict[tuple[str, str], int], p: float, chance: random.Random) -> list[str]:
    """Return the pieces by algorithm 1 of Provilkov et al.: each step drops each possible merge with probability p."""
    while True:
        pairs = [(merges[pair], i) for i, pair in enumerate(zip(word, word[1:], strict=False)) if pair in merges]
        candidates = [pair for pair in pairs if chance.random() >= p]
        if not candidates:
            return word
        _, i = min(candidates)
        word = [*word[:i], word[i] + word[i + 1], *word[i + 2 :]]


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_is_distributed_as_in_the_paper(bpe: Tokenizer, p: float) -> None:
    """Compare the mean and the spread of the number of pieces, and the share of the most frequent segmentation."""
    merges = {(a, b): rank for rank, (a, b) in enumerate(json.loads(bpe.to_json())["model"]["merges"])}
    chance, runs = random.Random(5), 4000
    for word in ("Kindergarten", "running", "springt"):
        book = [tuple(algorithm_1(list("▁" + word), merges, p, chance)) for _ in range(runs)]
        ours = [tuple(bpe.pieces(bpe.encode_dropout(word, p=p, key=str(i)))) for i in range(runs)]
        usual = tuple(bpe.pieces(bpe.encode(word)))
        measures: list[Callable[[tuple[str, ...]], float]] = [
            len,
            lambda pieces: len(pieces) ** 2,
            lambda pieces: len(pieces[0]),
            lambda pieces, usual=usual: pieces == usual,
        ]
        for measure in measures:
            a, b = list(map(measure, book)), list(map(measure, ours))
            error = ((statistics.variance(a) + statistics.variance(b)) / runs) ** 0.5
            assert abs(statistics.mean(a) - statistics.mean(b)) <= 4 * error


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), float("inf")])
def test_an_invalid_probability_is_refused(bpe: Tokenizer, p: float) -> None:
    with pytest.raises(UserError, match="expected 0 to 1"):
        bpe.encode_dropout("a", p=p, key="k")


def test_word_pieces_have_no_merges_to_drop() -> None:
    tokenizer = Tokenizer.learn(sentences(50), kind="wordpiece", vocab_size=600)
    with pytest.raises(UserError, match="data.bpe_dropout=0.1: expected 0, because"):
        tokenizer.encode_dropout("a", p=0.1, key="k")
