"""Trees as sequences of symbols, which a model writes, and back. The words are left out: a tag stands for each.

    top-down    (S (NP DT NN )NP (VP VBZ )VP )S     the 2017 code's order: a label before its phrase
    in-order    DT NP( NN )NP S( VBZ VP( )VP )S     a label after the first child of its phrase (Liu and Zhang, 2017)

A parenthesis is never a part of a label, so a symbol tells its kind, and the symbols of a model tell its form.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from transduce.parsing.trees import Phrase, Tree, nodes

Form = Literal["top-down", "in-order"]
FORMS: tuple[Form, ...] = get_args(Form)


def linearize(tree: Tree, form: Form = "top-down") -> list[str]:
    """Return the symbols of a tree."""
    return _in_order(tree) if form == "in-order" else _top_down(tree)


def _top_down(tree: Tree) -> list[str]:
    symbols = []
    for node in nodes(tree):
        if isinstance(node, int):
            symbols.append(tree.tags[node])
        else:
            symbols.append(f"){node.label}" if node.is_end else f"({node.label}")
    return symbols


def _in_order(tree: Tree) -> list[str]:
    symbols: list[str] = []
    waiting: list[str | None] = []  # of each open phrase its label, None once it is written
    for node in nodes(tree):
        if isinstance(node, int):
            symbols.append(tree.tags[node])
        elif node.is_end:
            symbols.append(f"){node.label}")
            waiting.pop()
        else:
            waiting.append(node.label)
            continue
        if waiting and waiting[-1] is not None:  # the first child has ended
            symbols.append(f"{waiting[-1]}(")
            waiting[-1] = None
    return symbols


def tree_of(symbols: Sequence[str], words: Sequence[str]) -> Tree:
    """Return the tree of symbols, in either form. Raises ValueError, with the reason, if they are no tree of `words`.

    Each level of open phrases has a last item, a word or a phrase, which the label of an in-order phrase takes as its
    first child: the number of its first word, and the number of phrases before it.
    """
    phrases: list[Phrase] = []
    tags: list[str] = []
    places: list[int] = []  # in `phrases`, of the open ones
    items: list[tuple[int, int] | None] = [None]  # the last item of each level
    for symbol in symbols:
        if symbol.startswith(")"):
            if not places or items[-1] is None or phrases[places[-1]].label != symbol[1:]:
                raise ValueError(f"{symbol} ends no phrase")
            items.pop()
            place = places.pop()
            phrases[place] = phrases[place]._replace(end=len(tags))
            items[-1] = (phrases[place].begin, place)
        elif symbol.startswith("("):
            places.append(len(phrases))
            phrases.append(Phrase(symbol[1:], len(tags), -1))
            items.append(None)
        elif symbol.endswith("("):
            if items[-1] is None:
                raise ValueError(f"{symbol} follows no first child")
            begin, place = items[-1]
            places.append(place)
            phrases.insert(place, Phrase(symbol[:-1], begin, -1))
            items.append(items[-1])
        else:
            items[-1] = (len(tags), len(phrases))
            tags.append(symbol)
    if places:
        raise ValueError(f"{len(places)} phrases do not end")
    if len(tags) != len(words):
        raise ValueError(f"{len(tags)} tags for {len(words)} words")
    return Tree(tuple(words), tuple(tags), tuple(phrases))
