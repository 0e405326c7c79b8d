"""Word alignment of a translation by the cross-attention of the last layer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_CHARACTERS = 1_000  # of a sentence; the weights of a longer one take much memory

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class AlignedWord:
    """A word of the translation, text[start:end], and the word of the source that it comes from, line[source]."""

    start: int
    end: int
    source: tuple[int, int]


Alignment = tuple[AlignedWord, ...]


def align(model: Any, line: str, text: str, tag: str | None = None) -> Alignment | None:
    """Return the source word of each word of `text`, or None where the engine has no weights or a side is too long.

    The weight of two words is the mean over the heads of the last layer, the mean over the pieces of the target word,
    and the sum over the pieces of the source word. A row of the weights is the step that writes a piece.
    """
    attend = getattr(model, "attend", None)
    if attend is None or not line.split() or not text.split() or len(line) + len(text) > MAX_CHARACTERS:
        return None
    tokenizer = model.tokenizer
    sources = _words(line, tokenizer)
    targets = _words(text, tokenizer.target)
    if sources is None or targets is None:
        return None
    weights = attend(line if tag is None else f"{tag} {line}", text).cross[-1].mean(0)  # (T, S)
    weights = weights if tag is None else weights[:, 1:]
    columns = np.stack([weights[:, list(pieces)].sum(1) for _, pieces in sources], 1)
    scores = np.stack([columns[list(pieces)].mean(0) for _, pieces in targets])
    return tuple(
        AlignedWord(*place, sources[int(best)][0]) for (place, _), best in zip(targets, scores.argmax(1), strict=True)
    )


def _words(text: str, tokenizer: Any) -> Sequence[tuple[tuple[int, int], Sequence[int]]] | None:
    """Return the place and the pieces of each word of `text`; None if the pieces do not spell the text.

    A piece that has parts of two words, such as a space, belongs to the word in which it ends.
    """
    ids = tokenizer.encode(text)
    ends = [len(tokenizer.decode(ids[: i + 1])) for i in range(len(ids))]
    if not ids or tokenizer.decode(ids) != text:
        return None
    words = []
    for match in _WORD.finditer(text):
        pieces = [i for i, end in enumerate(ends) if match.start() < end <= match.end()]
        if pieces:
            words.append((match.span(), pieces))
    return words or None
