"""Pairs that every format of a corpus must give, and the ways to read them."""

from pathlib import Path

from transduce.data import text
from transduce.data.corpora import Corpus, plain_files, read_pairs

PAIRS = [("a dog", "ein Hund"), ("", "leer"), ("two\u2028lines", "zwei\x0bZeilen"), ("x" * 50_000, "Ende"), ("z", "")]


def both_ways(corpus: Corpus, folder: Path) -> list[tuple[str, str]]:
    """Return the pairs of a corpus, which must equal the pairs of its plain files."""
    pairs = list(read_pairs(corpus))
    assert list(text.read_pairs(*plain_files(corpus, folder))) == pairs
    return pairs
