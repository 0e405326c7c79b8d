"""OpenDocument text. Styles, fields and pictures stay; a span of text with a style goes with its words."""

import re
from collections.abc import Iterator

from transduce.serve.documents import Part
from transduce.serve.markup import HTML, markup_document
from transduce.serve.markup_line import Syntax
from transduce.serve.markup_tokens import Token, text_token

MEMBERS = ["content.xml", "styles.xml"]  # the second one has headers and footers
XML_TAG = re.compile(r"""<!--.*?-->|<\?.*?\?>|<(/?)([^\s/>?!]++)(?:"[^"]*"|'[^']*'|[^"'>])*+>""", re.DOTALL)
XML = Syntax(HTML.escape)
_PARAGRAPHS = ("text:p", "text:h")
_INLINE = ("text:span", "text:a")
_SPACES = ("text:s", "text:tab", "text:line-break")


def read(xml: str) -> Iterator[str | Part]:
    """Yield the texts of the paragraphs and headings, and what is between them."""
    return markup_document(_tokens(xml), XML)


READERS = {"odt": read}


def _tokens(xml: str) -> Iterator[Token]:
    place = 0
    stack: list[str] = []
    for match in XML_TAG.finditer(xml):
        if match.start() < place:  # within a field
            continue
        is_text = bool(stack) and stack[-1] in (*_PARAGRAPHS, *_INLINE)
        if match.start() > place:
            raw = xml[place : match.start()]
            yield text_token(raw) if is_text else Token("block", raw)
        place = match.end()
        raw = match[0]
        name = match[2] or ""
        is_closing = bool(match[1])
        is_empty = match[0].endswith("/>")
        if not name or is_empty:
            is_inner = is_text and name not in _PARAGRAPHS
            kind = "break" if name in _SPACES else "mark" if is_inner else "block"
            yield Token(kind, raw, text="\n" if name == "text:tab" else " ")
            continue
        if is_closing:
            stack.pop()
        elif is_text and name not in _INLINE and (end := _end_of_field(xml, name, place)):
            raw, place = xml[match.start() : end], end
            yield Token("atom", raw)
            continue
        else:
            stack.append(name)
        yield Token("block" if name not in _INLINE else "close" if is_closing else "open", raw, name)
    if place < len(xml):
        yield Token("block", xml[place:])


def _end_of_field(xml: str, name: str, place: int) -> int:
    """Return the end of an element whose content begins at `place`; 0 if it has paragraphs."""
    closing = f"</{name}>"
    end = xml.find(closing, place)
    content = xml[place:end]
    is_field = "<text:p" not in content and "<text:h" not in content and f"<{name}" not in content
    return end + len(closing) if is_field else 0
