"""A tree as a picture: SVG, with the words on one line at the bottom and each phrase above its words."""

import re
from html import escape

from transduce.parsing.trees import TOP, Phrase, Tree

ROW = 44  # pixels between two levels
GAP = 14  # pixels between two words
MARGIN = 16  # pixels around the picture
FONT = 14
WIDE = 0x2E80  # from here on, characters are about twice as wide


def tree_picture(tree: Tree) -> str:
    """Return the picture of a tree as the text of an SVG file."""
    widths = [max(map(_width, (word, tag))) for word, tag in zip(tree.words, tree.tags, strict=True)]
    columns = []
    x = MARGIN
    for width in widths:
        columns.append(x + width / 2)
        x += width + GAP
    size = max(x - GAP, MARGIN + _width(TOP)) + MARGIN
    phrases = [Phrase(TOP, 0, len(tree.words)), *tree.phrases]
    parents = _parents(phrases)
    levels = _levels(tree, phrases, parents)
    centres = _centres(tree, phrases, parents, columns)
    bottom = MARGIN + FONT + ROW * (max(levels) + 2)  # of the words; their tags are one row above
    parts = []
    for i, phrase in enumerate(phrases):
        y = MARGIN + FONT + ROW * levels[i]
        if i:
            parent = parents[i]
            parts.append(_line(centres[parent], MARGIN + FONT + ROW * levels[parent], centres[i], y))
        parts.append(_text(centres[i], y, phrase.label, "phrase"))
    for i, (word, tag) in enumerate(zip(tree.words, tree.tags, strict=True)):
        parent = _innermost(phrases, i)
        parts.append(_line(centres[parent], MARGIN + FONT + ROW * levels[parent], columns[i], bottom - ROW))
        parts += [_text(columns[i], bottom - ROW, tag, "tag"), _line(columns[i], bottom - ROW, columns[i], bottom)]
        parts.append(_text(columns[i], bottom, word, "word"))
    style = (
        f"text {{ font: {FONT}px sans-serif; text-anchor: middle }} .phrase {{ font-weight: bold }} "
        ".tag { fill: #06c } line { stroke: #999 } rect { fill: #fff }"
    )
    height = bottom + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size:.0f}" height="{height}" '
        f'viewBox="0 0 {size:.0f} {height}" role="img">\n<title>{_escaped(str(tree))}</title>\n'
        f'<style>{style}</style>\n<rect width="100%" height="100%"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _width(text: str) -> float:
    """Return the approximate width of a text in pixels."""
    return FONT * sum(1.0 if ord(c) >= WIDE else 0.62 for c in text)


def _parents(phrases: list[Phrase]) -> list[int]:
    """Return the number of the phrase that contains each phrase; 0 for the outermost."""
    parents = []
    around = [0]
    for i, phrase in enumerate(phrases):
        while len(around) > 1 and phrases[around[-1]].end <= phrase.begin:
            around.pop()
        parents.append(around[-1])
        if i:
            around.append(i)
    return parents


def _levels(tree: Tree, phrases: list[Phrase], parents: list[int]) -> list[int]:
    """Return the row of each phrase, counted from the top."""
    levels = [0]
    for parent in parents[1:]:
        levels.append(levels[parent] + 1)
    return levels


def _innermost(phrases: list[Phrase], word: int) -> int:
    """Return the number of the innermost phrase around a word."""
    return max(i for i, phrase in enumerate(phrases) if phrase.begin <= word < phrase.end)


def _centres(tree: Tree, phrases: list[Phrase], parents: list[int], columns: list[float]) -> list[float]:
    """Return the middle of each phrase: between the middles of its first and its last child."""
    children: list[list[float]] = [[] for _ in phrases]
    for i in range(len(tree.words)):
        children[_innermost(phrases, i)].append(columns[i])
    centres = [0.0] * len(phrases)
    for i in reversed(range(len(phrases))):
        centres[i] = (min(children[i]) + max(children[i])) / 2
        if i:
            children[parents[i]].append(centres[i])
    return centres


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line from below the text at (x1, y1) to above the text at (x2, y2)."""
    return f'<line x1="{x1:.1f}" y1="{y1 + 5:.1f}" x2="{x2:.1f}" y2="{y2 - FONT:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """Return text for XML, which has no control characters."""
    return escape(re.sub("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))
