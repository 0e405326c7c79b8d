"""Minimum Bayes risk: scores equal sacreBLEU's, and the candidate with the highest mean of them is the output."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from support.toy_task import Toy
from support.translators import LINES, assert_same, noisy_translator

import transduce
from transduce import DecodingOptions, Sampling, Translation, Translator
from transduce.decoding import mbr
from transduce.decoding.batched_search import sample_all
from transduce.decoding.options import MBR_SAMPLING, MbrMetric

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


# ---- translations ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy(toy: Toy) -> Translator:
    return noisy_translator(toy)


def assert_ranked(translation: Translation, candidates: Sequence[str], metric: MbrMetric) -> None:
    """Assert that the translation and its alternatives are all candidates, in the order of their utility."""
    ranking = mbr.rank(candidates, metric)
    outputs = [translation, *translation.alternatives]
    assert [output.text for output in outputs] == [candidates[i] for i, _ in ranking]
    assert [output.utility for output in outputs] == [utility for _, utility in ranking]


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_the_output_is_the_nearest_of_the_samples(noisy: Translator, metric: MbrMetric) -> None:
    lines = ["a b c", "d e", "f e d c b a"]
    options = DecodingOptions(mbr=6, mbr_metric=metric, n_best=6, seed=3)
    translations = noisy.translate(lines, options=options)
    for number, (line, translation) in enumerate(zip(lines, translations, strict=True)):
        seeds = [options.seeds_of_line(number)]
        source, search = noisy.tokenizer.encode(line), noisy.config.search
        (samples,) = sample_all(noisy._backend, [source], search, sampling=MBR_SAMPLING, seeds=seeds)
        assert_ranked(translation, [noisy.tokenizer.decode(sample.ids) for sample in samples], metric)
        first = noisy.translate([line], sampling=MBR_SAMPLING, seed=3, first_number=number)[0].text
        assert first == noisy.tokenizer.decode(samples[0].ids)
    assert len(translations[2].alternatives) > 1


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_the_output_is_the_nearest_of_the_best_of_a_beam(noisy: Translator, metric: MbrMetric) -> None:
    lines = ["a b c", "d", "f e d c b a"]
    n_best = noisy.translate(lines, beam_size=6, n_best=5)
    translations = noisy.translate(lines, mbr=5, mbr_metric=metric, beam_size=6, n_best=5)
    for best, translation in zip(n_best, translations, strict=True):
        assert_ranked(translation, [output.text for output in (best, *best.alternatives)], metric)
        assert translation.score in [output.score for output in (best, *best.alternatives)]
        assert {*translation.pieces} and best.utility is None
    assert [t.text for t in translations] == [
        t.text for t in noisy.translate(lines, mbr=5, mbr_metric=metric, beam_size=6)
    ]


@pytest.mark.parametrize("options", [DecodingOptions(mbr=4, n_best=2), DecodingOptions(mbr=3, beam_size=4)])
def test_the_batch_changes_no_output(noisy: Translator, options: DecodingOptions) -> None:
    together = noisy.translate(LINES, options=options)
    alone = [noisy.translate([line], options=options, first_number=i)[0] for i, line in enumerate(LINES)]
    assert_same(alone, together)
    assert [t.utility for t in alone] == [t.utility for t in together]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert_same(noisy.translate(LINES * 3, options=options)[: len(LINES)], together)
    finally:
        torch.set_num_threads(threads)


def test_a_line_of_several_sentences_has_the_nearest_of_each(noisy: Translator) -> None:
    sentences = ["aa bb.", "cc!", "dd ee"]
    options = DecodingOptions(mbr=4, beam_size=4, n_best=3)
    apart = noisy.translate(sentences, options=options)
    (line,) = noisy.translate([" ".join(sentences)], options=options, split="sentences")
    assert line.pieces == sum((t.pieces for t in apart), ())
    assert line.utility == pytest.approx(np.mean([t.utility for t in apart if t.utility is not None]))
    utilities = [t.utility or 0.0 for t in (line, *line.alternatives)]
    assert len(utilities) == 3 and utilities == sorted(utilities, reverse=True)
    sampled = noisy.translate([" ".join(sentences)], mbr=4, split="sentences")[0]
    assert sampled.text and sampled.utility is not None


def test_lines_without_a_translation_have_no_utility(noisy: Translator) -> None:
    blank, line, too_long = noisy.translate(["", "a b", "x " * 9_000], mbr=3)
    assert (blank.text, blank.utility) == ("", None)
    assert line.utility is not None
    assert too_long.utility is None and too_long.problem is not None


def test_candidates_begin_with_the_prefix(noisy: Translator) -> None:
    prefixes = ["", "c b", "j"]
    translations = noisy.translate(["a b c"] * 3, mbr=5, n_best=5, sampling=Sampling(2.0), prefixes=prefixes)
    for translation, prefix in zip(translations, prefixes, strict=True):
        assert all(t.text.startswith(prefix) for t in (translation, *translation.alternatives))
    assert len({t.text for t in translations[2].alternatives}) > 1


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_every_precision_and_an_ensemble(toy: Toy, precision: str) -> None:
    translations = transduce.load(toy.model, toy.model, precision=precision).translate(["a b c", "d e f g"], mbr=4)
    assert [t.text for t in translations] == ["c b a", "g f e d"]
