"""Small corpora for several test files, and a plain reader of token stores."""

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from transduce.data.corpora import Corpus
from transduce.data.token_file import BLOCK_PAIRS, TokenFile
from transduce.data.token_store import TokenStore, open_store
from transduce.data.tokenizer import Tokenizer

WORDS = "der die das ein Hund Katze läuft springt über unter Straße Häuser schnell langsam und".split()


def write_corpus(folder: Path, pairs: list[tuple[str, str]], end: str = "\n") -> tuple[Path, Path]:
    """Write train.en and train.de, and return their paths. end: the end of each line."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.en", folder / "train.de"
    for side, path in enumerate(paths):
        path.write_bytes("".join(pair[side] + end for pair in pairs).encode())
    return paths


def sentences(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Return pairs of random sentences."""
    chance = np.random.default_rng(seed)

    def sentence() -> str:
        return " ".join(chance.choice(WORDS, chance.integers(1, 15)))

    return [(sentence(), sentence()) for _ in range(count)]


PAIRS = [*sentences(300), ("", "leer"), ("leer", ""), ("", ""), ("Hund " * 100, "Hund"), ("Hund", "Katze " * 100)]


def open_one(folder: Path, texts: tuple[Path, Path], tokenizer: Tokenizer) -> TokenStore:
    """Return the store of one corpus."""
    return open_store(folder, [Corpus(*texts)], tokenizer)


def contents(store: TokenStore) -> list[tuple[list[int], list[int]]]:
    """Return the ids of all pairs of a store."""
    src, tgt = store.read(np.arange(len(store)))
    return [(a.tolist(), b.tolist()) for a, b in zip(src, tgt, strict=True)]


def check_sums(files: Iterable[TokenFile]) -> None:
    """Read token files whole. Raises DamagedTokenFile for the first one with a checksum that differs."""
    for file in files:
        file.lengths()
        for number in range(len(file.offsets) - 1):
            file.block(number)


def read_one(store: TokenStore, pair: int) -> tuple[list[int], list[int], tuple[int, ...]]:
    """Read one pair value by value, by the file format: source ids, target ids, and the four ends of its spans."""
    number = pair
    for file in store.files:
        if number < len(file):
            break
        number -= len(file)
    block, row = divmod(number, BLOCK_PAIRS)
    size = min(BLOCK_PAIRS, len(file) - BLOCK_PAIRS * block)
    content = file.path.read_bytes()
    begin, end = struct.unpack_from("<2Q", content, file.blocks_end + 8 * block)
    values = struct.unpack_from(f"<{4 * size}Q{2 * size}I", content, begin)
    spans, counts = values[4 * row : 4 * row + 4], values[4 * size :]
    letter = {2: "H", 4: "I"}[file.contents.token_bytes]
    assert begin + 40 * size + file.contents.token_bytes * sum(counts) + 4 == end
    tokens = struct.unpack_from(f"<{sum(counts)}{letter}", content, begin + 40 * size)
    first, middle = sum(counts[: 2 * row]), sum(counts[: 2 * row + 1])
    return list(tokens[first:middle]), list(tokens[middle : middle + counts[2 * row + 1]]), spans


def files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return time and inode of each token file of a store."""
    paths = [path for path in folder.rglob("part-*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in paths}
