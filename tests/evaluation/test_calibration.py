"""The learning of a confidence: its optimum, its figures against counts by hand, and texts that teach nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from transduce.errors import UserError
from transduce.evaluation.calibration import (
    Reliability,
    ScoredText,
    auroc,
    calibration_error,
    confidences,
    learn,
    logistic_weights,
    reliability,
    reliability_report,
    unseen_confidences,
)
from transduce.evaluation.study_report import html_page


def random_text(count: int, seed: int = 1) -> ScoredText:
    """Return a text whose first two features say how likely a line is good."""
    generator = np.random.default_rng(seed)
    features = generator.normal(3.0, 2.0, (count, 7))
    odds = features[:, 0] - features[:, 1] + 1
    return ScoredText("text", features, generator.random(count) < 1 / (1 + np.exp(-odds)))


def test_the_weights_are_the_optimum_of_the_penalised_loss() -> None:
    text = random_text(300)
    features = np.concatenate([text.features, np.ones((300, 1))], axis=1)
    weights = torch.tensor(logistic_weights(features, text.is_good, penalty=2.0), requires_grad=True)
    logits = torch.from_numpy(features) @ weights
    labels = torch.from_numpy(text.is_good.astype(float))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    penalties = torch.tensor([2.0] * 7 + [1e-3], dtype=torch.float64)
    (loss + (penalties * weights**2).sum() / 2).backward()
    assert weights.grad is not None and weights.grad.abs().max() < 1e-6


def test_auroc_is_the_share_of_pairs_in_the_right_order() -> None:
    generator = np.random.default_rng(2)
    for _ in range(20):
        scores, is_good = generator.integers(0, 6, 30) / 5, generator.random(30) < 0.4
        pairs = [(a > b) + (a == b) / 2 for a in scores[is_good] for b in scores[~is_good]]
        assert auroc(scores, is_good) == pytest.approx(sum(pairs) / len(pairs))
    assert np.isnan(auroc(np.ones(3), np.ones(3, bool)))


def test_bins_have_all_lines_in_order_and_the_error_is_their_mean_difference() -> None:
    confidence, is_good = np.linspace(0, 1, 25), np.arange(25) >= 5
    bins = reliability(confidence, is_good)
    assert [each.n_lines for each in bins] == [3] * 5 + [2] * 5
    assert (bins[0].share, bins[1].share, bins[2].share) == (0, pytest.approx(1 / 3), 1)
    expected = sum(abs(each.confidence - each.share) * each.n_lines for each in bins) / 25
    assert calibration_error(bins) == pytest.approx(expected)
    assert len(reliability(confidence[:4], is_good[:4])) == 4


def test_a_confidence_is_near_the_share_of_good_lines_of_another_text() -> None:
    learned, other = learn(random_text(2_000), 40.0), random_text(2_000, seed=2)
    figures = Reliability.of(other, confidences(learned, other.features))
    assert figures.auroc > 0.9 and calibration_error(figures.bins) < 0.05
    page = html_page(reliability_report(figures, 40.0, "<model>"))
    assert page.count("<circle") == 12 and "&lt;model&gt;" in page and "<model>" not in page


def test_a_fold_is_not_learned_from() -> None:
    text = random_text(60)
    other = replace(text, is_good=np.where(np.arange(60) % 5 == 0, ~text.is_good, text.is_good))
    is_same = unseen_confidences(text, 40.0) == unseen_confidences(other, 40.0)
    assert is_same[::5].all() and not is_same.all()


def test_extreme_features_give_a_probability() -> None:
    learned = learn(random_text(100), 40.0)
    for value in (-1e300, 1e300, float("inf")):
        assert 0 <= learned.confidence([value] * 7) <= 1
    constant = ScoredText("text", np.ones((40, 7)), np.arange(40) % 4 > 0)  # no feature tells anything
    assert learn(constant, 40.0).confidence([1.0] * 7) == pytest.approx(0.75, abs=0.001)


@pytest.mark.parametrize(("n_good", "n_others"), [(0, 100), (100, 0), (9, 10), (10, 9)])
def test_a_text_with_few_lines_of_a_kind_is_refused(n_good: int, n_others: int) -> None:
    text = ScoredText("text", np.ones((n_good + n_others, 7)), np.arange(n_good + n_others) < n_good)
    message = f"text: expected at least 10 lines with a chrF of 40 or more, and as many with less, not {n_good} and"
    with pytest.raises(UserError, match=message):
        text.check(40.0)
