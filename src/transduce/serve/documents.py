"""Texts as the lines that the model translates, and what stays between them.

A document is a list of parts: a string stays as it is, and a `Part` is translated.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from transduce.data.text import is_blank
from transduce.decoding.hypothesis import Alignment
from transduce.decoding.options import DecodingOptions, with_keywords
from transduce.serve.models import TranslationModel

Replacement = TypeVar("Replacement")


class Part(Protocol):
    """A line of a document. needs_alignment: True if `write` can use one."""

    @property
    def line(self) -> str: ...

    @property
    def needs_alignment(self) -> bool: ...

    def write(self, text: str, alignment: Alignment | None) -> str:
        """Return what takes the place of this part, given the translation of its line."""
        ...


@dataclass(frozen=True)
class Wrapper:
    """What a part has in common with the part within it: its line."""

    part: Part

    @property
    def line(self) -> str:
        return self.part.line

    @property
    def needs_alignment(self) -> bool:
        return self.part.needs_alignment


Document = Sequence[str | Part]


def lines_of(document: Document) -> list[Part]:
    """Return the parts of a document that are translated."""
    return [part for part in document if not isinstance(part, str)]


def filled(
    document: Document, outputs: Iterable[Replacement], keep: Callable[[str], Replacement] = str
) -> list[Replacement]:
    """Return what takes the place of each member of a document. outputs: of its parts. keep: makes one of a string."""
    remaining = iter(outputs)
    return [keep(member) if isinstance(member, str) else next(remaining) for member in document]


def with_alignment(options: DecodingOptions, parts: Iterable[Part], model: TranslationModel) -> DecodingOptions:
    """Return the options with which `model` translates parts: with the alignment, if one of them needs it.

    CTranslate2, which takes no constraints either, knows no alignment.
    """
    is_needed = model.takes_constraints and any(part.needs_alignment for part in parts)
    return with_keywords(options, {"alignment": True}) if is_needed else options


class PlainLine:
    """A line of plain text."""

    needs_alignment = False

    def __init__(self, line: str) -> None:
        self.line = line

    def write(self, text: str, alignment: Alignment | None) -> str:
        return text


_BREAK = re.compile(r"(\r\n|\n|\r)")


def plain_document(text: str, *, keeps_lines: bool = True) -> Document:
    """Return the lines of a text, with the line breaks between them. Blank lines stay as they are.

    keeps_lines: False makes one line of the text, with a space for each line break.
    """
    if not keeps_lines:
        text = _BREAK.sub(" ", text)
    return [part if is_blank(part) else PlainLine(part) for part in _BREAK.split(text) if part]
