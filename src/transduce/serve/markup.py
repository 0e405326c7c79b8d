"""HTML as lines to translate. Tags, comments and attributes stay as they are, around the words that they belong to.

- Block elements and line breaks end a segment. Inline elements leave the text of their segment, and come back around
  the words of the translation that the cross-attention gives to theirs. Where there is no alignment, or where it would
  break the nesting or empty an element, they enclose the whole segment.
- `code`, `pre`, `script`, `style`, `textarea`, `svg`, `math` and elements with translate="no" stay as they are.
- Inline tags that are not matched within their segment end it, as block tags do. So what is not sound in the request
  stays as it is.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from transduce.data.text import is_blank
from transduce.decoding.hypothesis import AlignedWord, Alignment
from transduce.serve.documents import Document

_TOKEN = re.compile(
    r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<[!?][^<>]*>|</?[A-Za-z][^\s/<>"']*(?:"[^"]*"|'[^']*'|[^'"<>])*+>""", re.DOTALL
)
_NAME = re.compile(r"</?([A-Za-z][^\s/<>]*)")
_NO_TRANSLATE = re.compile(r"""\stranslate\s*=\s*["']?no(?=["'\s/>])|\sclass\s*=\s*["'][^"']*\bnotranslate\b""", re.I)
_SPACES = re.compile(r"[ \t\r\n\f]+")
INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark meter q rp rt ruby s samp "
    "small span strike strong sub sup svg math time tt u var wbr".split()
)
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
MAX_DEPTH, MAX_TOKENS = 50, 500  # of a segment; beyond, each tag ends a segment
RAW_TEXT = frozenset(("script", "style", "textarea"))  # in which neither tags nor comments begin
OPAQUE = frozenset("code pre script style textarea svg math".split())


@dataclass
class _Token:
    """A piece of the source. kind: text, open, close, atom (stays whole in its segment), or block (ends a segment)."""

    kind: str
    raw: str
    name: str = ""


def html_document(source: str) -> Document:
    """Return the segments of an HTML fragment, and the markup between them."""
    document: list = []
    run: list[_Token] = []
    for token in [*_tokens(source), _Token("block", "")]:
        if token.kind != "block":
            run.append(token)
            continue
        document += _segments(run)
        run = []
        if token.raw:
            document.append(token.raw)
    return document


# ---- source -> tokens --------------------------------------------------------------------------------------------


def _tokens(source: str) -> Iterator[_Token]:
    place = 0
    while match := _TOKEN.search(source, place):
        if match.start() > place:
            yield _Token("text", source[place : match.start()])
        raw, place = match.group(), match.end()
        name_match = _NAME.match(raw)
        if name_match is None:
            yield _Token("atom", raw)
            continue
        name = name_match[1].lower()
        is_closing, is_void = raw.startswith("</"), name in VOID or raw.endswith("/>")
        if not is_closing and not is_void and (name in OPAQUE or _NO_TRANSLATE.search(raw)):
            end = _end_of_element(source, name, place)
            yield _Token("atom" if name in INLINE else "block", source[match.start() : end])
            place = end
        elif name not in INLINE:
            yield _Token("block", raw)
        elif is_void:
            yield _Token("atom", raw)
        else:
            yield _Token("close" if is_closing else "open", raw, name)
    if place < len(source):
        yield _Token("text", source[place:])


def _end_of_element(source: str, name: str, place: int) -> int:
    """Return the end of the element `name` whose content begins at `place`, or the end of the source."""
    depth = 1
    is_raw = name in RAW_TEXT
    comment = "" if is_raw else "<!--.*?-->|"
    tag = rf"<(/?){re.escape(name)}(?=[\s/>])[^<>]*>"
    for match in re.compile(comment + tag, re.IGNORECASE | re.DOTALL).finditer(source, place):
        if match[1]:
            depth -= 1
        elif match[1] == "" and not is_raw and not match.group().endswith("/>"):
            depth += 1
        if depth == 0:
            return match.end()
    return len(source)


# ---- tokens -> segments ------------------------------------------------------------------------------------------


@dataclass
class _Element:
    """An inline element of a segment, or an atom, which has no closing tag. start, end: range of its text."""

    opening: str
    start: int
    end: int = -1
    closing: str = ""
    children: list["_Element"] = field(default_factory=list)


def _segments(run: Sequence[_Token]) -> Document:
    """Return the segment of the tokens between two blocks; several if its inline tags do not match each other."""
    if _is_matched(run):
        return _segment(run)
    document: list = []
    for token in run:
        document += _segment([token]) if token.kind == "text" else [token.raw]
    return document


def _is_matched(run: Sequence[_Token]) -> bool:
    """Return True if each opening tag has its closing tag in the run. False also for tags beyond the limits."""
    stack: list[str] = []
    for token in run:
        if token.kind == "open":
            stack.append(token.name)
        elif token.kind == "close" and (not stack or stack.pop() != token.name):
            return False
        if len(stack) > MAX_DEPTH:
            return False
    return not stack and len(run) <= MAX_TOKENS


def _segment(run: Sequence[_Token]) -> Document:
    """Return the segment of tokens whose inline tags match, with the white space around it as it is."""
    raw = "".join(token.raw for token in run)
    line = ""
    root = _Element("", 0)
    stack = [root]
    for token in run:
        if token.kind == "text":
            text = _SPACES.sub(" ", html.unescape(token.raw))
            line += text[1:] if line[-1:] in ("", " ") and text[:1] == " " else text
        elif token.kind == "close":
            element = stack.pop()
            element.end, element.closing = len(line), token.raw
        else:
            element = _Element(token.raw, len(line), len(line))
            stack[-1].children.append(element)
            if token.kind == "open":
                stack.append(element)
    if is_blank(line):
        return [raw] if raw else []
    before, after = _outer_space(run[0]), _outer_space(run[-1], at_end=True)
    root.end = len(line)
    parts: list = [before, HtmlLine(line, root), after]
    return [part for part in parts if part]


def _outer_space(token: _Token, *, at_end: bool = False) -> str:
    if token.kind != "text":
        return ""
    stripped = token.raw.rstrip(" \t\r\n\f") if at_end else token.raw.lstrip(" \t\r\n\f")
    return token.raw[len(stripped) :] if at_end else token.raw[: len(token.raw) - len(stripped)]


class HtmlLine:
    """A segment of HTML: its text as a line, and its inline elements."""

    def __init__(self, line: str, root: _Element) -> None:
        self.line = line.strip(" ")
        self._shift = len(line) - len(line.lstrip(" "))
        self._elements = root.children
        _move(root, self._shift, len(self.line))

    @property
    def needs_alignment(self) -> bool:
        edges = 0, len(self.line)
        return any(
            (e.start, e.end) != edges and (e.start < e.end or e.start not in edges) for e in _all(self._elements)
        )

    def write(self, text: str, alignment: Alignment | None) -> str:
        """Return the translation as HTML, with the inline elements around the words that belong to theirs."""
        places = {id(e): self._place(e, text, alignment) for e in _all(self._elements)}
        order = _ordered(self._elements, places, (0, len(text)))
        if order is None:
            return _enclose(self._elements, html.escape(text, quote=False))
        return _written(order, text, places, 0, len(text))

    def _place(self, element: _Element, text: str, alignment: Alignment | None) -> tuple[int, int] | None:
        """Return where the element is in the translation; None if that is not known."""
        start, end = element.start, element.end
        if (start, end) == (0, len(self.line)):
            return 0, len(text)
        if not self.line[start:end].strip():
            return self._point(start, text, alignment)
        if alignment is None:
            return None
        runs: list[list[AlignedWord]] = [[]]
        for word in alignment:
            if word.source_start < end and start < word.source_end:
                runs[-1].append(word)
            elif runs[-1]:
                runs.append([])
        longest = max(runs, key=len)
        return (longest[0].start, longest[-1].end) if longest else None

    def _point(self, start: int, text: str, alignment: Alignment | None) -> tuple[int, int] | None:
        """Return where an element without text is: before the word that belongs to the next word of the source."""
        if start == 0:
            return 0, 0
        following = [(word.source_start, word.start) for word in alignment or () if word.source_start >= start]
        if following:
            place = min(following)[1]
            return place, place
        return (len(text), len(text)) if alignment is not None or start >= len(self.line) else None


def _move(element: _Element, shift: int, length: int) -> None:
    """Subtract `shift` from all places, and keep them in a line of `length` characters."""
    for child in _all(element.children):
        child.start, child.end = (min(max(place - shift, 0), length) for place in (child.start, child.end))


def _all(elements: Sequence[_Element]) -> Iterator[_Element]:
    for element in elements:
        yield element
        yield from _all(element.children)


def _ordered(
    elements: Sequence[_Element], places: dict[int, tuple[int, int] | None], within: tuple[int, int]
) -> list[tuple[_Element, list]] | None:
    """Return the elements by place, each with its children; None if they overlap, or have no place within `within`."""
    located = []
    for element in elements:
        place = places[id(element)]
        if place is None or not within[0] <= place[0] <= place[1] <= within[1]:
            return None
        children = _ordered(element.children, places, place)
        if children is None:
            return None
        located.append((place, element, children))
    located.sort(key=lambda item: item[0])
    for (left, _, _), (right, _, _) in zip(located, located[1:], strict=False):
        if right[0] < left[1]:
            return None
    return [(element, children) for _, element, children in located]


def _written(
    order: list[tuple[_Element, list]], text: str, places: dict[int, tuple[int, int] | None], start: int, end: int
) -> str:
    """Return text[start:end] as HTML with the elements in `order`."""
    output = []
    for element, children in order:
        first, last = places[id(element)] or (start, start)
        output.append(html.escape(text[start:first], quote=False))
        output += [element.opening, _written(children, text, places, first, last), element.closing]
        start = last
    return "".join([*output, html.escape(text[start:end], quote=False)])


def _enclose(elements: Sequence[_Element], inner: str) -> str:
    """Return `inner` within all elements: those with text one in the other, the empty ones before it."""
    empty = [e for e in elements if e.start == e.end]
    full = [e for e in elements if e.start != e.end]
    for element in reversed(full):
        inner = element.opening + _enclose(element.children, inner) + element.closing
    return "".join(_raw(e) for e in empty) + inner


def _raw(element: _Element) -> str:
    return element.opening + "".join(map(_raw, element.children)) + element.closing
