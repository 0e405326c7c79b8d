"""Text and tokenizers for the tests of tokenizers."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from tokenizers.normalizers import NFC

from transduce.data.subwords import MAX_WORD
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import CONTROLS, UNK, TokenizerLike


def encode_dropout(tokenizer: TokenizerLike, line: str, *, p: float, key: str) -> list[int]:
    """Return the ids of a line under BPE-dropout. key: any text."""
    keys = np.frombuffer(sha256(key.encode()).digest()[:8], np.uint64)
    (row,) = tokenizer.drop_merges([np.array(tokenizer.encode(line), int)], p=p, keys=keys)
    return row.tolist()


FIXED = {"bpe": 4 + 256, "wordpiece": 4 + 2 * 256}
VOCAB_SIZE = {"bpe": 600, "wordpiece": 900}


def sentences(count: int, seed: int = 1) -> Iterator[str]:
    """Yield English and German sentences in turn."""
    chance = random.Random(seed)
    english = (
        "the a two young dogs dog runs running jumps over street near house, man woman's child plays 12 red".split()
    )
    german = (
        "der die zwei jungen Hunde Hund läuft springt über Straße Häuser, Mann Frau Kindergarten spielt 12 rote".split()
    )
    for _ in range(count):
        yield " ".join(chance.choices(english, k=chance.randint(3, 12))) + "."
        yield " ".join(chance.choices(german, k=chance.randint(3, 12))) + " ."


@cache
def learn(kind: str) -> Tokenizer:
    """Learn the tokenizer of a kind that several tests share."""
    return Tokenizer.learn(sentences(500), kind=kind, vocab_size=VOCAB_SIZE[kind])


FRAGMENTS = [
    *CONTROLS, "<0x41>", "<0x0A>", "<0xFF>", "<mask>", "[UNK]", "##", "@@", "▁", "▁▁", "\ue000", "\ue0000", "\ue0001",
    " ", "  ", "\t", "\n", "\r\n", "\0", "\x7f", "\u0085", "\u00a0", "\u2028", "\u3000", "\ufeff", "\u200b", "\u202e",
    "0", "1", "a", "the", "Straße", "dog.", "don't", "İıſß", "e\u0301\u0323", "\u0301", "ⅷ½٣", "ﬁ", "𝔘", "_", "—",
    "&amp;", "नमस्ते", "ภาษาไทย", "العربيّة", "עִבְרִית", "東京都", "한국어", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪",
    "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "Ġ", "Ċ", "Â", "Ã",
]  # fmt: skip

HOSTILE = [
    "",
    *FRAGMENTS,
    *(f" {fragment} " for fragment in FRAGMENTS),
    *(f"a{fragment}b" for fragment in FRAGMENTS),
    "   three before, three after   ",
    "".join(map(chr, range(0x250))),
    "e" + "\u0301" * 300,
    *("x" * length for length in range(MAX_WORD - 2, MAX_WORD + 2)),
    *(character * 500 for character in "▁\ue000 7!東"),
]


def assert_lossless(tokenizer: TokenizerLike, lines: list[str]) -> None:
    """Check that encoding and decoding gives each line back, without control ids."""
    for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
        assert tokenizer.decode(ids) == line
        assert not ids or UNK < min(ids) <= max(ids) < tokenizer.vocab_size, line
        assert bool(ids) == bool(line)


def plain_text(line: str) -> str:
    """Return a line as a tokenizer that normalises it decodes it."""
    invisible = [*"\x7f\xad\u200b\u200e\u200f\u2060\ufeff", *map(chr, [*range(9), *range(14, 28)])]
    composed = NFC().normalize_str(line)  # of tokenizers: Python may know a newer edition of Unicode
    return " ".join(composed.translate(dict.fromkeys(map(ord, invisible))).split())


def in_a_new_process(program: str, *arguments: str, **environment: str) -> str:
    """Run a Python program in a new process and return its output."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        check=True,
        encoding="utf-8",
    ).stdout.strip()
