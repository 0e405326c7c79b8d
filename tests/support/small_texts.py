"""Small corpora for several test files."""

from pathlib import Path

import numpy as np

from transduce.data.corpora import Corpus
from transduce.data.token_store import TokenStore, open_store
from transduce.data.tokenizer import Tokenizer

WORDS = "der die das ein Hund Katze läuft springt über unter Straße Häuser schnell langsam und".split()


def write_corpus(folder: Path, pairs: list[tuple[str, str]], end: str = "\n") -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.en", folder / "train.de"
    for side, path in enumerate(paths):
        path.write_bytes("".join(pair[side] + end for pair in pairs).encode())
    return paths


def sentences(count: int, seed: int = 1) -> list[tuple[str, str]]:
    chance = np.random.default_rng(seed)

    def sentence() -> str:
        return " ".join(chance.choice(WORDS, chance.integers(1, 15)))

    return [(sentence(), sentence()) for _ in range(count)]


def open_one(folder: Path, texts: tuple[Path, Path], tokenizer: Tokenizer) -> TokenStore:
    """The store of one corpus."""
    return open_store(folder, [Corpus(*texts)], tokenizer)


def contents(store: TokenStore) -> list[tuple[list[int], list[int]]]:
    return [(store[i].ids[0].tolist(), store[i].ids[1].tolist()) for i in range(len(store))]
