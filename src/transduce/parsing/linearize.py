"""Trees as sequences of symbols, which a model writes, and back. The words are left out: a tag replaces each.

    top-down   (S (NP DT NN )NP (VP VBZ )VP )S    the 2017 code's order: a label before its phrase, and its end
    by-word    (S(NP DT - NN)S (VP VBZ            two symbols for each word

The symbols of a word in the by-word form are the labels of the phrases that begin with it, "-" if none does, and its
tag. If phrases end with the word, the tag is followed by the label of the phrase that also contains the next word: NN)S
ends all phrases in the innermost open S, NN)S)2 all phrases in the second S, and NN) all phrases. The innermost of all
open phrases does not count, because then no phrase would end. All phrases end with the last word, whose tag has no
label.

So the symbols of word i are number 2 i and 2 i + 1: a model of the top-down form has to count tags to find the word
that comes next. And a model does not have to count the phrases that end, of which a long sentence has many at once.

A parenthesis is never a part of a label or a tag, so the form can be seen from the symbols.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from transduce.parsing.trees import TOP, Phrase, Tree, nodes

TreeForm = Literal["top-down", "by-word"]
FORMS: tuple[TreeForm, ...] = get_args(TreeForm)
NO_PHRASE = "-"  # by-word: no phrase begins with the word


class End(NamedTuple):
    """A phrase in which all phrases end: the open one of this label and number, from inside, or "" for none."""

    label: str
    number: int = 1


def linearize(tree: Tree, form: TreeForm = "top-down") -> list[str]:
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
    begins: list[list[str]] = [[] for _ in tree.words]
    ends = [0] * n
    for label, begin, end in tree.phrases:
        begins[begin].append(label)
        ends[end - 1] += end < n
    symbols, labels = [], list[str]()  # labels: of the open phrases
    for tag, new, count in zip(tree.tags, begins, ends, strict=True):
        labels += new
        opens = "".join(f"({label}" for label in new)
        symbols += [opens or NO_PHRASE, tag + _end(labels, count) if count else tag]
        del labels[len(labels) - count :]
    return symbols


def _end(labels: Sequence[str], count: int) -> str:
    """Return the text that follows a tag with which `count` phrases end. labels: labels of the open phrases."""
    *outer, label = ["", *labels[:-count]]
    number = 1 + labels[len(outer) : -1].count(label)
    return f"){label}){number}" if number > 1 else f"){label}"


def labels_of(symbol: str) -> list[str]:
    """Return the labels in a by-word symbol such as (S(NP. The symbol "-" has no label."""
    return symbol.split("(")[1:]


def tag_and_end(symbol: str) -> tuple[str, End | None]:
    """Return the tag of a by-word symbol such as NN)S)2, and the phrase in which all phrases end, or None.

    Raises ValueError for another symbol.
    """
    tag, *end = symbol.split(")")
    label, number = [*end, "1", "1"][:2]
    if not tag or "(" in symbol or len(end) > 2 or not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise ValueError(f"{symbol} is no tag with a phrase")
    return tag, End(label, int(number)) if end else None


def n_ends(labels: Sequence[str], end: End | None) -> int:
    """Return the number of phrases that end. labels: labels of the open phrases, the innermost last.

    Raises ValueError if none of them is `end`.
    """
    if end is None:
        return 0
    if not end.label and labels:
        return len(labels)
    number = end.number
    for count in range(1, len(labels)):
        number -= labels[-1 - count] == end.label
        if number == 0:
            return count
    raise ValueError(f"no open phrase is {end.label or TOP} number {end.number}")


def tree_of(symbols: Sequence[str], words: Sequence[str]) -> Tree:
    """Return the tree of symbols, in either form. Raises ValueError with the reason if they are no tree of `words`."""
    begins, tags = symbols[::2], symbols[1::2]
    is_by_word = (
        len(symbols) == 2 * len(words)
        and all(begin == NO_PHRASE or begin.startswith("(") for begin in begins)
        and not any(tag.startswith(("(", ")")) for tag in tags)
    )  # a top-down sequence with a phrase has an end, such as )NP; without a phrase it has as many symbols as words
    return _tree_by_word(begins, tags, words) if is_by_word else _tree_top_down(symbols, words)


def _tree_by_word(begins: Sequence[str], symbols: Sequence[str], words: Sequence[str]) -> Tree:
    phrases: list[Phrase] = []
    tags: list[str] = []
    places: list[int] = []  # in `phrases`, of the open ones
    for i, (begin, symbol) in enumerate(zip(begins, symbols, strict=True)):
        for label in labels_of(begin):
            places.append(len(phrases))
            phrases.append(Phrase(label, i, len(words)))
        tag, end = tag_and_end(symbol)
        tags.append(tag)
        for _ in range(n_ends([phrases[place].label for place in places], end)):
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
