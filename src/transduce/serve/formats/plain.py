"""Plain text. A line is a text; lines that were wrapped at a width are one text, and are wrapped again."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise

from transduce.errors import UserError
from transduce.serve.documents import Part
from transduce.serve.markup import markup_document
from transduce.serve.markup_line import BREAK, Syntax
from transduce.serve.markup_tokens import Token

MOST_LINES = 300_000
PLAIN = Syntax(str)
WIDTHS = range(40, 121)  # of text whose paragraphs are wrapped
LEAST_FULL = 0.75  # of the lines of such a text that a sentence may continue
_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|$)")
_END = re.compile(r"""[.!?…:;。！？]["'’”»)\]]*\s*$""")
# Between columns. Two spaces are also after a sentence, and in justified text.
_GAP = re.compile(r"(?<! )(?: *+\t[ \t]*+| {3,}+(?=\S))")
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
    ends = _wrapped_ends([line for line, _ in lines])
    indent = 0  # of a line that continues the text of the line before it
    for i, (line, end) in enumerate(lines):
        yield from line_tokens(line[indent:])
        following = lines[i + 1][0] if i + 1 < len(lines) else ""
        token = Token("break", end, text=" ") if i in ends else Token("block", end)
        indent = len(following) - len(following.lstrip(" \t")) if token.kind == "break" else 0
        token.raw += following[:indent]
        yield token


def _wrapped_ends(lines: Sequence[str]) -> set[int]:
    """Return the numbers of the lines that end where a text was wrapped: they have no room for the next word.

    The longest line of a list has no room either. So a text is wrapped only if most of its lines that a sentence may
    continue are full, and at least two of them, or one before a small letter.
    """
    width = max(map(len, lines), default=0)
    open_lines = [i for i, (line, following) in enumerate(pairwise(lines)) if can_continue(line, following)]
    full = {i for i in open_lines if len(lines[i]) + 1 + len(lines[i + 1].split(maxsplit=1)[0]) > width}
    is_wrapped = len(full) > 1 or any(lines[i + 1].lstrip()[0].islower() for i in full)
    return full if width in WIDTHS and is_wrapped and len(full) >= LEAST_FULL * len(open_lines) else set()


def plain_token(raw: str) -> Token:
    """Return the token of a text that is written as it is read."""
    return Token("text", raw, text=raw)


def line_tokens(line: str, token_of: Callable[[str], Token] = plain_token) -> Iterator[Token]:
    """Yield the tokens of a line: the mark of an item or of a speaker, which stays, and the text."""
    mark = _START.match(line)
    if mark is not None:
        yield Token("block", mark[0])
    yield from text_tokens(line[mark.end() if mark else 0 :], token_of)


def text_tokens(text: str, token_of: Callable[[str], Token] = plain_token) -> Iterator[Token]:
    """Yield the tokens of text within a line: its columns, and the gaps between them."""
    place = 0
    for gap in _GAP.finditer(text):
        yield token_of(text[place : gap.start()])
        yield Token("break", gap[0], text=BREAK)
        place = gap.end()
    yield token_of(text[place:])


def line_end(line: str, end: str, following: str) -> Token:
    """Return the token of the line break `end`: it is within a text if a sentence can continue in the next line."""
    return Token("break", end, text=" ") if can_continue(line, following) else Token("block", end)


def can_continue(line: str, following: str) -> bool:
    """Return True if a sentence can continue in the next line."""
    has_text = bool(line.strip() and following.strip())
    return has_text and not _END.search(line) and not _START.match(following)
