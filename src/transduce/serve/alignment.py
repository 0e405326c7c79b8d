"""Word alignment of a translation, where the engine has one."""

from dataclasses import replace
from typing import Any

from transduce.decoding.hypothesis import Alignment

MAX_CHARACTERS = 1_000  # of a sentence and its translation; a longer alignment would delay the other sentences


def align(model: Any, line: str, text: str, tag: str | None = None) -> Alignment | None:
    """Return the source word of each word of `text`, or None where the engine knows none or the sides are too long.

    tag: before the line; it is no word of the line.
    """
    if not hasattr(model, "align") or len(line) + len(text) > MAX_CHARACTERS:
        return None
    words = model.align(line if tag is None else f"{tag} {line}", text)
    if tag is None or words is None:
        return words
    return tuple(replace(word, source_start=word.source_start - len(tag) - 1) for word in words)
