"""Minimum Bayes risk: candidate texts -> the one nearest to all of them. It knows text only. Without torch.

The utility of a candidate is the mean of its scores against all candidates as references, itself included. The score is
the chrF or the BLEU of a sentence, as sacreBLEU computes it. sacreBLEU counts the n-grams of both texts for each pair.
Here the n-grams of each text are counted once, and one product of matrices gives the matches of all pairs.

T texts, from which the pairs are (T, T): row i is text i as the hypothesis, column j is text j as the reference.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from transduce.decoding.options import MbrMetric

DIGITS = 9  # decimals of a utility; further ones depend on the order of additions and would break ties
BLOCK = 1 << 22  # elements of a table of occurrences, 16 MB: long lines have millions


def rank(candidates: Sequence[str], metric: MbrMetric) -> list[tuple[int, float]]:
    """Return the index of each candidate and its utility, from 0 to 100, the highest first; of equals the first.

    Equal candidates are returned once, as the first of them, but each counts as a reference.
    """
    texts = list(dict.fromkeys(candidates))
    counts = [candidates.count(text) for text in texts]
    utilities = np.average(SCORES[metric](texts), axis=1, weights=counts).round(DIGITS)
    order = (-utilities).argsort(kind="stable")
    return [(candidates.index(texts[i]), float(utilities[i])) for i in order]


def nearest(candidates: Sequence[str], reference: str, metric: MbrMetric) -> int:
    """Return the index of the candidate with the highest score against a reference; of equals the first."""
    scores = SCORES[metric]([*candidates, reference])[:-1, -1]
    return int(scores.round(DIGITS).argmax())


# ---- the scores of all pairs -------------------------------------------------------------------------------------


def chrf(texts: Sequence[str]) -> np.ndarray:
    """Return sacreBLEU's sentence chrF of all pairs (T, T): character n-grams up to 6, beta 2, no spaces."""
    characters = ["".join(text.split()).encode("utf-32-le", "surrogatepass") for text in texts]
    counts, matches = ngram_matches([np.frombuffer(encoded, "<u4") for encoded in characters], 6)
    exists = (counts[:, :, None] > 0) & (counts[:, None] > 0)  # (6, T, T): orders that both texts have
    orders = np.maximum(exists.sum(axis=0), 1)
    counts = np.maximum(counts, 1)
    precision = (matches / counts[:, :, None] * exists).sum(axis=0) / orders
    recall = (matches / counts[:, None] * exists).sum(axis=0) / orders
    denominator = 4 * precision + recall
    return 100 * 5 * precision * recall / np.where(denominator > 0, denominator, 1)


def bleu(texts: Sequence[str]) -> np.ndarray:
    """Return sacreBLEU's sentence BLEU of all pairs (T, T): words of 13a, exponential smoothing, effective order.

    The smoothing is sacreBLEU's default: the k-th order without a match counts 1/2^k matches. Orders that are longer
    than the hypothesis are left out. Texts that share no word score 0.
    """
    tokenize, numbers = _tokenizer(), dict[str, int]()
    words = [tokenize(text.rstrip()).split() for text in texts]
    symbols = [np.array([numbers.setdefault(word, len(numbers)) for word in line], dtype=np.int64) for line in words]
    counts, matches = ngram_matches(symbols, 4)
    totals = np.maximum(counts, 1)[:, :, None]
    halvings = (matches == 0).cumsum(axis=0)  # orders without a match so far
    precision = np.where(matches > 0, matches, 0.5**halvings) / totals
    orders = np.maximum((counts > 0).sum(axis=0), 1)[:, None]
    mean_log = (np.log(precision) * (counts > 0)[:, :, None]).sum(axis=0) / orders
    lengths = np.maximum(counts[0], 1)
    brevity = np.minimum(1 - lengths / lengths[:, None], 0)
    return np.where(matches[0] > 0, np.minimum(100 * np.exp(brevity + mean_log), 100), 0)


@functools.cache
def _tokenizer() -> Callable[[str], str]:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return Tokenizer13a()


SCORES: dict[MbrMetric, Callable[[Sequence[str]], np.ndarray]] = {"chrf": chrf, "bleu": bleu}


# ---- n-grams -----------------------------------------------------------------------------------------------------


def ngram_matches(sequences: Sequence[np.ndarray], longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of n-grams of each sequence (N, T), and the matches of each pair (N, T, T), for n = 1 to N.

    sequences: of symbols, integers below 2^32. longest: N. An n-gram that two texts have a and b times gives min(a, b)
    matches.
    """
    lengths = np.array([len(sequence) for sequence in sequences])
    counts = np.maximum(lengths - np.arange(longest)[:, None], 0)
    matches = np.zeros((longest, len(lengths), len(lengths)))
    symbols = np.concatenate(sequences).astype(np.int64)
    owners = np.arange(len(lengths)).repeat(lengths)  # the text of each symbol
    remaining = lengths.cumsum().repeat(lengths) - np.arange(len(symbols))  # symbols from here to the end of the text
    numbers = np.zeros(len(symbols), dtype=np.int64)  # a number of the n-gram that begins here
    for n in range(longest):
        places = (remaining > n).nonzero()[0]
        longer = numbers[places] << 32 | symbols[places + n]
        order = longer.argsort(kind="stable")  # equal n-grams follow each other, and among them the n-grams of a text
        groups = _runs(longer[order])
        numbers[places[order]] = groups
        matches[n] = _matches(groups, owners[places[order]], len(lengths))
    return counts, matches


def _runs(*sorted_keys: np.ndarray) -> np.ndarray:
    """Return for each element of sorted arrays the index at which its run of equal elements begins."""
    changes = [key[1:] != key[:-1] for key in sorted_keys]
    begins = np.arange(len(sorted_keys[0]))
    begins[1:] *= np.logical_or.reduce(changes)
    return np.maximum.accumulate(begins)


def _matches(groups: np.ndarray, owners: np.ndarray, n_texts: int) -> np.ndarray:
    """Return the matches of each pair of texts (T, T).

    groups, owners: (M,) of each n-gram, sorted: the index of the first that is equal to it, and its text.

    min(a, b) is the number of k for which both texts have a k-th occurrence of the n-gram. So the k-th occurrence is a
    column of zeros and ones by text, and the matches are the products of these columns.
    """
    columns = groups + np.arange(len(groups)) - _runs(groups, owners)
    matches, width = np.zeros((n_texts, n_texts)), BLOCK // n_texts
    for begin in range(0, len(groups), width):
        inside = (columns >= begin) & (columns < begin + width)
        occurs = np.zeros((n_texts, min(width, len(groups) - begin)), dtype=np.float32)  # sums below 2^24 are exact
        occurs[owners[inside], columns[inside] - begin] = 1
        matches += occurs @ occurs.T
    return matches
