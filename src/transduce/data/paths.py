"""The tokenizer of sound files and text: a source line is the path of a file, and a target line is text.

    source    the bytes of the path, each as the id that the tokenizer of the text has for it, then padding
    target    ids of a tokenizer that was learned from only the text

So the samples of the sounds are not stored again. A batch reads the files that it needs (`family/tasks/speech.py`).
With the padding each sound counts `SOUND_TOKENS` tokens, whatever the name of its folder is.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from transduce.data.vocabulary import CONTROLS, PAD, TokenizerLike, json_of

FORMAT = "transduce paths and text"
FIRST_BYTE = len(CONTROLS)  # the id of byte 0
SOUND_TOKENS = 256  # of a source line with its EOS; a longer path has more


def path_of(ids: Iterable[int]) -> str:
    """Return the path of a row of source ids. A name that is not UTF-8 stays the name of its file."""
    return bytes(i - FIRST_BYTE for i in ids if i >= FIRST_BYTE).decode(errors="surrogateescape")


class PathsAndText(TokenizerLike):
    """The tokenizer of one side. text: the tokenizer of the target, whose first ids after the control ids are bytes."""

    def __init__(self, text: TokenizerLike, side: str = "source") -> None:
        self.kind: str = text.kind
        self.vocab_size: int = text.vocab_size
        self.vocabulary = text.vocabulary
        self.normalizes = text.normalizes
        self.side = side
        self.text = text
        self._arguments = (text,)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line of this side."""
        if self.side == "target":
            return self.text.encode_batch(lines)
        paths = [line.strip().encode(errors="surrogateescape") for line in lines]
        rows = [[FIRST_BYTE + byte for byte in path] for path in paths]
        return [row + [PAD] * (SOUND_TOKENS - 1 - len(row)) if row else [] for row in rows]

    def drop_merges(self, rows: Sequence[np.ndarray], *, p: float, keys: np.ndarray) -> list[np.ndarray]:
        """Return rows of ids of this side under BPE-dropout, which changes no path."""
        return [*rows] if self.side == "source" else self.text.drop_merges(rows, p=p, keys=keys)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids of this side: a path, or text."""
        return self.text.decode(ids) if self.side == "target" else path_of(ids)

    def to_json(self) -> str:
        """Return the text of `tokenizer.json`."""
        return json_of({"format": FORMAT, "text": self.text.to_json()})
