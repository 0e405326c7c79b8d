"""The paired bootstrap: against a slow, obvious version, sacreBLEU's own, and the error rate that p promises."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from transduce.errors import UserError
from transduce.evaluation.metrics import corpus_scores
from transduce.evaluation.significance import paired_bootstrap

REFS = [
    "Zwei Männer stehen am Herd und bereiten Essen zu.",
    "Ein Hund läuft durch den hohen Schnee – schnell!",
    "Ein Mann mit einem orangefarbenen Hut starrt etwas an.",
]
HYPS = [
    "Zwei Männer stehen am Herd und bereiten das Essen vor.",
    "Ein Hund rennt durch den Schnee.",
    "Ein Mann mit einem orangefarbenen Hut starrt etwas an.",
]


def sentences(n_lines: int, seed: int, max_words: int = 14) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices("abcdefghijkl", k=rng.randint(1, max_words))) for _ in range(n_lines)]


def damaged(lines: Sequence[str], rate: float, seed: int) -> list[str]:
    """Return `lines` with each word replaced with probability `rate`."""
    rng = random.Random(seed)
    return [" ".join("z" if rng.random() < rate else word for word in line.split()) for line in lines]


def slow_bootstrap(
    hyps_a: Sequence[str], hyps_b: Sequence[str], refs: Sequence[str], *, samples: int, seed: int
) -> tuple[float, float, float]:
    """Return (p, low, high): sacreBLEU scores each resampled test set, drawn as sacreBLEU draws it."""
    draws = np.random.default_rng(seed).choice(len(refs), size=(samples, len(refs)), replace=True)

    def bleu(hyps: Sequence[str], draw: Sequence[int]) -> float:
        return BLEU().corpus_score([hyps[i] for i in draw], [[refs[i] for i in draw]]).score

    deltas = [bleu(hyps_b, draw) - bleu(hyps_a, draw) for draw in draws]
    delta = bleu(hyps_b, range(len(refs))) - bleu(hyps_a, range(len(refs)))
    mean = sum(deltas) / samples
    p_value = (sum(abs(d - mean) >= abs(delta) for d in deltas) + 1) / (samples + 1)
    return p_value, float(np.percentile(deltas, 2.5)), float(np.percentile(deltas, 97.5))


@pytest.mark.parametrize(
    ("n_lines", "rate", "max_words"),
    [(2, 0.5, 14), (3, 0.9, 14), (12, 0.4, 14), (25, 0.15, 14), (12, 0.99, 14), (3, 0.1, 3), (6, 0.2, 5)],
)
def test_bootstrap_equals_the_slow_version(n_lines: int, rate: float, max_words: int) -> None:
    """Few lines, short lines and much damage give the corner cases: no 4-gram, no match, an empty or long output."""
    refs = sentences(n_lines, seed=n_lines, max_words=max_words)
    hyps_a, hyps_b = damaged(refs, rate, seed=1), damaged(refs, rate, seed=2)
    hyps_a[-1] += " and more"
    hyps_b[0] = ""
    fast = paired_bootstrap(hyps_a, hyps_b, refs, samples=100, seed=5)
    slow = slow_bootstrap(hyps_a, hyps_b, refs, samples=100, seed=5)
    assert (fast.p_value, fast.delta_low, fast.delta_high) == pytest.approx(slow)


def test_bootstrap_bleu_is_the_bleu_of_the_metrics() -> None:
    for tokenize in ("13a", "char"):
        result = paired_bootstrap(HYPS, REFS, REFS, samples=10, tokenize=tokenize)
        expected = corpus_scores(HYPS, REFS, tokenize=tokenize)[0].value
        assert (result.bleu_a, result.bleu_b) == pytest.approx((expected, 100))
        assert result.delta == result.bleu_b - result.bleu_a
        assert f"bs:10|seed:12345|case:mixed|eff:no|tok:{tokenize}|smooth:exp" in result.signature


def test_identical_systems_do_not_differ() -> None:
    result = paired_bootstrap(HYPS, HYPS, REFS)
    assert (result.delta, result.delta_low, result.delta_high, result.p_value) == (0, 0, 0, 1)


def test_a_much_better_system_is_significant() -> None:
    refs = sentences(150, seed=0)
    result = paired_bootstrap(damaged(refs, 0.4, seed=1), damaged(refs, 0.2, seed=2), refs)
    assert result.p_value == 1 / 1001
    assert 0 < result.delta_low < result.delta < result.delta_high


def test_swapping_the_systems_only_changes_the_sign() -> None:
    refs = sentences(40, seed=0)
    hyps = damaged(refs, 0.3, seed=1), damaged(refs, 0.25, seed=2)
    ab, ba = paired_bootstrap(hyps[0], hyps[1], refs), paired_bootstrap(hyps[1], hyps[0], refs)
    assert ab.p_value == ba.p_value
    assert (ab.bleu_a, ab.bleu_b, ab.delta) == (ba.bleu_b, ba.bleu_a, -ba.delta)
    assert (ab.delta_low, ab.delta_high) == pytest.approx((-ba.delta_high, -ba.delta_low))


def test_equal_seeds_give_equal_results() -> None:
    refs = sentences(40, seed=0)
    hyps = damaged(refs, 0.3, seed=1), damaged(refs, 0.25, seed=2)
    assert paired_bootstrap(hyps[0], hyps[1], refs, seed=1) == paired_bootstrap(hyps[0], hyps[1], refs, seed=1)
    first, second = (paired_bootstrap(hyps[0], hyps[1], refs, seed=seed) for seed in (1, 2))
    assert first.delta_low != second.delta_low


def test_equally_good_systems_differ_significantly_one_time_in_twenty() -> None:
    """p is a probability: p <= 0.05 in 5 % of 200 comparisons; the bounds are 4 standard errors (1.5 %) away."""
    rejections = 0
    for trial in range(200):
        refs = sentences(60, seed=trial)
        hyps_a, hyps_b = damaged(refs, 0.3, seed=2 * trial), damaged(refs, 0.3, seed=2 * trial + 1)
        rejections += paired_bootstrap(hyps_a, hyps_b, refs, samples=200).p_value <= 0.05
    assert 0 < rejections / 200 <= 0.11


def test_sacrebleu_own_paired_test_is_one_sided(monkeypatch: pytest.MonkeyPatch) -> None:
    """sacreBLEU's p is smaller than ours, and for a system against itself it is the smallest possible."""
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    refs = sentences(60, seed=0)
    systems: list[tuple[str, Sequence[str]]] = [
        ("A", damaged(refs, 0.3, seed=1)),
        ("B", damaged(refs, 0.25, seed=2)),
        ("A again", damaged(refs, 0.3, seed=1)),
    ]
    _, table = PairedTest(systems, {"BLEU": BLEU()}, [refs], test_type="bs", n_samples=1000)()
    theirs = [result.p_value for result in table["BLEU"][1:] if not isinstance(result, str)]
    ours = [paired_bootstrap(systems[0][1], hyps, refs).p_value for _, hyps in systems[1:]]
    assert theirs == [pytest.approx(0.5 * ours[0], rel=0.5), pytest.approx(1 / 1001)]
    assert ours[1] == 1


# ---- mistakes ----------------------------------------------------------------------------------------------------


def test_unequal_counts_are_named() -> None:
    with pytest.raises(UserError, match="hypotheses A: expected 3 lines, as many as the references, not 1"):
        paired_bootstrap(HYPS[:1], HYPS, REFS)
    with pytest.raises(UserError, match="hypotheses B: expected 3 lines, as many as the references, not 600"):
        paired_bootstrap(HYPS, HYPS * 200, REFS)
    with pytest.raises(UserError, match="at least 1 line, not 0"):
        paired_bootstrap([], [], [])


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="lines=1: expected at least 2"):
        paired_bootstrap(["a"], ["b"], ["a"])
    with pytest.raises(UserError, match="samples=0: expected at least 1"):
        paired_bootstrap(HYPS, HYPS, REFS, samples=0)
    with pytest.raises(UserError, match="seed=-1: expected at least 0"):
        paired_bootstrap(HYPS, HYPS, REFS, seed=-1)
    with pytest.raises(UserError, match="tokenize='flores200': expected one of"):
        paired_bootstrap(HYPS, HYPS, REFS, tokenize="flores200")
