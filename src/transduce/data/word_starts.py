"""Where words begin in the ids of a line: the library cuts text into words, and merges no pieces of two words.

Most words begin with a space, or where letters, digits and other symbols change. The ids show both. Marks and bytes do
not tell what they belong to, and a word has at most 64 characters. So the library itself cuts a run of pieces with
marks or bytes, and a longer run.
"""

from collections.abc import Callable

import numpy as np
from tokenizers import Tokenizer as LibraryTokenizer

from transduce.data.subwords import MAX_WORD
from transduce.data.vocabulary import CONTROLS, SPACE

N_BYTES = 256
MOST_RUNS = 100_000  # of which the words are remembered
OTHER, LETTER, DIGIT, SYMBOL = range(4)  # classes of characters; OTHER: spaces, marks, bytes


class WordStarts:
    """Finds the first ids of words. vocabulary: the ids of the pieces. engine: the tokenizer of the library."""

    def __init__(self, vocabulary: dict[str, int], engine: LibraryTokenizer) -> None:
        assert engine.pre_tokenizer is not None
        self._split: Callable[[str], list[tuple[str, tuple[int, int]]]] = engine.pre_tokenizer.pre_tokenize_str
        pieces = [*vocabulary]
        class_of = {character: self._class_of(character) for character in {*"".join(pieces)}}
        classes = [[class_of[c] for c in piece.removeprefix(SPACE)] or [OTHER] for piece in pieces]
        bodies = [piece.removeprefix(SPACE) for piece in pieces]
        is_byte = np.arange(len(pieces)) < 0
        is_byte[len(CONTROLS) : len(CONTROLS) + N_BYTES] = True
        # Control pieces and tags, such as <2de>, are no text: they have letters and symbols in one piece.
        is_text = ~is_byte & np.array([len({*of_piece} - {OTHER}) <= 1 for of_piece in classes])
        self.texts = [piece if text else "" for piece, text in zip(pieces, is_text, strict=True)]
        self._contents = [piece.encode() for piece in pieces]
        for byte in range(N_BYTES):
            self._contents[len(CONTROLS) + byte] = bytes([byte])
        self._first = np.where(is_text, [of_piece[0] for of_piece in classes], OTHER)
        self._last = np.where(is_text, [of_piece[-1] for of_piece in classes], OTHER)
        self._begins = np.array([piece.startswith(SPACE) for piece in pieces])
        has_mark = np.array([OTHER in of_piece and body != "" for of_piece, body in zip(classes, bodies, strict=True)])
        self._is_unclear = is_byte | (is_text & has_mark)
        self._sizes = np.array([len(body) for body in bodies])  # in characters
        self._starts_of: dict[bytes, list[int]] = {}

    def _class_of(self, character: str) -> int:
        """Return the class of a character: what it is in one word with. A mark is in one word with two of them."""
        partners = [i for i, partner in enumerate("a1.", start=LETTER) if len(self._split(partner + character)) == 1]
        return partners[0] if len(partners) == 1 else OTHER

    def of(self, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the indices in `ids` of the first ids of words. rows: the indices of the first ids of lines."""
        first, last = self._first[ids], self._last[ids]
        is_start = self._begins[ids]
        is_start[1:] |= (last[:-1] != first[1:]) & (last[:-1] != OTHER) & (first[1:] != OTHER)
        is_start[rows] = True
        starts = np.flatnonzero(is_start)
        is_unclear = np.logical_or.reduceat(self._is_unclear[ids], starts)
        is_unclear |= np.add.reduceat(self._sizes[ids], starts) > MAX_WORD
        ends = np.append(starts[1:], len(ids))
        for run in np.flatnonzero(is_unclear).tolist():
            is_start[starts[run] + self._starts(ids[starts[run] : ends[run]])] = True
        return np.flatnonzero(is_start) if is_unclear.any() else starts

    def _starts(self, run: np.ndarray) -> list[int]:
        """Return the indices of the first ids of the words of a run, as the library cuts it."""
        key = run.tobytes()
        if key not in self._starts_of:
            if len(self._starts_of) >= MOST_RUNS:
                self._starts_of.clear()
            contents = [self._contents[token] for token in run.tolist()]
            words = self._split(b"".join(contents).decode())
            ends = np.cumsum([len(word.encode()) for word, _ in words])
            places = np.cumsum([0, *map(len, contents[:-1])])
            self._starts_of[key] = [0, *np.searchsorted(places, ends[:-1]).tolist()]
        return self._starts_of[key]
