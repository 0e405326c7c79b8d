"""Misfits: pairs in which a side is no full translation of the other, found by what the corpus itself teaches.

From a sample of the corpus, the program makes pairs that do not fit: a source with the target of another pair, and
pairs of which one side is cut. It learns to tell them from the pairs of the sample (logistic regression). The features
are how well the words of the sides translate each other (`data.lexicon`), the lengths, and how the lines end.

    score    log-odds of a misfit. A pair is one if its score is rare among good pairs, by one of two signs:
    valley   the density of the scores in the corpus has fallen to a hundredth of its peak, or rises again. Beyond
             that point a clean corpus has about one pair in 200.
    plateau  the density in the corpus, divided by the density in the made misfits, falls with the score to a constant:
             the share of misfits in the corpus. It is 0 in a clean one.

A pair never scores by words that were learned from it: the sample has FOLDS parts, and a part is scored by the words of
the others.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from transduce.data.lexicon import flat_entries, lexical_probabilities
from transduce.data.text import LinePair
from transduce.evaluation.calibration import Floats, logistic_weights

FOLDS = 4
SAMPLE_PAIRS = 40_000
LEAST_PAIRS = 1_000  # to learn from
LEAST_GOOD = 250  # the same, without misfits
LONGEST = 100  # words of a side that count
VOCABULARY = 30_000  # words, without the rare ones
STEM = 6  # characters of a word that count, so that its forms share their translations
MOST_BINS = 100
LEAST_IN_BIN = 20  # fakes
RARE = 0.01  # of the density of the most frequent scores
DIP = 0.1  # the same, where the density rises again
NEAR = 3.0  # times the share of misfits: the densities where a pair is a misfit
PORTION = 4_000  # pairs at a time

UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff"  # scripts without spaces: each character is a word
WORD = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])[^\W_])+")
END = re.compile(r"""[.!?…。！？:;]["')\]”’»“]*\s*$""")


def words_of(line: str) -> list[str]:
    """Return the beginnings of the words of a line in small letters."""
    return [word[:STEM] for word in WORD.findall(line.casefold())[:LONGEST]]


# ---- features ----------------------------------------------------------------------------------------------------


class _Vocabulary:
    """The words that a text has more than once, as ids from 1. 0 stands for all others, and for the empty word."""

    def __init__(self, lines: Iterable[Sequence[str]]) -> None:
        counts = Counter(word for line in lines for word in line)
        frequent = [(word, n) for word, n in counts.most_common(VOCABULARY) if n > 1]
        self.ids = {word: i for i, (word, _) in enumerate(frequent, start=1)}
        self.size = len(self.ids) + 1
        numbers = np.array([1, *(n for _, n in frequent)], float)
        self.shares: Floats = numbers / numbers.sum()

    def __call__(self, words: Sequence[str]) -> list[int]:
        return [self.ids.get(word, 0) for word in words]


class _Lexicon:
    """How much more likely the words of one side are, given the words of the other: log p(t | sentence) / p(t)."""

    def __init__(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], vocabulary: _Vocabulary) -> None:
        self.shares, self.n_target = vocabulary.shares, vocabulary.size
        self.keys, self.probabilities = lexical_probabilities(src, tgt, self.n_target, empty=0)

    def gains(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> Floats:
        """Return the logarithm for each target word of all pairs, one after the other; NaN for an unknown word."""
        keys, begins = flat_entries(src, tgt, self.n_target, empty=0)
        if not (len(keys) and len(self.keys)):
            return np.full(len(begins), np.nan)
        places = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        probabilities = np.where(self.keys[places] == keys, self.probabilities[places], 0)
        means = np.add.reduceat(probabilities, begins) / np.diff(begins, append=len(keys))
        words = keys[begins] % self.n_target
        gains = np.log(0.9 * means / self.shares[words] + 0.02).clip(max=8)
        return np.where(words == 0, np.nan, gains)


class _Features:
    """The features of pairs, by the words of a text."""

    def __init__(self, text: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
        sides = [src for src, _ in text], [tgt for _, tgt in text]
        self.vocabularies = [_Vocabulary(side) for side in sides]
        src, tgt = ([ids_of(line) for line in side] for ids_of, side in zip(self.vocabularies, sides, strict=True))
        self.lexicons = _Lexicon(src, tgt, self.vocabularies[1]), _Lexicon(tgt, src, self.vocabularies[0])
        self.ratio = sum(map(len, tgt)) / max(1, sum(map(len, src)))  # target words for a source word

    def __call__(self, pairs: Sequence[LinePair]) -> Floats:
        """Return the features (pairs, F)."""
        portions = [self._portion(pairs[i : i + PORTION]) for i in range(0, len(pairs), PORTION)]
        return np.concatenate(portions)

    def _portion(self, pairs: Sequence[LinePair]) -> Floats:
        words = [[words_of(pair[side]) for pair in pairs] for side in (0, 1)]
        ids = [[ids_of(line) for line in side] for ids_of, side in zip(self.vocabularies, words, strict=True)]
        lengths = [np.array([len(line) for line in side]) for side in ids]
        columns = [
            *_translated(self.lexicons[0].gains(ids[0], ids[1]), lengths[1]),
            *_translated(self.lexicons[1].gains(ids[1], ids[0]), lengths[0]),
            *_lengths(lengths[0] * self.ratio, lengths[1]),
            *_lengths(*(np.array([len(pair[side]) for pair in pairs]) for side in (0, 1))),
            *map(np.log1p, lengths),
        ]
        ends = [np.array([END.search(pair[side]) is not None for pair in pairs]) for side in (0, 1)]
        columns += [ends[0] & ~ends[1], ends[1] & ~ends[0]]
        n_common = np.array([len({*src} & {*tgt}) for src, tgt in zip(*words, strict=True)])
        return np.stack([*columns, n_common / np.minimum(*lengths).clip(min=1)], axis=1).astype(float)


def _translated(gains: Floats, lengths: NDArray[np.int64]) -> list[Floats]:
    """Return features of one side by the gains of its words: their mean, the share of high ones, those near the end.

    lengths: the number of words of each line.
    """
    starts = lengths.cumsum() - lengths
    lines = np.arange(len(lengths)).repeat(lengths)
    is_known = ~np.isnan(gains)
    is_near_end = is_known & (np.arange(len(gains)) - starts[lines] >= 0.6 * lengths[lines])

    def mean(values: NDArray[np.generic], counts: NDArray[np.bool_], default: float) -> Floats:
        n = np.bincount(lines[counts], minlength=len(lengths))
        sums = np.bincount(lines[counts], values[counts], minlength=len(lengths))
        return np.where(n > 0, sums / n.clip(min=1), default)

    n_known = np.bincount(lines[is_known], minlength=len(lengths))
    whole = mean(gains, is_known, 0)
    return [
        whole,
        whole * np.sqrt(n_known),
        mean(gains > 0.7, is_known, 0.5),
        mean(gains, is_near_end, 0),
        1 - n_known / lengths.clip(min=1),
    ]


def _lengths(src: NDArray[np.generic], tgt: NDArray[np.generic]) -> list[Floats]:
    """Return features of the lengths of both sides, of which the sums over the corpus are made equal."""
    expectations = src * (tgt.sum() / max(1, src.sum()))
    deviations = (tgt - expectations) / np.sqrt(tgt + expectations + 1)
    return [deviations, deviations.clip(min=0) ** 2, deviations.clip(max=0) ** 2]


# ---- made misfits ------------------------------------------------------------------------------------------------


def make_misfits(pairs: Sequence[LinePair], generator: np.random.Generator) -> list[LinePair]:
    """Return misfits made of `pairs`: in turn one with another target, and one of which a side is cut.

    Half of the other targets are of similar length, so that the length does not give them away.
    """
    by_length = np.argsort([len(tgt) + generator.normal(0, 8) for _, tgt in pairs])
    neighbours = np.empty(len(pairs), int)
    neighbours[by_length] = np.roll(by_length, 1)
    others = np.where(generator.random(len(pairs)) < 0.5, neighbours, generator.permutation(len(pairs)))
    misfits = []
    for i, (src, tgt) in enumerate(pairs):
        if i % 2:
            misfits.append((src, pairs[others[i]][1]))
        elif i % 4:
            misfits.append((_cut(src, generator), tgt))
        else:
            misfits.append((src, _cut(tgt, generator)))
    return misfits


def _cut(line: str, generator: np.random.Generator) -> str:
    """Return a part of a line, most often its beginning."""
    space = " " if " " in line else ""
    words = line.split() if space else [*line]
    n = max(1, int(len(words) * generator.uniform(0.15, 0.7)))
    return space.join(words[:n] if generator.random() < 0.8 else words[-n:])


# ---- the decision ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Misfits:
    """What a sample has taught. share: estimated share of misfits in it. least: score of a misfit."""

    features: Sequence[_Features]  # by fold
    mean: Floats
    deviation: Floats
    weights: Floats
    share: float
    least: float

    def scores(self, pairs: Sequence[LinePair], fold: int = 0) -> Floats:
        """Return the score of each pair. fold: the part of the sample that the pairs belong to; any for others."""
        return self.of_features(self.features[fold](pairs)) if pairs else np.zeros(0)

    def of_features(self, features: Floats) -> Floats:
        """Return the scores of pairs by their features."""
        portions = range(0, len(features), PORTION)
        return np.concatenate([self._expanded(features[i : i + PORTION]) @ self.weights for i in portions])

    def _expanded(self, features: Floats) -> Floats:
        return _expanded((features - self.mean) / self.deviation)


def learn_misfits(sample: Sequence[LinePair], seed: int = 1) -> Misfits:
    """Learn from a sample, and again from it without the misfits that were found, unless hardly a pair is left."""
    first = _learn(sample, np.ones(len(sample), bool), seed)
    folds = np.arange(len(sample)) % FOLDS
    is_misfit = np.zeros(len(sample), bool)
    for fold in range(FOLDS):
        members = np.flatnonzero(folds == fold)
        is_misfit[members] = first.scores([sample[i] for i in members.tolist()], fold) >= first.least
    return first if np.count_nonzero(~is_misfit) < LEAST_GOOD else _learn(sample, ~is_misfit, seed)


@dataclass(frozen=True)
class _Examples:
    """A sample and fakes, misfits that were made of its pairs. features: what computes features, by fold.

    pairs, fakes: the features of both, the pairs in order. is_cut: True at the fakes of which a side is cut.
    """

    features: Sequence[_Features]
    pairs: Floats
    fakes: Floats
    is_cut: NDArray[np.bool_]


def _learn(sample: Sequence[LinePair], is_good: NDArray[np.bool_], seed: int) -> Misfits:
    """Return what the good pairs of a sample teach. The share is of misfits in the whole sample."""
    generator = np.random.default_rng(seed)
    examples = _examples(sample, is_good, generator)
    is_lesson = generator.random(len(examples.fakes)) < 0.5  # the other fakes show the density of their scores
    good = examples.pairs[is_good]
    model = _fit(examples.features, good[generator.random(len(good)) < 0.5], examples.fakes[is_lesson])
    scores = model.of_features(examples.pairs)
    kinds = (examples.fakes[~is_lesson & kind] for kind in (examples.is_cut, ~examples.is_cut))
    least = min(_valley(scores), *(_plateau(scores, model.of_features(fakes)) for fakes in kinds))  # or one kind only
    return replace(model, share=float(np.mean(scores >= least)), least=least)


def _fit(features: Sequence[_Features], pairs: Floats, fakes: Floats) -> Misfits:
    """Return the model that tells fakes from pairs, by the features of both, without its share and least score."""
    lessons = np.concatenate([pairs, fakes])
    mean, deviation = lessons.mean(axis=0), lessons.std(axis=0) + 1e-6
    is_fake = np.arange(len(lessons)) >= len(pairs)
    weights = logistic_weights(_expanded((lessons - mean) / deviation), is_fake, penalty=3.0)
    return Misfits(features, mean, deviation, weights, 0.0, np.inf)


def _examples(sample: Sequence[LinePair], is_good: NDArray[np.bool_], generator: np.random.Generator) -> _Examples:
    """Return the features of a sample, and of fakes that are made of its good pairs."""
    folds = np.arange(len(sample)) % FOLDS
    words = [(words_of(src), words_of(tgt)) for src, tgt in sample]
    features = [_Features([words[i] for i in np.flatnonzero(is_good & (folds != fold))]) for fold in range(FOLDS)]
    of_pairs = dict[int, Floats]()
    of_fakes, is_cut = list[Floats](), list[NDArray[np.bool_]]()
    for fold, describe in enumerate(features):
        members = np.flatnonzero(folds == fold).tolist()
        of_pairs |= zip(members, describe([sample[i] for i in members]), strict=True)
        fakes = make_misfits([sample[i] for i in members if is_good[i]], generator)
        of_fakes.append(describe(fakes))
        is_cut.append(np.arange(len(fakes)) % 2 == 0)
    in_order = np.stack([of_pairs[i] for i in range(len(sample))])
    return _Examples(features, in_order, np.concatenate(of_fakes), np.concatenate(is_cut))


def _expanded(features: Floats) -> Floats:
    """Return standardised features (N, F) with their products of two, and a constant."""
    features = features.clip(-5, 5)
    rows, columns = np.triu_indices(features.shape[1])
    return np.concatenate([features, features[:, rows] * features[:, columns], np.ones((len(features), 1))], axis=1)


def _plateau(corpus: Floats, fakes: Floats) -> float:
    """Return the score from which the corpus has about as many misfits as everywhere above; infinity if it has none.

    corpus, fakes: the scores of the pairs of the corpus, and of misfits that were made of them.
    """
    n_bins = min(MOST_BINS, len(fakes) // LEAST_IN_BIN)
    bounds = np.quantile(fakes, np.linspace(0, 1, n_bins + 1))
    bounds[0], bounds[-1] = -np.inf, np.inf
    quotients = np.histogram(corpus, bounds)[0] / np.histogram(fakes, bounds)[0].clip(min=1) * len(fakes) / len(corpus)
    falling = _falling(quotients)
    share = float(np.median(falling[n_bins // 3 :]))
    n_above = int(np.count_nonzero(falling > NEAR * share))
    return float(bounds[n_above]) if share > 0 and n_above < n_bins else np.inf


def _valley(scores: Floats) -> float:
    """Return the score above most scores where they are rare, or begin to be more frequent again; else infinity."""
    quarter, half = np.percentile(scores, [25, 50])
    width = max(half - quarter, 1e-6) / 2
    counts = np.bincount(((scores[scores >= half] - half) / width).astype(int))
    peak = counts[: max(1, len(counts) // 4)].max()
    later = np.maximum.accumulate(counts[::-1])[::-1]
    rises = np.append(counts[1:] > counts[:-1], False) & (later > 2 * counts + 10)
    is_valley = (counts <= RARE * peak) | (rises & (counts <= DIP * peak))
    places = np.flatnonzero(is_valley)
    return float(half + width * places[0]) if len(places) else np.inf


def _falling(values: Floats) -> Floats:
    """Return the nearest values that never rise, by least squares: neighbours that rise share their mean."""
    blocks = list[tuple[float, int]]()  # mean, and number of values
    for value in values.tolist():
        mean, n = value, 1
        while blocks and blocks[-1][0] < mean:
            earlier, m = blocks.pop()
            mean, n = (earlier * m + mean * n) / (m + n), m + n
        blocks.append((mean, n))
    return np.concatenate([np.full(n, mean) for mean, n in blocks])
