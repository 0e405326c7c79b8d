"""The decoder layers whose cross-attention aligns words best, against links that no model has made.

    python benchmarks/alignment.py MODEL --train TRAIN.en TRAIN.de --test TEST.en TEST.de [--lines 500]

Gold: a lexicon of the training text. Two words belong together if each is the other's best partner by Dice's
coefficient, of at least 0.5, in at least 10 pairs. A test pair has a link where both words occur in it once.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from transduce import Translator, load
from transduce.data.batches import collate
from transduce.data.text import read_pairs
from transduce.decoding.batched_search import length_batches
from transduce.evaluation.attention import alignment_layer, cross_attention
from transduce.evaluation.word_alignment import align_text

LEAST_PAIRS, LEAST_DICE = 10, 0.5

Places = list[tuple[str, int]]  # the words of a line, in small letters, and where they begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--train", nargs=2, required=True)
    parser.add_argument("--test", nargs=2, required=True)
    parser.add_argument("--lines", type=int, default=500)
    args = parser.parse_args()
    model, test = load(args.model), list(read_pairs(*args.test))[: args.lines]
    words = lexicon(({*dict(places(src))}, {*dict(places(tgt))}) for src, tgt in read_pairs(*args.train))
    gold = [dict(links(words, places(src), places(tgt))) for src, tgt in test]
    print(f"{len(words):,} words in the lexicon, {sum(map(len, gold)):,} links in {len(test):,} pairs\n")
    print("| layer | right links |\n|---|---|")
    weights = list(weights_of(model, test))  # of each pair, by layer
    n_layers = len(weights[0])
    choices = {f"{layer + 1}": slice(layer, layer + 1) for layer in range(n_layers)}
    choices |= {f"last {k}": slice(n_layers - k, n_layers) for k in range(2, n_layers + 1)}
    for name, layers in choices.items():
        n_right = 0
        for pair, of_pair, expected in zip(test, weights, gold, strict=True):
            own = of_pair[layers].mean(0)
            aligned = align_text(*pair, model.tokenizer, partial(lambda weights, _: [weights], own))
            origins = {word.start: word.source_start for word in aligned or ()}
            n_right += sum(origins.get(place) == origin for place, origin in expected.items())
        mark = " (used)" if name == str(alignment_layer(n_layers)) else ""
        print(f"| {name}{mark} | {100 * n_right / sum(map(len, gold)):.1f} % |")


def weights_of(model: Translator, pairs: Sequence[tuple[str, str]]) -> Iterator[np.ndarray]:
    """Yield the cross-attention (L, T, S) of each pair, as the mean over the heads of each layer."""
    tokenizer = model.tokenizer
    rows = [(np.array(tokenizer.encode(src)), np.array(tokenizer.target.encode(tgt))) for src, tgt in pairs]
    weights = {}
    for members in length_batches([max(map(len, row)) for row in rows], 1, 2_000):
        layers = cross_attention(model.models[0], collate([rows[i][0] for i in members], [rows[i][1] for i in members]))
        weights |= {i: layers[:, row] for row, i in enumerate(members)}
    return (weights[i] for i in range(len(pairs)))


def places(line: str) -> Places:
    return [(match.group().lower(), match.start()) for match in re.finditer(r"\w+", line)]


def lexicon(pairs: Iterable[tuple[set[str], set[str]]]) -> dict[str, str]:
    """Return the source word of each target word of the lexicon."""
    both, sides = Counter(), (Counter(), Counter())
    for pair in pairs:
        for counts, words in zip(sides, pair, strict=True):
            counts.update(words)
        both.update((src, tgt) for src in pair[0] for tgt in pair[1])
    dice = {pair: 2 * count / (sides[0][pair[0]] + sides[1][pair[1]]) for pair, count in both.items()}
    best = ({}, {})
    for pair in sorted(dice, key=dice.__getitem__):
        best[0][pair[0]], best[1][pair[1]] = pair, pair
    mutual = {pair for pair in best[0].values() if best[1][pair[1]] == pair}
    return {tgt: src for src, tgt in mutual if both[src, tgt] >= LEAST_PAIRS and dice[src, tgt] >= LEAST_DICE}


def links(words: dict[str, str], src: Places, tgt: Places) -> Iterator[tuple[int, int]]:
    """Yield the place of each target word that is in the lexicon, and the place of its source word."""
    counts = Counter(word for word, _ in src), Counter(word for word, _ in tgt)
    origins = dict(src)
    for word, place in tgt:
        if counts[1][word] == 1 == counts[0][words.get(word, "")]:
            yield place, origins[words[word]]


if __name__ == "__main__":
    main()
