"""Trees as sequences of symbols, which a model writes, and back. The words are left out: a tag replaces each.

    top-down   (S (NP DT NN )NP (VP VBZ )VP )S    the 2017 code's order: a label before its phrase, and its end
    by-word    (S(NP DT - NN)1 (VP VBZ            two symbols for each word

The symbols of a word in the by-word form are the labels of the phrases that begin with it, "-" if none does, and its
tag with the number of phrases that end with it. All phrases end with the last word, without a number. So the symbols of
word i are number 2 i and 2 i + 1: a model of the top-down form has to count tags to find the word that comes next.

A parenthesis is never a part of a label or a tag, so the symbols tell their form.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from transduce.parsing.trees import Phrase, Tree, nodes

Form = Literal["top-down", "by-word"]
FORMS: tuple[Form, ...] = get_args(Form)
NO_PHRASE = "-"  # by-word: no phrase begins with the word


def linearize(tree: Tree, form: Form = "top-down") -> list[str]:
    """Return the symbols of a tree."""
    return _by_word(tree) if form == "by-word" else _top_down(tree)


def _top_down(tree: Tree) -> list[str]:
    symbols = []
    for node in nodes(tree):
        if isinstance(node, int):
            symbols.append(tree.tags[node])
        else:
            symbols.append(f"){node.label}" if node.is_end else f"({node.label}")
    return symbols


def _by_word(tree: Tree) -> list[str]:
    n = len(tree.words)
    begins, ends = [""] * n, [0] * n
    for label, begin, end in tree.phrases:
        begins[begin] += f"({label}"
        ends[end - 1] += end < n
    tags = (f"{tag}){count}" if count else tag for tag, count in zip(tree.tags, ends, strict=True))
    return [symbol for begin, tag in zip(begins, tags, strict=True) for symbol in (begin or NO_PHRASE, tag)]


def labels_of(symbol: str) -> list[str]:
    """Return the labels in a by-word symbol such as (S(NP, of which "-" has none."""
    return symbol.split("(")[1:]


def tag_and_count(symbol: str) -> tuple[str, int]:
    """Return the tag of a by-word symbol such as NN)2, and the number of phrases that end. ValueError for another."""
    tag, parenthesis, count = symbol.partition(")")
    if not tag or "(" in symbol or (parenthesis and not (count.isascii() and count.isdigit())):
        raise ValueError(f"{symbol} is no tag with a number of phrases")
    return tag, int(count or 0)


def tree_of(symbols: Sequence[str], words: Sequence[str]) -> Tree:
    """Return the tree of symbols, in either form. Raises ValueError with the reason if they are no tree of `words`."""
    begins, tags = symbols[::2], symbols[1::2]
    is_by_word = (
        len(symbols) == 2 * len(words)
        and all(begin == NO_PHRASE or begin.startswith("(") for begin in begins)
        and not any(tag.startswith(("(", ")")) for tag in tags)
    )  # a top-down sequence with a phrase has an end, such as )NP; one without has as many symbols as words
    return _tree_by_word(begins, tags, words) if is_by_word else _tree_top_down(symbols, words)


def _tree_by_word(begins: Sequence[str], symbols: Sequence[str], words: Sequence[str]) -> Tree:
    phrases: list[Phrase] = []
    tags: list[str] = []
    places: list[int] = []  # in `phrases`, of the open ones
    for i, (begin, symbol) in enumerate(zip(begins, symbols, strict=True)):
        for label in labels_of(begin):
            places.append(len(phrases))
            phrases.append(Phrase(label, i, len(words)))
        tag, count = tag_and_count(symbol)
        tags.append(tag)
        if count > len(places):
            raise ValueError(f"{symbol} ends more than the {len(places)} open phrases")
        for _ in range(count):
            place = places.pop()
            phrases[place] = phrases[place]._replace(end=i + 1)
    return Tree(tuple(words), tuple(tags), tuple(phrases))


def _tree_top_down(symbols: Sequence[str], words: Sequence[str]) -> Tree:
    phrases: list[Phrase] = []
    tags: list[str] = []
    places: list[int] = []  # in `phrases`, of the open ones
    for symbol in symbols:
        if symbol.startswith(")"):
            if not places or phrases[places[-1]].label != symbol[1:] or phrases[places[-1]].begin == len(tags):
                raise ValueError(f"{symbol} ends no phrase")
            place = places.pop()
            phrases[place] = phrases[place]._replace(end=len(tags))
        elif symbol.startswith("("):
            places.append(len(phrases))
            phrases.append(Phrase(symbol[1:], len(tags), -1))
        else:
            tags.append(symbol)
    if places:
        raise ValueError(f"{len(places)} phrases do not end")
    if len(tags) != len(words):
        raise ValueError(f"{len(tags)} tags for {len(words)} words")
    return Tree(tuple(words), tuple(tags), tuple(phrases))
