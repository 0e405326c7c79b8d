"""The vocabulary: the four control ids, and what the rest of the package needs of a tokenizer."""

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Protocol

PAD, BOS, EOS, UNK = 0, 1, 2, 3
CONTROLS = ("<pad>", "<s>", "</s>", "<unk>")  # by id
SPACE = "▁"  # U+2581. bpe, sentencepiece: means a space; wordpiece: marks a piece that does not begin a word


def split_tag(line: str, tags: Sequence[str]) -> tuple[str, str]:
    """Return the one of `tags` that a line begins with, and the rest of the line; "" and the line if there is none.

    After a tag is a space, which belongs to neither, or the end of the line.
    """
    word, _, rest = line.partition(" ") if tags else ("", "", "")
    return (word, rest) if word in tags else ("", line)


class TokenizerLike(Protocol):
    """A tokenizer: `Tokenizer` (byte-pair encoding, word pieces), one with symbols or labels, or a pair of
    sentencepiece models.

    kind: "bpe", "wordpiece" or "sentencepiece". vocab_size: the number of ids.
    """

    kind: str
    vocab_size: int

    @property
    def tags(self) -> Sequence[str]:
        """The words, such as <2de>, that are one token at the beginning of a line; none for the target language."""
        ...

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line of the source language, without BOS and EOS."""
        ...

    def split_tag(self, line: str) -> tuple[str, str]:
        """Return the tag that a line begins with, and the rest of the line; "" and the line if it begins with none."""
        ...

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return `encode(line)` for each line."""
        ...

    def encode_dropout(self, line: str, *, p: float, key: str) -> list[int]:
        """Return the ids of a line under BPE-dropout with probability `p`: a function of (line, p, key)."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of any ids. Control ids are left out."""
        ...

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id in printable form."""
        ...

    @property
    def target(self) -> "TokenizerLike":
        """The tokenizer of the target language. It has the same vocabulary, or the first `vocab_size` ids of it."""
        ...

    @property
    def vocabulary(self) -> list[str]:
        """The pieces by id, as they are on disk, without duplicates within a side."""
        ...

    @property
    def sha256(self) -> str:
        """The SHA-256 of `tokenizer.json`, in hexadecimal."""
        ...

    def to_json(self) -> str:
        """Return the text of `tokenizer.json`."""
        ...

    def save(self, path: str | PathLike[str]) -> None:
        """Write `tokenizer.json` to `path`."""
        ...
