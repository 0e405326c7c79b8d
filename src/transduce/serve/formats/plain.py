"""Plain text. A line is a text; lines that were wrapped at a width are one text, and are wrapped again."""

import re
from collections.abc import Callable, Iterator
from itertools import islice

from transduce.errors import UserError
from transduce.serve.documents import Part
from transduce.serve.markup import markup_document
from transduce.serve.markup_line import Syntax
from transduce.serve.markup_tokens import Token

MOST_LINES = 300_000
PLAIN = Syntax(str)
WIDTHS = range(40, 121)  # of text whose paragraphs are wrapped
_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|$)")
_END = re.compile(r"""[.!?…:;。！？]["'’”»)\]]*\s*$""")
_START = re.compile(r"\s*(?:[-–—*•]\s|\d+[.)]\s)")  # of an item of a list, or of a speaker


def read(text: str) -> Iterator[str | Part]:
    """Yield the texts of a plain text."""
    return markup_document(_tokens(text), PLAIN)


READERS = {"txt": read}


def lines_of(text: str) -> list[tuple[str, str]]:
    """Return the lines of a text, each with its line break. Raises UserError for too many."""
    lines = [(match[1], match[2]) for match in islice(_LINE.finditer(text), MOST_LINES + 1) if match[0]]
    if len(lines) > MOST_LINES:
        raise UserError(f"expected at most {MOST_LINES:,} lines; split the file")
    return lines


def _tokens(text: str) -> Iterator[Token]:
    lines = lines_of(text)
    width = max((len(line) for line, _ in lines), default=0)
    indent = 0  # of a line that continues the text of the line before it
    for i, (line, end) in enumerate(lines):
        following = lines[i + 1][0] if i + 1 < len(lines) else ""
        is_full = len(line) + 1 + len(following.split(maxsplit=1)[0] if following.strip() else "") > width
        yield from line_tokens(line[indent:])
        token = line_end(line, end, following, continues=width in WIDTHS and is_full)
        indent = len(following) - len(following.lstrip(" \t")) if token.kind == "break" else 0
        token.raw += following[:indent]
        yield token


def plain_token(raw: str) -> Token:
    """Return the token of a text that is written as it is read."""
    return Token("text", raw, text=raw)


def line_tokens(line: str, token_of: Callable[[str], Token] = plain_token) -> Iterator[Token]:
    """Yield the tokens of a line: the mark of an item or of a speaker, which stays, and the text."""
    mark = _START.match(line)
    if mark is not None:
        yield Token("block", mark[0])
    yield token_of(line[mark.end() if mark else 0 :])


def line_end(line: str, end: str, following: str, *, continues: bool = True) -> Token:
    """Return the token of the line break `end`: it is within a text if a sentence can continue in the next line."""
    continues = continues and bool(line.strip() and following.strip())
    if continues and not _END.search(line) and not _START.match(following):
        return Token("break", end, text=" ")
    return Token("block", end)
