"""Random trees, with labels and tags of few kinds so that they repeat, and words of all kinds, brackets too."""

import random

from transduce.parsing.trees import Phrase, Tree

LABELS = ("S", "NP", "VP", "PP", "ADVP", "X")
TAGS = ("NN", "DT", "-LRB-", ".", "NP", "``")  # NP: a tag may be spelled as a label
WORDS = ("a", "dog", "(", ")", "x(y)", "-LRB", "é", "\u3000a", "a\xa0b", "/NP", "NP(")


def random_tree(random: random.Random, n_words: int) -> Tree:
    """Return a tree over `n_words` words: nested, with unary chains, with words outside all phrases."""
    phrases: list[Phrase] = []
    spans = [(0, n_words)]
    while spans:
        begin, end = spans.pop()
        for _ in range(random.choice((0, 1, 1, 2))):
            phrases.append(Phrase(random.choice(LABELS), begin, end))
        if end - begin > 1:
            cuts = sorted({begin, end, *(random.randint(begin, end) for _ in range(random.randint(1, 3)))})
            children = [*zip(cuts, cuts[1:], strict=False)]
            spans += [child for child in reversed(children) if child != (begin, end)]
    words, tags = ([random.choice(kind) for _ in range(n_words)] for kind in (WORDS, TAGS))
    return Tree(tuple(words), tuple(tags), tuple(phrases))
