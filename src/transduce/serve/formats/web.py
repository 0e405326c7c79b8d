"""HTML pages. Tags, attributes, scripts and styles stay."""

import re
from collections.abc import Iterator

from transduce.errors import LineError
from transduce.serve.documents import Part
from transduce.serve.markup import HTML, markup_document
from transduce.serve.markup_line import Syntax
from transduce.serve.markup_tokens import Token, tokens_of

_ATTRIBUTE = re.compile(
    r"""\s(charset|content|http-equiv)\s*=\s*("[^"]*"|'[^']*'|[^\s"'<>]+)|"[^"]*"|'[^']*'""", re.IGNORECASE
)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';]+)")
_XML = re.compile(r"<\?xml\s[^>]*?\sencoding\s*=\s*[\"']([^\"']+)")


def read(text: str) -> Iterator[str | Part]:
    """Yield the texts of a page. A page in ASCII that declares no charset stays in ASCII: browsers would guess one."""
    declarations: list[str] = []
    is_ascii = text.isascii()

    def escape(text: str) -> str:
        escaped = HTML.escape(text)
        if declarations or not is_ascii:
            return escaped
        return escaped.encode("ascii", "xmlcharrefreplace").decode()

    return markup_document(_tokens(text, declarations), Syntax(escape, shares=HTML.shares))


READERS = {"html": read, "htm": read}


def _tokens(text: str, declarations: list[str]) -> Iterator[Token]:
    """Yield the tokens of a page. Raises LineError for a charset other than UTF-8, in which the page is written.

    declarations: gets each charset that the page declares.
    """
    place = 0
    for token in tokens_of(text):
        charset = _charset(token.raw) if token.kind in ("block", "mark") else ""
        if charset not in ("", "utf-8", "utf8"):
            number = text.count("\n", 0, place) + 1
            raise LineError(number, f"expected the charset utf-8, not {charset}; save the page in UTF-8 and declare it")
        declarations += [charset] if charset else []
        yield token
        place += len(token.raw)


def _charset(raw: str) -> str:
    """Return the charset that a tag declares for the page; "" if it declares none."""
    if match := _XML.match(raw):
        return match[1].strip().lower()
    if not re.match(r"<meta[\s/]", raw, re.IGNORECASE):
        return ""
    values = {match[1].lower(): match[2].strip("\"'").lower() for match in _ATTRIBUTE.finditer(raw) if match[1]}
    is_type = values.get("http-equiv", "").strip() == "content-type"
    match = _CHARSET.search(values.get("content", "")) if is_type else None
    return values.get("charset", "").strip() or (match[1] if match else "")
