"""Strings in the syntax of another language, such as JSON: each line of a string is a text, or has texts in HTML."""

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transduce.data.text import is_blank
from transduce.decoding.hypothesis import Alignment
from transduce.serve.documents import Document, Part, PlainLine, Wrapper
from transduce.serve.markup import HTML, markup_document
from transduce.serve.markup_line import Syntax
from transduce.serve.markup_tokens import tokens_of

MOST_CHARACTERS = 50_000  # of a line with HTML
_TAG = re.compile(r"</?[a-z][a-z0-9]*(\s[^<>]*)?/?>", re.IGNORECASE)
_REFERENCE = re.compile(r"&(#\d+|#x[0-9a-f]+|\w+);", re.IGNORECASE)
_ESCAPES = re.compile(
    r"\\ud[89ab]..\\ud[c-f]..|\\u[0-9a-f]{4}"  # a character of JSON
    r"|\\3[0-7]{2}(?:\\2[0-7]{2})*|\\x[c-f][0-9a-f](?:\\x[89ab][0-9a-f])*"  # a character of gettext, as UTF-8
    r"|\\x[0-9a-f]+|\\[0-7]{1,3}|\\.",
    re.IGNORECASE | re.DOTALL,
)
_WITHOUT_REFERENCES = Syntax(lambda text: text.replace("<", "&lt;"), shares=False)


@dataclass(frozen=True)
class _Value(Wrapper):
    """A text of a string. raw: its source."""

    raw: str
    encode: Callable[[str], str]

    def write(self, text: str, alignment: Alignment | None) -> str:
        return self.raw if text == self.line else self.encode(self.part.write(text, alignment))


def value_parts(raw: str, decode: Callable[[str], str], encode: Callable[[str], str]) -> Iterator[str | Part]:
    """Yield the texts of one line of a string. raw: its source. decode, encode: between the source and the text."""
    text, offsets = _decoded(raw, decode)
    place = 0
    for part in _document(text):
        start = offsets[place]
        if isinstance(part, str):
            place += len(part)
            yield raw[start : offsets[place]]
        else:
            place += len(part.write(part.line, None))
            yield _Value(part, raw[start : offsets[place]], encode)


def _decoded(raw: str, decode: Callable[[str], str]) -> tuple[str, Sequence[int]]:
    """Return the text of a source, and the place in the source of each character of the text, and the end."""
    if "\\" not in raw:
        return raw, range(len(raw) + 1)
    texts = list[str]()
    offsets = array("I")
    place = 0
    for match in _ESCAPES.finditer(raw):
        offsets.extend(range(place, match.start()))
        texts += [raw[place : match.start()], decode(match[0])]
        offsets.extend([match.start()] * len(texts[-1]))
        place = match.end()
    offsets.extend(range(place, len(raw) + 1))
    return "".join([*texts, raw[place:]]), offsets


def _document(text: str) -> Document:
    if len(text) <= MOST_CHARACTERS and _TAG.search(text):
        syntax = Syntax(HTML.escape, shares=False) if _REFERENCE.search(text) else _WITHOUT_REFERENCES
        return [*markup_document(tokens_of(text), syntax)]
    core = text.strip()
    if is_blank(core):
        return [text]
    before = text[: text.index(core)]
    return [before, PlainLine(core), text[len(before) + len(core) :]]
