"""Word documents. Styles, fields and pictures stay; a run of text with its own format goes with its words.

A run is text with one format: <w:r><w:rPr>format</w:rPr><w:t>text</w:t></w:r>. The format of most of a paragraph's
text, its base, is around all of its translation, and is interrupted by the runs of other formats.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transduce.decoding.hypothesis import Alignment
from transduce.errors import UserError
from transduce.serve.documents import Document, Part, filled, lines_of
from transduce.serve.formats.odt import XML, XML_TAG
from transduce.serve.markup import segment
from transduce.serve.markup_tokens import Token

MEMBERS = ["word/document.xml", "word/header*.xml", "word/footer*.xml", "word/footnotes.xml", "word/endnotes.xml"]
MOST_BYTES = 1_000_000  # of a paragraph
MOST_TOKENS = 500  # of a paragraph; in a longer one, each run is a text
_PARAGRAPH = re.compile(r"</?w:p(?:\s[^>]*)?>")  # also of a text box within a paragraph
_RUBY = r"<w:ruby>(?:(?!</?w:ruby>).)*+</w:ruby>"  # words with their reading, both in runs of their own
_RUN = re.compile(rf"<w:r(?:\s[^>]*)?(?<!/)>((?:{_RUBY}|(?!<w:r(?:uby)?[\s>]).)*?)</w:r>", re.DOTALL)
_NO_END = r"(?:(?!</?w:rPr>).)*+"
_OLD_FORMAT = f"(?:<w:rPr>{_NO_END}</w:rPr>{_NO_END})?"  # the format before a tracked change of it
_FORMAT = re.compile(rf"<w:rPr>{_NO_END}{_OLD_FORMAT}</w:rPr>|<w:rPr\s*/>", re.DOTALL)
_TEXT = re.compile(r"<w:t(?:\s[^>]*)?>([^<]*)</w:t>|<w:t\s*/>|<w:lastRenderedPageBreak/>")
_SPACE = re.compile(r"<w:(?:tab|br|cr)(?:\s[^>]*)?/>")
_HYPHEN = "<w:noBreakHyphen/>"
# Fields and controls: their ends must not go apart, and words of the sentence that go into a field are lost when Word
# updates it.
_FIELD = re.compile(r"<w:fldChar\b|</?w:(?:fldSimple|sdt)\b")
_NO_TEXT = re.compile(r"<w:(?:fldChar|instrText|delText|delInstrText)\b")  # of a run that stays as it is
_OPEN, _CLOSE = '<w:t xml:space="preserve">', "</w:t>"
_EMPTY = re.compile(rf"<w:r>(?:{_FORMAT.pattern})?{_OPEN}{_CLOSE}</w:r>", re.DOTALL)


@dataclass
class _Run:
    """A run. contents: its texts and what is between them; nothing if it has only something else."""

    start: int
    end: int
    format: str
    contents: list[Token]

    @property
    def length(self) -> int:
        return sum(len(token.text) for token in self.contents if token.kind == "text")


class _Paragraph:
    """A text with its runs. source: as it is in the file. base: the format of most of it."""

    def __init__(self, source: str, base: str, inner: Document) -> None:
        self._source = source
        self._base = base
        self._inner = inner
        (self._part,) = lines_of(inner)
        self.line = self._part.line
        self.needs_alignment = self._part.needs_alignment

    def write(self, text: str, alignment: Alignment | None) -> str:
        if text == self.line:
            return self._source
        pieces = filled(self._inner, [self._part.write(text, alignment)])
        return _EMPTY.sub("", f"<w:r>{self._base}{_OPEN}{''.join(pieces)}{_CLOSE}</w:r>")


def read(xml: str) -> Iterator[str | Part]:
    """Yield the texts of the paragraphs, and what is between them."""
    place = 0
    for match in _PARAGRAPH.finditer(xml):
        yield from _stretch(xml[place : match.start()])
        yield match[0]
        place = match.end()
    yield xml[place:]


READERS = {"docx": read}


def _stretch(source: str) -> Iterator[str | Part]:
    """Yield the texts of what is between two ends of paragraphs: all of a paragraph, unless it has a text box."""
    if "<w:t" not in source:
        yield source
        return
    if len(source) > MOST_BYTES:
        raise UserError(f"expected paragraphs of at most {MOST_BYTES:,} bytes of XML; split the longest one")
    runs = [_run(match) for match in _RUN.finditer(source)]
    with_text = [i for i, run in enumerate(runs) if run.length]
    if not with_text:
        yield source
        return
    inner = runs[with_text[0] : with_text[-1] + 1]
    is_short = sum(1 + len(run.contents) for run in inner) <= MOST_TOKENS
    has_field = _FIELD.search(source, inner[0].start, inner[-1].end)
    whole = _balanced(source, inner) if is_short and not has_field else None
    place = 0
    for start, end, members in [(*whole, inner)] if whole else [(run.start, run.end, [run]) for run in inner]:
        yield source[place:start]
        yield from _paragraph(source[start:end], members, start)
        place = end
    yield source[place:]


def _run(match: re.Match[str]) -> _Run:
    format_match = _FORMAT.search(match[1])
    rest = _FORMAT.sub("", match[1], count=1)
    contents = [] if _NO_TEXT.search(rest) else [*_contents(rest)]
    if len(contents) > MOST_TOKENS:
        raise UserError(f"expected at most {MOST_TOKENS} tabs and line breaks in a run; split the paragraph")
    run = _Run(match.start(), match.end(), format_match[0] if format_match else "", contents)
    if not run.length and any(token.kind != "break" for token in contents):
        run.contents = []
    return run


def _contents(source: str) -> Iterator[Token]:
    """Yield the tokens of what is in a run, without its format."""
    depth = start = 0
    for tag in XML_TAG.finditer(source):
        start = start if depth else tag.start()
        if tag[2] and not tag[0].endswith("/>"):
            depth += -1 if tag[1] else 1
        if depth:
            continue
        element = source[start : tag.end()]
        if match := _TEXT.fullmatch(element):
            if text := html.unescape(match[1] or ""):
                yield Token("text", XML.escape(text), text=text)
        elif element == _HYPHEN:
            yield Token("text", "\u2011", text="\u2011")
        elif _SPACE.fullmatch(element):
            yield Token("break", f"{_CLOSE}{element}{_OPEN}", text="\n" if element.startswith("<w:tab") else " ")
        else:
            yield Token("mark" if element == "<w:softHyphen/>" else "atom", f"{_CLOSE}{element}{_OPEN}")


def _balanced(source: str, runs: Sequence[_Run]) -> tuple[int, int] | None:
    """Return the range of the runs with the elements around some of them, such as links; None if there is none."""
    between = "".join(source[left.end : right.start] for left, right in zip(runs, runs[1:], strict=False))
    depth = lowest = 0
    for number, match in enumerate(XML_TAG.finditer(between)):
        if number == MOST_TOKENS:
            return None
        depth += 0 if match[0].endswith("/>") or not match[2] else -1 if match[1] else 1
        lowest = min(lowest, depth)
    before = [*XML_TAG.finditer(source, 0, runs[0].start)]
    after = [*XML_TAG.finditer(source, runs[-1].end)]
    opening = before[len(before) + lowest :] if lowest else []
    closing = after[: depth - lowest]
    is_sound = len(opening) == -lowest and all(m[2] and not m[1] and not m[0].endswith("/>") for m in opening)
    if not is_sound or len(closing) < depth - lowest or not all(m[1] for m in closing):
        return None
    return opening[0].start() if opening else runs[0].start, closing[-1].end() if closing else runs[-1].end


def _paragraph(source: str, runs: Sequence[_Run], first: int) -> Iterator[str | Part]:
    """Yield the part of some runs. source: of all that is from the first to the last. first: its place."""
    lengths: dict[str, int] = {}
    for run in runs:
        lengths[run.format] = lengths.get(run.format, 0) + run.length
    base = max(lengths, key=lambda name: lengths[name])
    inner = segment([*_tokens(source, runs, first, base)], XML)
    if lines_of(inner):
        yield _Paragraph(source, base, inner)
    else:
        yield source


def _tokens(source: str, runs: Sequence[_Run], first: int, base: str) -> Iterator[Token]:
    """Yield the tokens of runs and of what is between them. The base is open around each of them."""
    opening, closing = f"<w:r>{base}{_OPEN}", f"{_CLOSE}</w:r>"
    place = 0
    for run in [*runs, None]:
        marks = ""
        for match in XML_TAG.finditer(source, place, run.start - first if run else len(source)):
            if not match[2] or match[0].endswith("/>"):
                marks += match[0]
                continue
            if marks:
                yield Token("mark", closing + marks + opening)
            yield Token("close" if match[1] else "open", closing + match[0] + opening, match[2])
            marks = ""
        if marks:
            yield Token("mark", closing + marks + opening)
        if run is None:
            return
        place = run.end - first
        if not run.contents:
            yield Token("atom", closing + source[run.start - first : place] + opening)
        elif run.format == base:
            yield from run.contents
        else:
            yield Token("open", f"{closing}<w:r>{run.format}{_OPEN}", "w:r")
            yield from run.contents
            yield Token("close", closing + opening, "w:r")
