"""A line of marked-up text: its words, its inline elements, and where these go in its translation."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from transduce.decoding.hypothesis import AlignedWord, Alignment
from transduce.decoding.phrases.matching import UNSPACED, WORD, kind_of

CLOSING = frozenset(".,;:!?)]}»”’…、。，．：；！？）］｝」』》〉】〕")  # marks that follow a word without a space
OPENING = frozenset("([{¿¡„‚（［｛「『《〈【〔")  # marks that come before a word without a space
WIDE = frozenset(mark for mark in CLOSING | OPENING if mark > "\u3000")  # without a space on either side
BREAK = "\n"  # in a translation, the place of a line break; in a line, a tab: its columns are translated one by one


@dataclass(frozen=True)
class Syntax:
    """How a format writes text.

    escape: text -> its source. shares: an element for which the alignment has no place is around its share of the
    words; False: around the whole segment.
    """

    escape: Callable[[str], str]
    shares: bool = True


class Side(NamedTuple):
    """What a side of an atom has in the source: white space or not, and the nearest character; " " at an edge."""

    has_space: bool
    character: str


Sides = tuple[Side, Side]  # left and right


@dataclass
class Element:
    """An inline element of a segment, or an atom, which has no closing tag. start, end: range of its text.

    sides: of an atom; None for what has no place among the words.
    """

    opening: str
    start: int
    end: int = -1
    closing: str = ""
    children: list["Element"] = field(default_factory=list)
    sides: Sides | None = None


class MarkupLine:
    """A segment as a line, its inline elements, and its source, which stays where the line is its own translation.

    breaks: place and source of each line break and tab within the segment. A line break goes to its share of the
    translation of its column; a tab is between two columns.
    """

    def __init__(
        self, line: str, root: Element, source: str, syntax: Syntax, breaks: Sequence[tuple[int, str]] = ()
    ) -> None:
        self.line = line
        self._root = root
        self._source = source
        self._syntax = syntax
        self._breaks = breaks
        root.end = len(line)
        limit(root.children, len(line))

    @property
    def needs_alignment(self) -> bool:
        edges = 0, len(self.line)
        return any(
            (e.start, e.end) != edges and (e.start < e.end or e.start not in edges) for e in _all(self._root.children)
        )

    def write(self, text: str, alignment: Alignment | None) -> str:
        """Return the source of the translation, with the inline elements around the words that belong to theirs."""
        if text == self.line:
            return self._source
        text, breaks = _broken_columns(text, self._breaks, self.line)
        order = self._ordered(self._root, (0, len(text)), text, alignment)
        if order is None and self._syntax.shares:
            order = self._ordered(self._root, (0, len(text)), text, shared_words(self.line, text))
        whole = [_Piece(text, is_text=True)]
        pieces = self._enclose(self._root.children, whole) if order is None else _pieces(order, text, 0, len(text))
        sources = iter(breaks)
        return _spaced(pieces, lambda text: re.sub(BREAK, lambda _: next(sources), self._syntax.escape(text)))

    def _ordered(
        self, parent: Element, within: tuple[int, int], text: str, alignment: Alignment | None
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

    def _place(self, element: Element, text: str, alignment: Alignment | None) -> tuple[int, int] | None:
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

    def _enclose(self, elements: Sequence[Element], inner: "list[_Piece]") -> "list[_Piece]":
        """Return `inner` within all elements: those with text one in the other, the others before or after it."""
        first = [e for e in elements if e.start == e.end and (e.start < len(self.line) or not self.line)]
        last = [e for e in elements if e.start == e.end == len(self.line)]
        for element in reversed([e for e in elements if e.start != e.end]):
            inner = [_Piece(element.opening), *self._enclose(element.children, inner), _Piece(element.closing)]
        return [*(_Piece(e.opening, e.sides) for e in first), *inner, *(_Piece(e.opening, e.sides) for e in last)]


class _Placed(NamedTuple):
    """An element, its range in the translation, and its children."""

    start: int
    end: int
    element: Element
    children: "list[_Placed]"


class _Piece(NamedTuple):
    """Text or markup of the output. sides: as in `Element`. is_text: its source is still to be written."""

    raw: str
    sides: Sides | None = None
    is_text: bool = False


_UNSPACED = re.compile(r"(?<=[^\s])[\u3040-\u9fff]")  # before which a line can end
_WORD = re.compile(r"[\u3040-\u9fff]|\w+|[^\w\s]")


def shared_words(line: str, text: str) -> Alignment:
    """Return an alignment in which each word of `text` comes from the word at the same share of `line`."""
    sources, words = [*_WORD.finditer(line)], [*_WORD.finditer(text)]
    origins = [sources[i * len(sources) // len(words)] for i in range(len(words))] if sources else []
    return tuple(
        AlignedWord(word.group(), word.start(), origin.group(), origin.start())
        for word, origin in zip(words, origins, strict=False)
    )


def _broken_columns(text: str, breaks: Sequence[tuple[int, str]], line: str) -> tuple[str, list[str]]:
    """Return a translation with BREAK for some of its spaces, and the source of these breaks and of its tabs.

    If it has other columns than the line, as a line with a constraint has, its tabs are line breaks.
    """
    columns, outputs = line.split(BREAK), text.split(BREAK)
    if len(columns) != len(outputs):
        return _broken(text.replace(BREAK, " "), breaks, len(line))
    sources, start = list[str](), 0
    for i, column in enumerate(columns):
        end = start + len(column)
        inner = [(place - start, source) for place, source in breaks if start <= place < end]
        outputs[i], of_column = _broken(outputs[i], inner, len(column))
        sources += of_column
        if i < len(columns) - 1:
            sources.append("".join(source for place, source in breaks if place == end))
        start = end + 1
    return BREAK.join(outputs), sources


def _broken(text: str, breaks: Sequence[tuple[int, str]], length: int) -> tuple[str, list[str]]:
    """Return a translation with BREAK for some of its spaces, and the source of these breaks.

    breaks: place and source of each break in the line, of `length` characters. Beyond the spaces, they go between
    characters of a language without spaces. Of those that still have no place, line breaks are left out, and tags and
    tabs go to the end.
    """
    spaces = [i for i, character in enumerate(text) if character == " "]
    if len(spaces) < len(breaks):
        spaces = sorted([*spaces, *(match.start() for match in _UNSPACED.finditer(text))])
    sources, first = list[str](), 0
    for place, source in breaks[: len(spaces)]:
        last = len(spaces) - (min(len(breaks), len(spaces)) - len(sources)) + 1  # leaves a space for each later break
        share = place * len(text) / length
        chosen = min(range(first, last), key=lambda i: abs(spaces[i] - share))
        index = spaces[chosen]
        sources.append(source + text[index].strip(" "))  # replaces one character, so that no other place changes
        text = text[:index] + BREAK + text[index + 1 :]
        first = chosen + 1
    tags = [source for _, source in breaks[len(spaces) :] if source.startswith("<") or not re.search(r"[\r\n]", source)]
    return text + BREAK * len(tags), sources + tags


def _all(elements: Sequence[Element]) -> Iterator[Element]:
    for element in elements:
        yield element
        yield from _all(element.children)


def _point(
    element: Element, parent: Element, within: tuple[int, int], text: str, alignment: Alignment | None
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


def _inner_place(element: Element, text: str, alignment: Alignment) -> int:
    start = element.start
    for word in alignment:
        if word.source_start < start < word.source_end:
            number = start - word.source_start
            place = word.start + len(word.word) * number // len(word.source)
            is_between_words = kind_of(word.source[number]) == UNSPACED and kind_of(text[place]) == WORD
            return word.end if is_between_words else place
    preceding = [(word.source_end, word.end) for word in alignment if word.source_end <= start]
    following = [(word.source_start, word.start) for word in alignment if word.source_start >= start]
    is_next_to_preceding = element.sides is not None and [side.has_space for side in element.sides] == [False, True]
    if not is_next_to_preceding or not preceding:
        return min(following)[1] if following else len(text)
    place = max(preceding)[1]
    while place < len(text) and text[place] in CLOSING:
        place += 1
    return place


def limit(elements: Sequence[Element], length: int) -> None:
    """Keep the ranges of elements within a line of `length` characters."""
    for element in _all(elements):
        element.start, element.end = min(element.start, length), min(element.end, length)


def _pieces(order: Sequence[_Placed], text: str, start: int, end: int) -> list[_Piece]:
    """Return text[start:end] with the elements in `order`."""
    pieces: list[_Piece] = []
    for first, last, element, children in order:
        pieces += [_Piece(text[start:first], is_text=True), _Piece(element.opening, element.sides)]
        pieces += [*_pieces(children, text, first, last), _Piece(element.closing)]
        start = last
    return [*pieces, _Piece(text[start:end], is_text=True)]


def _is_apart(side: Side, character: str, *, is_left: bool) -> bool:
    """Return True if white space belongs between an atom and a character next to it in the translation.

    side: of the source. Before a mark that is close to its neighbour, such as a full stop, that is if the source has
    such a mark and white space there. Next to a word, that is also if the source has a mark without white space there.
    """
    marks, others = (OPENING, CLOSING - {"’"}) if is_left else (CLOSING, OPENING)

    def is_close(character: str) -> bool:
        return character in marks or character in WIDE

    def is_word(character: str) -> bool:  # or the end of words in brackets, or the beginning
        return kind_of(character) in (WORD, UNSPACED) or character in others and character not in WIDE

    if is_close(character):
        return side.has_space and is_close(side.character)
    if not side.has_space and (side.character in WIDE or kind_of(side.character) == UNSPACED):
        return kind_of(character) == WORD
    return side.has_space or is_word(character) and not is_word(side.character)


def _has_space(pieces: Sequence[_Piece]) -> bool:
    return any(piece.is_text and piece.raw.isspace() for piece in pieces)


def _spaced(pieces: Sequence[_Piece], escape: Callable[[str], str]) -> str:
    """Return the source of the pieces, with white space around the atoms as `_is_apart` says.

    All stays as it is around atoms without white space: without it, words would be joined.
    """
    output = [escape(piece.raw) if piece.is_text else piece.raw for piece in pieces]
    words = [i for i, piece in enumerate(pieces) if piece.is_text and piece.raw.strip()]
    for first, last in pairwise([-1, *words, len(pieces)]):
        between = range(first + 1, last)
        atoms = [(i, sides) for i in between if (sides := pieces[i].sides)]
        if not atoms:
            continue
        (leftmost, (left, _)), (rightmost, (_, right)) = atoms[0], atoms[-1]
        preceding = pieces[first].raw if first >= 0 else left.character
        following = pieces[last].raw if last < len(pieces) else right.character
        has_left = _is_apart(left, preceding.rstrip()[-1:] or " ", is_left=True)
        has_right = _is_apart(right, following.lstrip()[:1] or " ", is_left=False)
        gaps = [right.has_space or left.has_space for (_, (_, right)), (_, (left, _)) in pairwise(atoms)]
        if not (has_left or has_right or any(gaps)):
            continue
        for i in between:
            if leftmost < i < rightmost or i < leftmost and not has_left or i > rightmost and not has_right:
                output[i] = output[i].strip(" ")
        for has_space, (i, _) in zip(gaps, atoms[1:], strict=True):
            output[i] = " " * has_space + output[i]
        if first >= 0 and not has_left:
            output[first] = output[first].rstrip(" ")
        elif first >= 0 and not preceding[-1].isspace() and not _has_space(pieces[first + 1 : leftmost]):
            output[leftmost] = " " + output[leftmost]
        if last < len(pieces) and not has_right:
            output[last] = output[last].lstrip(" ")
        elif last < len(pieces) and not following[0].isspace() and not _has_space(pieces[rightmost + 1 : last]):
            output[rightmost] += " "
    return "".join(output)
