"""Sampling over tables: the distribution of the draws."""

import math
from collections import Counter

import pytest
import torch
from support.search_tables import BOS, EOS, WORDS, Reader, every_output, random_table, replay, request_for, start

from transduce.decoding import search
from transduce.decoding.decoder import Decoder
from transduce.decoding.options import Sampling, sentence_seed
from transduce.decoding.search import sample

# ---- sampling ------------------------------------------------------------------------------------------------------


def draws(probs: list[float], sampling: Sampling, count: int = 20_000) -> Counter[int]:
    """Return the counts of first tokens drawn from probabilities of the words 2, 3, ... (EOS is almost impossible)."""
    row = torch.tensor([1e-30, 1e-30, *probs]).log()
    decoder = Decoder(lambda ids, state: (row.expand(len(ids), -1), state))
    request, seeds = request_for([1] * count), [sentence_seed(7, i) for i in range(count)]
    return Counter(h.ids[0] for h in sample(decoder, start([0] * count), request, sampling=sampling, seeds=seeds))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(top_k=1), [0, 1, 0, 0]),
        (Sampling(top_k=2), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(top_k=99), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(top_p=0.01), [0, 1, 0, 0]),
        (Sampling(top_p=0.6), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9]),
        (Sampling(top_p=1.0), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(top_k=3, top_p=0.5), [0, 4 / 7, 0, 3 / 7]),  # of the 9/9 left, 4/9 is not 0.5 but 7/9 is
        (Sampling(epsilon=0.15), [0, 4 / 9, 2 / 9, 3 / 9]),
        (Sampling(epsilon=0.25, top_p=0.6), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(epsilon=0.35, top_p=0.6), [0, 4 / 7, 0, 3 / 7]),  # cut after top_p: 3/7 > 0.35 > 3/10
        (Sampling(epsilon=0.9), [0, 1, 0, 0]),  # the most likely one stays
        (Sampling(top_k=3, epsilon=0.21), [0, 4 / 9, 2 / 9, 3 / 9]),  # cut after top_k: 2/9 > 0.21 > 0.2
        (Sampling(temperature=0.5, epsilon=0.25), [0, 16 / 25, 0, 9 / 25]),  # cut after the temperature: 9/30 > 0.25
        (Sampling(temperature=0.5), [1 / 30, 16 / 30, 4 / 30, 9 / 30]),  # squares
        (Sampling(temperature=0.5, top_p=0.8), [0, 16 / 25, 0, 9 / 25]),  # cut after the temperature: 25/30 > 0.8
    ],
)
def test_draws_follow_the_distribution(sampling: Sampling, expected: list[float]) -> None:
    """Pearson's statistic with at most 3 degrees of freedom exceeds 16.3 once in a thousand; the seeds are fixed."""
    count = 20_000
    counts = draws([0.1, 0.4, 0.2, 0.3], sampling, count)
    assert {*counts} == {token for token, p in zip(WORDS, expected, strict=True) if p}
    assert sum((counts[t] - count * p) ** 2 / (count * p) for t, p in zip(WORDS, expected, strict=True) if p) < 16.3


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.7, top_k=20, top_p=0.9, epsilon=0.03),
        Sampling(1.5, top_p=0.8, epsilon=0.02),
        Sampling(0.9, top_k=15, epsilon=0.05),
        Sampling(1.2, top_k=12, top_p=0.7),
    ],
)
def test_draws_follow_the_distribution_of_transformers(sampling: Sampling) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    logits, n = 2 * torch.randn(1, 50, generator=torch.Generator().manual_seed(1)), 10_000
    scores = logits / sampling.temperature
    for warper, value in (
        (transformers.TopKLogitsWarper, sampling.top_k),
        (transformers.TopPLogitsWarper, sampling.top_p),
        (transformers.EpsilonLogitsWarper, sampling.epsilon),
    ):
        scores = scores if value is None else warper(value)(torch.zeros(1, 1, dtype=torch.int64), scores)
    log_probs, uniform = logits.log_softmax(dim=1).expand(n, -1), (torch.arange(n) + 0.5) / n
    counts = search._draw(log_probs, uniform, sampling)[0].bincount(minlength=50)
    torch.testing.assert_close(counts / n, scores.softmax(dim=1)[0], atol=2 / n, rtol=0)


def test_draws_of_whole_sentences_follow_the_model() -> None:
    """All 21 outputs of at most two tokens; with 20 degrees of freedom the statistic exceeds 45.3 once in a thousand.

    A banned word's share goes to the others at each step.
    """
    table, count = random_table(4, sharpness=0.7), 4000
    seeds = [sentence_seed(3, i) for i in range(count)]
    request = request_for([2] * count)
    samples = sample(Reader(table).decoder, start([0] * count), request, sampling=Sampling(), seeds=seeds)
    counts = Counter((*h.ids, EOS) if h.finished else tuple(h.ids) for h in samples)
    outputs = every_output(table, 0, 2, 0, ())
    masses = {prefix: 1 - math.exp(table(0, prefix)[BOS].item()) for prefix in [(), *((word,) for word in WORDS)]}
    statistic = 0.0
    for ids, log_prob in outputs:
        expected = count * math.exp(log_prob) / math.prod(masses[ids[:t]] for t in range(len(ids)))
        statistic += (counts[ids] - expected) ** 2 / expected
    assert len(outputs) == 21 and sum(counts.values()) == count
    assert statistic < 45.3


def test_samples_report_the_models_own_log_probabilities() -> None:
    table, seeds = random_table(9), [sentence_seed(0, i) for i in range(20)]
    request = request_for([6] * 20, min_length=2, prefixes=[[5] * (i % 3) for i in range(20)])
    sampling = Sampling(temperature=2.0, top_k=3)
    outputs = sample(Reader(table).decoder, start(range(20)), request, sampling=sampling, seeds=seeds)
    for i, hypothesis in enumerate(outputs):
        replay(table, i, hypothesis, ("gnmt", 0.6))
        assert len(hypothesis.ids) >= 2 and hypothesis.ids[: i % 3] == [5] * (i % 3) and BOS not in hypothesis.ids
    assert outputs == sample(Reader(table).decoder, start(range(20)), request, sampling=sampling, seeds=seeds)
    other = [sentence_seed(1, i) for i in range(20)]
    assert outputs != sample(Reader(table).decoder, start(range(20)), request, sampling=sampling, seeds=other)


def test_a_draw_at_the_very_end_of_the_distribution_has_a_probability() -> None:
    """In vocabulary order the words begin at 0, 0.1 and 0.3; ranked, which top_p needs, 2 1 0 at 0, 0.7, 0.9.

    Rounding may bring the draw up to the total. A word without probability must not be drawn even then.
    """
    log_probs = torch.tensor([[0.1, 0.2, 0.7, 0.0]]).log()
    for uniform, word, ranked_word in ((1.0, 2, 0), (0.95, 2, 0), (0.8, 2, 1), (0.2, 1, 2), (0.05, 0, 2), (0.0, 0, 2)):
        assert search._draw(log_probs, torch.tensor([uniform]), Sampling())[0].item() == word
        assert search._draw(log_probs, torch.tensor([uniform]), Sampling(top_p=1.0))[0].item() == ranked_word
