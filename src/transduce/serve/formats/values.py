"""Strings in the syntax of another language, such as JSON: each line of a string is a text, or has texts in HTML."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transduce.data.text import is_blank
from transduce.decoding.hypothesis import Alignment
from transduce.serve.documents import Document, Part, lines_of
from transduce.serve.markup import HTML, markup_document
from transduce.serve.markup_line import Syntax
from transduce.serve.markup_tokens import tokens_of

MOST_CHARACTERS = 50_000  # of a line with HTML
_TAG = re.compile(r"</?[a-z][a-z0-9]*(\s[^<>]*)?/?>", re.IGNORECASE)
_REFERENCE = re.compile(r"&(#\d+|#x[0-9a-f]+|\w+);", re.IGNORECASE)
_WITHOUT_REFERENCES = Syntax(lambda text: text.replace("<", "&lt;"), shares=False)


@dataclass(frozen=True)
class _Value:
    """A line of a string. raw: its source. inner: its only text, and what is before and after it."""

    raw: str
    inner: Document
    encode: Callable[[str], str]

    @property
    def _part(self) -> Part:
        return lines_of(self.inner)[0]

    @property
    def line(self) -> str:
        return self._part.line

    @property
    def needs_alignment(self) -> bool:
        return self._part.needs_alignment

    def write(self, text: str, alignment: Alignment | None) -> str:
        if text == self.line:
            return self.raw
        return self.encode("".join(p if isinstance(p, str) else p.write(text, alignment) for p in self.inner))


def value_parts(raw: str, decode: Callable[[str], str], encode: Callable[[str], str]) -> Iterator[str | Part]:
    """Yield the texts of one line of a string. raw: its source. decode, encode: between the source and the text."""
    text = decode(raw)
    document = _document(text)
    parts = lines_of(document)
    if len(parts) == 1:
        yield _Value(raw, document, encode)
    elif not parts or encode(text) != raw:  # several blocks of HTML, whose source cannot be written again
        yield raw if not parts else _Value(raw, [_Line(text)], encode)
    else:
        for part in document:
            yield encode(part) if isinstance(part, str) else _Value(encode(part.write(part.line, None)), [part], encode)


@dataclass(frozen=True)
class _Line:
    line: str
    needs_alignment: bool = False

    def write(self, text: str, alignment: Alignment | None) -> str:
        return text


def _document(text: str) -> Document:
    if len(text) <= MOST_CHARACTERS and _TAG.search(text):
        syntax = Syntax(HTML.escape, shares=False) if _REFERENCE.search(text) else _WITHOUT_REFERENCES
        return [*markup_document(tokens_of(text), syntax)]
    core = text.strip()
    if is_blank(core):
        return [text]
    before = text[: text.index(core)]
    return [before, _Line(core), text[len(before) + len(core) :]]
