"""Constituency trees, and the brackets of the Penn Treebank: (TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)))).

A tree is flat in memory: words, tags, and phrases as labelled spans. So nothing here recurses, however deep a tree is.

Reading changes a tree to the form on which parsers are trained and scored:

- The outermost node, if its label is one of `TOP_LABELS`, is left out. Writing adds it as TOP, which EVALB ignores.
- Empty elements (-NONE-), words without a visible character, and phrases without another word are left out.
- Function tags are removed from the labels of phrases: NP-SBJ=2 is NP. Tags stay as they are.
- A word has its own parentheses: -LRB- in a file is ( in memory.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import NamedTuple

from transduce.data.text import is_blank, read_lines
from transduce.errors import UserError

TOP = "TOP"
TOP_LABELS = ("", TOP, "ROOT", "S1")
EMPTY_ELEMENT = "-NONE-"
WHITE_SPACE = " \t\r\n\f\v"  # other white space, such as U+00A0, can be within a word
_TOKEN = re.compile(rf"[()]|[^(){WHITE_SPACE}]+")
ESCAPES = {"(": "-LRB-", ")": "-RRB-"}
REMEDY = "correct the brackets"


class Phrase(NamedTuple):
    """A labelled span: the words from number `begin` to before number `end`."""

    label: str
    begin: int
    end: int


@dataclass(frozen=True)
class Tree:
    """The tree of a sentence. phrases: each phrase is before the phrases in it, which are in order from the left."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    phrases: tuple[Phrase, ...]

    def __str__(self) -> str:
        """Return the tree in brackets, on one line."""
        parts = [f"({TOP}"]
        for node in nodes(self):
            if isinstance(node, int):
                parts.append(f" ({self.tags[node]} {escape(self.words[node])})")
            else:
                parts.append(")" if node.is_end else f" ({node.label}")
        return "".join(parts) + ")"


class Edge(NamedTuple):
    """The beginning or the end of a phrase."""

    label: str
    is_end: bool


def nodes(tree: Tree) -> Iterator[Edge | int]:
    """Yield the beginning and the end of each phrase, and the number of each word, in the order of the brackets."""
    open_phrases: list[Phrase] = []
    phrases = iter(tree.phrases)
    following = next(phrases, None)
    for i in range(len(tree.words)):
        while following is not None and following.begin == i:
            yield Edge(following.label, False)
            open_phrases.append(following)
            following = next(phrases, None)
        yield i
        while open_phrases and open_phrases[-1].end == i + 1:
            yield Edge(open_phrases.pop().label, True)


def words_of(sentence: str) -> list[str]:
    """Return the words of a line, separated by ASCII white space, as they are in memory.

    A word has a visible character: U+00A0 alone is none, as in a blank line.
    """
    return [unescape(word) for word in re.split(rf"[{WHITE_SPACE}]+", sentence) if not is_blank(word)]


def escape(word: str) -> str:
    """Return a word as it is written within brackets."""
    for parenthesis, name in ESCAPES.items():
        word = word.replace(parenthesis, name)
    return word


def unescape(word: str) -> str:
    """Return a word that is written within brackets, with its own parentheses."""
    for parenthesis, name in ESCAPES.items():
        word = word.replace(name, parenthesis)
    return word


# ---- reading -----------------------------------------------------------------------------------------------------


def read_trees(path: str | PathLike[str]) -> Iterator[Tree]:
    """Yield the trees of a file in brackets. A tree may span several lines, and a line may hold several trees.

    Raises UserError, with the number of the line, for brackets that are no tree.
    """
    yield from trees_of(read_lines(path), fspath(path))


def tree_of_line(line: str, where: str, number: int) -> Tree | None:
    """Return the one tree of a line; None if the line is blank. where, number: file and number of the line."""
    trees = [*trees_of([line], where, first=number)]
    if len(trees) > 1:
        raise UserError(f"{where}:{number}: expected one tree, not {len(trees)}; write one tree on a line")
    return trees[0] if trees else None


def trees_of(lines: Iterable[str], where: str, *, first: int = 1) -> Iterator[Tree]:
    """Yield the trees of lines in brackets. where: name of the file, for messages. first: number of the first line."""
    builder = _Builder()
    number = first
    for number, line in enumerate(lines, start=first):
        for token in _TOKEN.findall(line):
            problem = builder.add(token, number)
            if problem:
                raise UserError(f"{where}:{number}: expected {problem}; {REMEDY}")
            if builder.is_complete:
                yield builder.tree()
                builder = _Builder()
    if builder.nodes:
        problem = f"a closing bracket for each opening one, but the file ends {len(builder.nodes)} too early"
        raise UserError(f"{where}:{builder.first_line}: expected {problem}; {REMEDY}")


@dataclass
class _Node:
    """An open bracket. label: None before it is read. begin: number of words before it. n_before: number of phrases."""

    begin: int
    n_before: int
    label: str | None = None
    word: str | None = None
    has_children: bool = False


class _Builder:
    """Makes a tree from its tokens: brackets, labels, tags and words."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.phrases: list[Phrase] = []
        self.first_line = 0
        self.is_complete = False

    def add(self, token: str, line: int) -> str | None:
        """Take the next token. Return the expectation that it does not meet, or None."""
        if token == "(":
            return self._open(line)
        if not self.nodes:
            return f"an opening bracket, not {token!r}"
        if token == ")":
            return self._close()
        node = self.nodes[-1]
        if node.label is None and not node.has_children:
            node.label = token
            return None
        if node.word is not None or node.has_children:
            return f"a tag before each word, but {token!r} has none"
        node.word = token
        return None

    def _open(self, line: int) -> str | None:
        if not self.nodes:
            self.first_line = line
        else:
            node = self.nodes[-1]
            if node.word is not None:
                return f"a closing bracket after the word {node.word!r}"
            if node.label is None and len(self.nodes) > 1:
                return "a label after each opening bracket, except the first of a tree"
            node.has_children = True
        self.nodes.append(_Node(len(self.words), len(self.phrases)))
        return None

    def _close(self) -> str | None:
        node = self.nodes.pop()
        if node.word is None and not node.has_children:
            return "a word or another bracket within each pair of brackets"
        label = node.label or ""
        self.is_complete = not self.nodes
        if node.word is not None:
            if label != EMPTY_ELEMENT and not is_blank(node.word):
                self.words.append(unescape(node.word))
                self.tags.append(label)
        elif node.begin < len(self.words) and not (self.is_complete and label in TOP_LABELS):
            self.phrases.insert(node.n_before, Phrase(without_function(label), node.begin, len(self.words)))
        return "a word that is not an empty element" if self.is_complete and not self.words else None

    def tree(self) -> Tree:
        return Tree(tuple(self.words), tuple(self.tags), tuple(self.phrases))


def without_function(label: str) -> str:
    """Return the label of a phrase without its function tags and indices: NP-SBJ-1 and NP=2 are NP."""
    return re.split("[-=]", label)[0] or label


def sentence_of(words: Sequence[str]) -> str:
    """Return words as a line of text."""
    return " ".join(words)
