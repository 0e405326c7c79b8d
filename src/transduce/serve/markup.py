"""HTML as lines to translate. Tags, comments and attributes stay as they are, around the words that they belong to.

- Block elements and line breaks end a segment. Inline elements leave the text of their segment, and come back around
  the words of the translation that the cross-attention gives to theirs. Where there is no alignment, or where it would
  break the nesting or empty an element, they enclose the whole segment.
- `code`, `pre`, `script`, `style`, `textarea`, `svg`, `math` and elements with translate="no" or the class
  `notranslate` stay as they are, except what has translate="yes" within them.
- Such an element, an image, and an element without text keep the white space on both sides that they have.
- Inline tags that are not matched within their segment end it, as block tags do. So what is not sound in the request
  stays as it is.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from transduce.data.text import is_blank
from transduce.decoding.hypothesis import AlignedWord, Alignment
from transduce.serve.documents import Document
from transduce.serve.markup_tokens import MAX_DEPTH, Token, tokens_of

_SPACES = re.compile(r"[ \t\r\n\f]+")
CLOSING = frozenset(".,;:!?)]}»”’…")  # marks that follow a word without a space
MAX_TOKENS = 500  # of a segment; beyond, each tag ends a segment


def html_document(source: str) -> Document:
    """Return the segments of an HTML fragment, and the markup between them."""
    document: list = []
    run: list[Token] = []
    for token in [*tokens_of(source), Token("block", "")]:
        if token.kind != "block":
            run.append(token)
            continue
        document += _segments(run)
        run = []
        if token.raw:
            document.append(token.raw)
    return document


def visible_text(source: str) -> str:
    """Return the text of an HTML fragment that is to be translated, without markup."""
    return html.unescape(" ".join(token.raw for token in tokens_of(source) if token.kind == "text"))


@dataclass
class _Element:
    """An inline element of a segment, or an atom, which has no closing tag. start, end: range of its text.

    spaces: True for each side of an atom that has white space; None for what has no place among the words.
    """

    opening: str
    start: int
    end: int = -1
    closing: str = ""
    children: list["_Element"] = field(default_factory=list)
    spaces: tuple[bool, bool] | None = None


def _segments(run: Sequence[Token]) -> Document:
    """Return the segment of the tokens between two blocks; several if its inline tags do not match each other."""
    if _is_matched(run):
        return _segment(run)
    document: list = []
    for token in run:
        document += _segment([token]) if token.kind == "text" else [token.raw]
    return document


def _is_matched(run: Sequence[Token]) -> bool:
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


def _segment(run: Sequence[Token]) -> Document:
    """Return the segment of tokens whose inline tags match, with the white space around it as it is."""
    raw = "".join(token.raw for token in run)
    run = _with_whole_atoms(run)
    line = ""
    root = _Element("", 0)
    stack = [root]
    for i, token in enumerate(run):
        if token.kind == "text":
            text = _SPACES.sub(" ", html.unescape(token.raw))
            if text[:1] in CLOSING and i and run[i - 1].kind == "atom":
                line = line.rstrip(" ")  # the model reads the mark next to its word, as if there were no atom
                _limit(root.children, len(line))
            line += text[1:] if line[-1:] in ("", " ") and text[:1] == " " else text
        elif token.kind == "close":
            element = stack.pop()
            element.end, element.closing = len(line), token.raw
        else:
            element = _Element(token.raw, len(line), len(line))
            stack[-1].children.append(element)
            if token.kind == "open":
                stack.append(element)
            elif token.kind == "atom":
                element.spaces = _has_space(reversed(run[:i]), -1), _has_space(run[i + 1 :], 0)
    if is_blank(line):
        return [raw] if raw else []
    before, after = _outer_space(run[0]), _outer_space(run[-1], at_end=True)
    parts: list = [before, HtmlLine(line.rstrip(" "), root), after]
    return [part for part in parts if part]


def _with_whole_atoms(run: Sequence[Token]) -> list[Token]:
    """Return tokens whose inline tags match, with an atom for each element without text, and for neighbouring atoms.

    White space at the edge of such an element goes out of it, where it is for a reader.
    """
    tokens: list[Token] = []
    places: list[int] = []
    for token in run:
        if token.kind == "open":
            places.append(len(tokens))
        if token.kind == "atom":
            _add_atom(tokens, token.raw)
        else:
            tokens.append(token)
        if token.kind != "close":
            continue
        place = places.pop()
        element = tokens[place:]
        texts = [i for i, token in enumerate(element) if token.kind == "text"]
        if all(_is_space(element[i]) for i in texts):
            atoms = [i for i, token in enumerate(element) if token.kind == "atom"] or [len(element)]
            before = [i for i in texts if i < atoms[0]]
            behind = [i for i in texts if i > atoms[-1]]
            tokens[place:] = [element[i] for i in before]
            _add_atom(tokens, "".join(token.raw for i, token in enumerate(element) if i not in before + behind))
            tokens += [element[i] for i in behind]
    return tokens


def _add_atom(tokens: list[Token], raw: str) -> None:
    """Append an atom, or extend the last one if only white space is between them."""
    n_spaces = next((n for n, token in enumerate(reversed(tokens)) if not _is_space(token)), len(tokens))
    place = len(tokens) - n_spaces - 1
    if place >= 0 and tokens[place].kind == "atom":
        tokens[place:] = [Token("atom", "".join(token.raw for token in tokens[place:]) + raw)]
    else:
        tokens.append(Token("atom", raw))


def _is_space(token: Token) -> bool:
    return token.kind == "text" and not html.unescape(token.raw).strip()


def _has_space(tokens: Iterable[Token], edge: int) -> bool:
    """Return True if white space comes before other text. edge: the index of a text's nearest character, 0 or -1."""
    nearest = next((token for token in tokens if token.kind in ("text", "atom")), None)
    return nearest is not None and nearest.kind == "text" and html.unescape(nearest.raw)[edge:][:1].isspace()


def _outer_space(token: Token, *, at_end: bool = False) -> str:
    if token.kind != "text":
        return ""
    stripped = token.raw.rstrip(" \t\r\n\f") if at_end else token.raw.lstrip(" \t\r\n\f")
    return token.raw[len(stripped) :] if at_end else token.raw[: len(token.raw) - len(stripped)]


class HtmlLine:
    """A segment of HTML: its text as a line, and its inline elements."""

    def __init__(self, line: str, root: _Element) -> None:
        self.line = line
        self._root = root
        root.end = len(line)
        _limit(root.children, len(line))

    @property
    def needs_alignment(self) -> bool:
        edges = 0, len(self.line)
        return any(
            (e.start, e.end) != edges and (e.start < e.end or e.start not in edges) for e in _all(self._root.children)
        )

    def write(self, text: str, alignment: Alignment | None) -> str:
        """Return the translation as HTML, with the inline elements around the words that belong to theirs."""
        order = self._ordered(self._root, (0, len(text)), text, alignment)
        pieces = self._enclose(self._root.children, [text]) if order is None else _pieces(order, text, 0, len(text))
        return _spaced(pieces)

    def _ordered(
        self, parent: _Element, within: tuple[int, int], text: str, alignment: Alignment | None
    ) -> "list[_Placed] | None":
        """Return the children of an element by place; None if they overlap, or have no place within `within`."""
        order = []
        for element in parent.children:
            if element.start < element.end:
                place = self._place(element, text, alignment)
            else:
                place = _point(element, parent, within, text, alignment)
            if place is None or not within[0] <= place[0] <= place[1] <= within[1]:
                return None
            children = self._ordered(element, place, text, alignment)
            if children is None:
                return None
            order.append(_Placed(*place, element, children))
        order.sort(key=lambda placed: placed[:2])
        if any(right.start < left.end for left, right in pairwise(order)):
            return None
        return order

    def _place(self, element: _Element, text: str, alignment: Alignment | None) -> tuple[int, int] | None:
        """Return where an element with text is in the translation; None if that is not known."""
        start, end = element.start, element.end
        if (start, end) == (0, len(self.line)):
            return 0, len(text)
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

    def _enclose(self, elements: Sequence[_Element], inner: "list[_Piece]") -> "list[_Piece]":
        """Return `inner` within all elements: those with text one in the other, the others before or after it."""
        first = [e for e in elements if e.start == e.end and (e.start < len(self.line) or not self.line)]
        last = [e for e in elements if e.start == e.end == len(self.line)]
        for element in reversed([e for e in elements if e.start != e.end]):
            inner = [_Tag(element.opening), *self._enclose(element.children, inner), _Tag(element.closing)]
        return [*(_Tag(e.opening, e.spaces) for e in first), *inner, *(_Tag(e.opening, e.spaces) for e in last)]


class _Placed(NamedTuple):
    """An element, its range in the translation, and its children."""

    start: int
    end: int
    element: _Element
    children: "list[_Placed]"


class _Tag(NamedTuple):
    """Markup of the output. spaces: as in `_Element`."""

    raw: str
    spaces: tuple[bool, bool] | None = None


_Piece = str | _Tag  # text or markup of the output


def _all(elements: Sequence[_Element]) -> Iterator[_Element]:
    for element in elements:
        yield element
        yield from _all(element.children)


def _point(
    element: _Element, parent: _Element, within: tuple[int, int], text: str, alignment: Alignment | None
) -> tuple[int, int] | None:
    """Return where an element without text is: next to the word that belongs to the neighbouring source word.

    That word is the one before an element with white space only behind it, or else the one after it. An element
    within a word stays within the word, and one at the edge of its parent stays at the edge, which is `within`.
    """
    if element.start in (parent.start, parent.end):
        place = within[0] if element.start == parent.start else within[1]
    elif alignment is None:
        return None
    else:
        place = min(max(_inner_place(element, text, alignment), within[0]), within[1])
    return place, place


def _inner_place(element: _Element, text: str, alignment: Alignment) -> int:
    start = element.start
    for word in alignment:
        if word.source_start < start < word.source_end:
            return word.start + len(word.word) * (start - word.source_start) // len(word.source)
    preceding = [(word.source_end, word.end) for word in alignment if word.source_end <= start]
    following = [(word.source_start, word.start) for word in alignment if word.source_start >= start]
    if element.spaces != (False, True) or not preceding:
        return min(following)[1] if following else len(text)
    place = max(preceding)[1]
    while place < len(text) and text[place] in CLOSING:
        place += 1
    return place


def _limit(elements: Sequence[_Element], length: int) -> None:
    """Keep the ranges of elements within a line of `length` characters."""
    for element in _all(elements):
        element.start, element.end = min(element.start, length), min(element.end, length)


def _pieces(order: Sequence[_Placed], text: str, start: int, end: int) -> list[_Piece]:
    """Return text[start:end] with the elements in `order`."""
    pieces: list[_Piece] = []
    for first, last, element, children in order:
        pieces += [text[start:first], _Tag(element.opening, element.spaces)]
        pieces += [*_pieces(children, text, first, last), _Tag(element.closing)]
        start = last
    return [*pieces, text[start:end]]


def _spaced(pieces: Sequence[_Piece]) -> str:
    """Return the HTML of the pieces, with white space where neighbouring atoms have it, and not on their other sides.

    All stays as it is around atoms without white space: without it, words would be joined.
    """
    output = [piece.raw if isinstance(piece, _Tag) else html.escape(piece, quote=False) for piece in pieces]
    words = [i for i, piece in enumerate(pieces) if isinstance(piece, str) and piece.strip()]
    for first, last in pairwise([-1, *words, len(pieces)]):
        between = range(first + 1, last)
        atoms = [(i, spaces) for i in between if (spaces := _spaces_of(pieces[i]))]
        if not any(any(spaces) for _, spaces in atoms):
            continue
        (leftmost, (has_left, _)), (rightmost, (_, has_right)) = atoms[0], atoms[-1]
        for i in between:
            if leftmost < i < rightmost or i < leftmost and not has_left or i > rightmost and not has_right:
                output[i] = output[i].strip(" ")
        for (_, left), (i, right) in pairwise(atoms):
            output[i] = " " * (left[1] or right[0]) + output[i]
        if first >= 0 and not has_left:
            output[first] = output[first].rstrip(" ")
        elif first >= 0 and " " not in [output[first][-1], *output[first + 1 : leftmost]]:
            output[leftmost] = " " + output[leftmost]
        if last < len(pieces) and not has_right:
            output[last] = output[last].lstrip(" ")
        elif last < len(pieces) and " " not in [output[last][0], *output[rightmost + 1 : last]]:
            output[rightmost] += " "
    return "".join(output)


def _spaces_of(piece: _Piece) -> tuple[bool, bool] | None:
    return piece.spaces if isinstance(piece, _Tag) else None
