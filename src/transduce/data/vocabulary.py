"""The vocabulary: the four control ids, and the base of all tokenizers."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeGuard

import numpy as np

from transduce.errors import UserError

PAD = 0
BOS = 1
EOS = 2
UNK = 3
CONTROLS = ("<pad>", "<s>", "</s>", "<unk>")  # by id
MIDDLE_MARKS = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")  # tokens before the parts of a text; no text has them
SPACE = "▁"  # U+2581. bpe, sentencepiece: means a space; wordpiece: marks a piece that does not begin a word


def split_tag(line: str, tags: Sequence[str]) -> tuple[str, str]:
    """Return the one of `tags` that a line begins with, and the rest of the line; "" and the line if there is none.

    After a tag is a space, which belongs to neither, or the end of the line.
    """
    word, _, rest = line.partition(" ") if tags else ("", "", "")
    return (word, rest) if word in tags else ("", line)


class TokenizerLike(ABC):
    """The tokenizer of one side of a model. `data.tokenizer.FORMATS` has the classes.

    kind: "bpe", "wordpiece", "sentencepiece" or "words". side: "source" or "target". vocab_size: number of ids.
    vocabulary: the pieces by id, as they are on disk, without duplicates within a side.
    normalizes: lines that look the same have the same ids. An imported tokenizer has its own rules.
    tags: the words, such as <2de>, that are one token at the beginning of a source line; none for the target.
    """

    kind: str
    side: str
    vocab_size: int
    vocabulary: list[str]
    tags: Sequence[str] = ()
    normalizes: bool = False
    symbols: Sequence[str] = ()  # words that are tokens of the target, the first ids after the control pieces
    _arguments: tuple[object, ...]  # of the class, except `side`, the last one

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line of this side, without BOS and EOS."""
        return self.encode_batch([line])[0]

    @abstractmethod
    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return `encode(line)` for each line."""

    def drop_merges(self, rows: Sequence[np.ndarray], *, p: float, keys: np.ndarray) -> list[np.ndarray]:
        """Return rows of ids of this side under BPE-dropout with probability `p`: each a function of ids, p and key.

        keys: uint64, one for each row (see `transduce.data.draws`). Raises UserError for a tokenizer without merges.
        """
        raise UserError(f"data.bpe_dropout={p}: expected 0, because the tokenizer is {self.kind} and not bpe")

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of any ids. Control ids are left out."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id in printable form."""
        return [self.vocabulary[i] for i in ids]

    def sentencepiece_models(self) -> tuple[bytes, bytes] | None:
        """Return the sentencepiece models of the source and of the target; None for a tokenizer without them."""
        return None

    def split_tag(self, line: str) -> tuple[str, str]:
        """Return the tag that a line begins with, and the rest of the line; "" and the line if it begins with none."""
        return split_tag(line, self.tags)

    def with_tags(self, tags: Sequence[str]) -> "TokenizerLike":
        """Return a tokenizer that also has the words `tags` as tags. Raises UserError if it can have none."""
        raise UserError(f"--tags={','.join(tags)}: expected a tokenizer of subwords, not of {self.kind}; leave it out")

    @property
    def target(self) -> Self:
        """The tokenizer of the target language. It has the same vocabulary, or its first `vocab_size` ids."""
        return self if self.side == "target" else self._of_target

    @cached_property
    def _of_target(self) -> Self:
        create, (*arguments, _) = self.__reduce__()
        return create(*arguments, "target")

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[object, ...]]:
        """Pickle the arguments: an unpickled engine of the library would turn the text </s> into the control id."""
        return type(self), (*self._arguments, self.side)

    @abstractmethod
    def to_json(self) -> str:
        """Return the text of `tokenizer.json`."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of `tokenizer.json`, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, path: str | PathLike[str]) -> None:
        """Write `tokenizer.json` to `path`."""
        Path(path).write_bytes(self.to_json().encode())


# --- tokenizer.json --------------------------------------------------------------------------------------------------


def json_of(content: Mapping[str, object]) -> str:
    """Return the text of a `tokenizer.json`."""
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def fields_of(text: str, *names: str) -> list[Any]:
    """Return the values of fields of a `tokenizer.json`. Raises UserError if one is missing."""
    try:
        content = json.loads(text)
        return [content[name] for name in names]
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        expected = f"{', '.join(names[:-1])} and {names[-1]}"
        raise UserError(f"it has no {expected} ({problem!r}); use another copy") from None


def are_different_texts(values: object) -> TypeGuard[list[str]]:
    """Check that a value is a list of different texts, of which none is empty."""
    if not isinstance(values, list) or not all(isinstance(text, str) and text for text in values):
        return False
    return len({*values}) == len(values)
