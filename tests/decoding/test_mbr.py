"""Minimum Bayes risk: scores equal sacreBLEU's, and the candidate with the highest mean of them is the first."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transduce.decoding import mbr
from transduce.decoding.options import MbrMetric

METRICS: dict[MbrMetric, CHRF | BLEU] = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}
ALPHABETS = (
    "abc ",
    "Der Hund läuft über die Straße. ",
    "a",
    " \t\n\r\u3000\u2028\x85\x1c",
    "日本語の文。、「」 ",
    "กขค่ข้อ ",
    "\u0645\u0631\u062d\u0628\u0627\u200f\u202e ",
    "😀👩\u200d👧🇩🇪 ",
    '-.,&quot;<skipped>&lt;0123"$ ',
    "e\u0301\ufeff\u200b\x00\ud800 ",
)


def by_sacrebleu(metric: MbrMetric, texts: Sequence[str]) -> np.ndarray:
    return np.array([[METRICS[metric].sentence_score(hyp, [ref]).score for ref in texts] for hyp in texts])


def random_texts(rng: random.Random) -> list[str]:
    """Return texts over two alphabets each; some are variants of others, some are equal, some are empty."""
    texts: list[str] = []
    for _ in range(rng.randint(1, 7)):
        alphabet = "".join(rng.sample(ALPHABETS, 2))
        text = "".join(rng.choices(alphabet, k=rng.choice([0, 1, 2, 3, 5, 12, 60])))
        if texts and rng.random() < 0.5:
            old = rng.choice(texts)
            cut = rng.randint(0, len(old))
            text = rng.choice([old, old[:cut], old[cut:] + text, f"{old} {text}", old[::-1]])
        texts.append(text)
    return texts


# ---- the scores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_scores_equal_those_of_sacrebleu_on_any_text(metric: MbrMetric) -> None:
    rng, positive = random.Random(4), 0
    for _ in range(150):
        texts = random_texts(rng)
        expected = by_sacrebleu(metric, texts)
        assert np.abs(mbr.SCORES[metric](texts) - expected).max() < 1e-9, texts
        positive += np.count_nonzero(expected)
    assert positive > 900


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
@pytest.mark.parametrize(
    "texts",
    [
        [""],
        ["", " ", "\u3000\n"],
        ["a", "", "a b", "b a", "A"],
        ["a a a a a a", "a a", "a b a b a"],
        ["the cat sat on the mat .", "the cat sat on a mat .", "a cat sat on the mat"],
        ["x" * 3_000, "x" * 2_999 + "y"],
    ],
)
def test_scores_equal_those_of_sacrebleu_on_short_and_repeated_text(metric: MbrMetric, texts: list[str]) -> None:
    scores = mbr.SCORES[metric](texts)
    assert np.abs(scores - by_sacrebleu(metric, texts)).max() < 1e-9
    assert scores.max() <= 100


def test_blocks_change_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a man in a hat", "the man in the hat", "a hat, a hat, a hat"]
    expected = mbr.chrf(texts)
    monkeypatch.setattr(mbr, "BLOCK", 4 * len(texts))
    assert np.array_equal(mbr.chrf(texts), expected)


# ---- the order ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_the_order_is_that_of_the_mean_score_against_all_candidates(metric: MbrMetric) -> None:
    rng = random.Random(5)
    words = "ein Hund läuft über die grüne Wiese vor dem Haus".split()
    for _ in range(20):
        candidates = [" ".join(rng.choices(words, k=rng.randint(2, 9))) for _ in range(5)]
        candidates += rng.choices(candidates, k=4)
        means = by_sacrebleu(metric, candidates).mean(axis=1)
        ranking = mbr.rank(candidates, metric)
        utilities = [utility for _, utility in ranking]
        assert utilities == pytest.approx(sorted(utilities, reverse=True), abs=1e-9)
        for i, utility in ranking:
            assert utility == pytest.approx(means[i], abs=1e-9)
            assert i == candidates.index(candidates[i])
        assert len({candidates[i] for i, _ in ranking}) == len(ranking) == len({*candidates})


def test_duplicates_count_with_their_number() -> None:
    near, other, far = "ein Hund läuft", "ein Hund rennt", "zwei Katzen"
    assert [i for i, _ in mbr.rank([far, near, other], "chrf")][2] == 0
    assert mbr.rank([far, near, far, other, far, far], "chrf")[0][0] == 0
    assert mbr.rank([far] * 3 + ["123"], "chrf") == [(0, 75), (3, 25)]


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_of_equals_the_first_comes_first(metric: MbrMetric) -> None:
    for candidates in (["a b", "c d"], ["c d", "a b"], ["", " ", "\t"], ["a b c", "a  b  c"], [""] * 3):
        assert [i for i, _ in mbr.rank(candidates, metric)] == [*range(len({*candidates}))]


def test_rounding_breaks_no_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    def almost_equal(texts: Sequence[str]) -> np.ndarray:
        return 50 + 1e-12 * np.arange(len(texts))[:, None] * np.ones(len(texts))

    scores: dict[str, Callable[[Sequence[str]], np.ndarray]] = {"chrf": almost_equal}
    monkeypatch.setattr(mbr, "SCORES", scores)
    assert [i for i, _ in mbr.rank(["a", "b", "c"], "chrf")] == [0, 1, 2]
