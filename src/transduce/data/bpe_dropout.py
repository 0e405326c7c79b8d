"""BPE-dropout (Provilkov et al. 2020) of all rows of a batch, from ids: the library's generator cannot be seeded.

    ids -> words -> the characters of words -> one merge after the other, of which some are dropped -> ids

Attempt i of a word to merge two symbols is dropped if draw i of the key of the word is below p. A word of n merges that
drops none of its first n attempts keeps its ids; with p = 0.1, this is most words.
"""

import ctypes
import functools
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as LibraryTokenizer

from transduce.data.draws import token_keys, uniform
from transduce.data.native_library import REMEDY, native_library
from transduce.data.word_starts import WordStarts


class BpeDropout:
    """The byte-pair encoder with dropout of merges, on ids that the library has made without dropout."""

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[Sequence[str]], engine: LibraryTokenizer) -> None:
        self._word_starts = WordStarts(vocabulary, engine)
        symbols = [[vocabulary[c] for c in text] or [i] for i, text in enumerate(self._word_starts.texts)]
        pairs = {(vocabulary[a], vocabulary[b]): vocabulary[a + b] for a, b in merges}
        functions = library()
        self._merger = Merger(symbols, pairs) if functions is None else CompiledMerger(functions, symbols, pairs)

    def encode(self, rows: Sequence[np.ndarray], p: float, keys: np.ndarray) -> list[np.ndarray]:
        """Return the ids of each row, a function of its ids, `p` and its key. keys: uint64, one for each row."""
        lengths = np.array([len(row) for row in rows])
        if not lengths.sum():
            return [*rows]
        ids = np.concatenate(rows).astype(np.int64)
        ends = lengths.cumsum()
        starts = self._word_starts.of(ids, (ends - lengths)[lengths > 0])
        word_keys = token_keys(keys, lengths)[starts]
        out, out_starts = self._merger.merge(ids, np.append(starts, len(ids)), word_keys, p)
        row_ends = out_starts[np.searchsorted(starts, ends)].tolist()
        return [out[begin:end] for begin, end in itertools.pairwise([0, *row_ends])]


class Merger:
    """The merges of words, by algorithm 1 of the paper. `CompiledMerger` gives the same ids faster.

    symbols: of each piece. pairs: what two symbols become, in the order of their ranks.
    """

    def __init__(self, symbols: Sequence[Sequence[int]], pairs: Mapping[tuple[int, int], int]) -> None:
        self._symbols = symbols
        self._n_merges = np.array([len(of_piece) - 1 for of_piece in symbols])
        self._merges = {pair: (rank, symbol) for rank, (pair, symbol) in enumerate(pairs.items())}

    def merge(self, ids: np.ndarray, starts: np.ndarray, keys: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of N words under BPE-dropout, and where the words start.

        ids: int64, of all words. starts (N+1,): int64, in `ids`; the last one is their end. keys (N,): uint64.
        """
        n_merges = np.add.reduceat(self._n_merges[ids], starts[:-1])
        has_drop = np.zeros(len(keys), bool)
        for attempt in range(n_merges.max()):
            has_drop |= (attempt < n_merges) & (uniform(keys, attempt) < p)
        words = [ids[begin:end].tolist() for begin, end in itertools.pairwise(starts.tolist())]
        for i in np.flatnonzero(has_drop).tolist():
            symbols = [symbol for piece in words[i] for symbol in self._symbols[piece]]
            words[i] = self._algorithm_1(symbols, keys[i : i + 1], p)
        out = np.array([*itertools.chain.from_iterable(words)], np.int64)
        return out, np.cumsum([0, *map(len, words)], dtype=np.int64)

    def _algorithm_1(self, word: list[int], key: np.ndarray, p: float) -> list[int]:
        """Return what the symbols of a word become. Each step makes the first possible merge that is not dropped."""
        drops = _drops(key, p)
        while True:
            pairs = enumerate(itertools.pairwise(word))
            merges = sorted((*self._merges[pair], i) for i, pair in pairs if pair in self._merges)
            merge = next((merge for merge in merges if not next(drops)), None)
            if merge is None:
                return word
            _, symbol, i = merge
            word[i : i + 2] = [symbol]


def _drops(key: np.ndarray, p: float) -> Iterator[bool]:
    """Yield whether each attempt of a word is dropped. key (1,): uint64."""
    for first in itertools.count(0, 64):
        yield from (uniform(key, np.arange(first, first + 64)) < p).tolist()


INTEGER = ctypes.c_int64
INTEGERS = np.ctypeslib.ndpointer(np.int64, flags="C_CONTIGUOUS")
KEYS = np.ctypeslib.ndpointer(np.uint64, flags="C_CONTIGUOUS")
ARGUMENTS = {  # of the functions of bpe_dropout.cpp
    "add_merges": [INTEGERS, INTEGERS, INTEGERS, INTEGER, INTEGERS, INTEGER],
    "merge_words": [
        *(INTEGERS, INTEGER, INTEGERS, INTEGERS),  # merges, symbols
        *(INTEGERS, INTEGERS, KEYS, INTEGER, ctypes.c_double),  # words
        *(INTEGERS, INTEGERS),  # output
    ],
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the library of bpe_dropout.cpp; None, with a warning, if it is not installed."""
    functions = native_library(Path(__file__).parent / "native", "bpe_dropout")
    if functions is None:
        logging.getLogger("transduce").warning(
            f"transduce: no compiled BPE-dropout of this version, so batches are slow for a GPU; {REMEDY}"
        )
        return None
    for name, arguments in ARGUMENTS.items():
        getattr(functions, name).argtypes, getattr(functions, name).restype = arguments, None
    return functions


class CompiledMerger:
    """`Merger` in C++."""

    def __init__(
        self, functions: ctypes.CDLL, symbols: Sequence[Sequence[int]], pairs: Mapping[tuple[int, int], int]
    ) -> None:
        self._functions = functions
        self._symbols = np.array([symbol for of_piece in symbols for symbol in of_piece], np.int64)
        self._sizes = np.array([len(of_piece) for of_piece in symbols], np.int64)
        self._first = np.append(0, self._sizes.cumsum())
        self._merges = np.full((2 << len(pairs).bit_length(), 2), -1, np.int64)  # a hash table, of which 1/4 is full
        firsts, seconds = np.array([*pairs], np.int64).reshape(-1, 2).T.copy()
        results = np.array([*pairs.values()], np.int64)
        functions.add_merges(firsts, seconds, results, len(pairs), self._merges, len(self._merges))

    def merge(self, ids: np.ndarray, starts: np.ndarray, keys: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
        """Return `Merger.merge`."""
        out, out_starts = np.empty(self._sizes[ids].sum(), np.int64), np.empty_like(starts)
        merges = self._merges, len(self._merges), self._symbols, self._first
        self._functions.merge_words(*merges, ids, starts, keys, len(keys), p, out, out_starts)
        return out[: out_starts[-1]], out_starts
