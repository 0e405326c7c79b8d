"""A corpus, its tokenizer and its store, for the tests of the store and of batches."""

from pathlib import Path

import pytest
from support.small_texts import PAIRS, open_one, write_corpus

from transduce.data import tokenize_corpus
from transduce.data.token_store import TokenStore
from transduce.data.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn((side for pair in PAIRS for side in pair), vocab_size=350)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_corpus(tmp_path_factory.mktemp("corpus"), PAIRS)


@pytest.fixture(scope="module")
def store(corpus: tuple[Path, Path], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return open_one(tmp_path_factory.mktemp("data") / "train", corpus, tokenizer)


@pytest.fixture
def small_corpus(tmp_path: Path) -> tuple[Path, Path]:
    return write_corpus(tmp_path / "text", PAIRS[:40])


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make token files of 7 pairs, encoded 3 at a time."""
    monkeypatch.setattr(tokenize_corpus, "FILE_PAIRS", 7)
    monkeypatch.setattr(tokenize_corpus, "CHUNK_PAIRS", 3)
