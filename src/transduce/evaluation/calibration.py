"""Calibration: features of translations, and which of them are good -> the weights of their confidence, and figures.

Logistic regression. Its figures are of text from which it has not learned. Without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transduce.console import counted
from transduce.decoding.confidence import FEATURES, Calibration, Weight
from transduce.errors import UserError
from transduce.evaluation.study_charts import Points, curves_figure, progress_svg
from transduce.evaluation.study_report import Report, Section, Table

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FOLDS = 5
LEAST_LINES = 10  # that are good, and that are not
MOST_BINS = 10  # of the reliability diagram, each with about as many lines


def logistic_weights(features: Floats, is_positive: Flags, penalty: float, rounds: int = 12) -> Floats:
    """Return the weights of a logistic regression, by Newton's method.

    features: (N, F), of which the last is the constant 1. penalty: on the squares of the weights, except the last one.
    """
    weights = np.zeros(features.shape[1])
    penalties = np.full(len(weights), penalty)
    penalties[-1] = 1e-3  # the constant
    for _ in range(rounds):
        probabilities = 1 / (1 + np.exp(-(features @ weights).clip(-30, 30)))
        gradient = features.T @ (probabilities - is_positive) + penalties * weights
        curvature = (features.T * (probabilities * (1 - probabilities))) @ features + np.diag(penalties)
        weights -= np.linalg.solve(curvature, gradient)
    return weights


# ---- learning --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoredText:
    """The translations of a text: the features (N, F) of each, and True for each good one.

    n_left_out: lines that are blank, copied or too long, or whose reference is blank.
    """

    name: str
    features: Floats
    is_good: Flags
    n_left_out: int = 0

    @classmethod
    def of(cls, name: str, rows: Sequence[Sequence[float]], is_good: Sequence[bool], n_left_out: int) -> "ScoredText":
        """Return the text of these rows. Raises UserError for none."""
        if not rows:
            raise UserError(f"{name}: expected lines that are translated, with references; give another text")
        return cls(name, np.array(rows), np.array(is_good), n_left_out)

    def __str__(self) -> str:
        left_out = f"; {self.n_left_out:,} left out" if self.n_left_out else ""
        return f"{self.name} ({counted(len(self.is_good), 'line')}, {100 * self.is_good.mean():.1f} % good{left_out})"

    def check(self, good: float) -> None:
        """Raise UserError for a text with too few lines to learn from. good: for the message."""
        n_good = int(np.count_nonzero(self.is_good))
        n_others = len(self.is_good) - n_good
        if min(n_good, n_others) < LEAST_LINES:
            raise UserError(
                f"{self.name}: expected at least {LEAST_LINES} lines with a chrF of {good:g} or more, and as many with "
                f"less, not {n_good:,} and {n_others:,}; give more text, or another --good"
            )


def learn(text: ScoredText, good: float) -> Calibration:
    """Return the calibration of a text. good: the least chrF of a good translation."""
    means, deviations = text.features.mean(axis=0), text.features.std(axis=0) + 1e-6
    moments = [Weight(*moment, 0.0) for moment in zip(FEATURES, means.tolist(), deviations.tolist(), strict=True)]
    rows = [[*(w.standardised(x) for w, x in zip(moments, row, strict=True)), 1.0] for row in text.features.tolist()]
    *weights, constant = logistic_weights(np.array(rows), text.is_good, penalty=1.0).tolist()
    named = (Weight(w.name, w.mean, w.deviation, weight) for w, weight in zip(moments, weights, strict=True))
    return Calibration(good, constant, tuple(named))


def confidences(calibration: Calibration, features: Floats) -> Floats:
    """Return the confidence of each row of features."""
    return np.array([calibration.confidence(row) for row in features.tolist()])


def unseen_confidences(text: ScoredText, good: float) -> Floats:
    """Return the confidence of each line by a calibration that has learned from four fifths of the text without it."""
    results = np.zeros(len(text.is_good))
    folds = np.arange(len(results)) % FOLDS
    for fold in range(FOLDS):
        is_seen = folds != fold
        seen = ScoredText(text.name, text.features[is_seen], text.is_good[is_seen])
        results[~is_seen] = confidences(learn(seen, good), text.features[~is_seen])
    return results


# ---- figures ---------------------------------------------------------------------------------------------------------


def auroc(confidence: Floats, is_good: Flags) -> float:
    """Return the share of pairs of a good and another line in which the good one has more; ties count half.

    NaN if all lines are good, or none.
    """
    n_good = int(np.count_nonzero(is_good))
    in_order = np.sort(confidence)
    ranks = (in_order.searchsorted(confidence, "left") + in_order.searchsorted(confidence, "right") + 1) / 2
    n_pairs = n_good * (len(is_good) - n_good)
    return float(ranks[is_good].sum() - n_good * (n_good + 1) / 2) / n_pairs if n_pairs else float("nan")


@dataclass(frozen=True)
class Bin:
    """Lines of similar confidence: their number, their mean confidence, and the share of good ones."""

    n_lines: int
    confidence: float
    share: float


def reliability(confidence: Floats, is_good: Flags) -> list[Bin]:
    """Return bins with about as many lines each, the lowest confidence first."""
    order = confidence.argsort(kind="stable")
    parts = np.array_split(order, min(MOST_BINS, len(order)))
    return [Bin(len(part), float(confidence[part].mean()), float(is_good[part].mean())) for part in parts]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the mean difference of confidence and share of good lines."""
    n_lines = sum(each.n_lines for each in bins)
    return sum(each.n_lines * abs(each.confidence - each.share) for each in bins) / n_lines


@dataclass(frozen=True)
class Reliability:
    """How well the confidence tells good lines of a text from others. bins: of its reliability."""

    text: ScoredText
    auroc: float
    bins: Sequence[Bin]

    @classmethod
    def of(cls, text: ScoredText, confidence: Floats) -> "Reliability":
        """Return the figures of a text. confidence: of each line, by a calibration that has not learned from it."""
        return cls(text, auroc(confidence, text.is_good), reliability(confidence, text.is_good))

    @property
    def summary(self) -> str:
        """The figures of the text in a line."""
        area = "unknown, because all lines are alike" if np.isnan(self.auroc) else f"{self.auroc:.3f}"
        error = f"confidence and share of good lines differ by {calibration_error(self.bins):.3f}"
        return f"on {self.text}, not learned from: AUROC {area}; {error}"

    def __str__(self) -> str:
        rows = (f"{b.n_lines:7,} {b.confidence:11.3f} {b.share:13.3f}" for b in self.bins)
        return "\n".join([self.summary, "  lines  confidence  share of good", *rows])


def reliability_report(figures: Reliability, good: float, model: str) -> Report:
    """Return a page with the reliability diagram and its table. good: the least chrF of a good line."""
    points = [(each.confidence, each.share) for each in figures.bins]
    curves: dict[str, Points] = {"this model": points, "exact": [(0.0, 0.0), (1.0, 1.0)]}
    drawing = progress_svg(curves, is_logarithmic=False)
    title, note = "Share of good lines over confidence", "each dot is a tenth of the lines"
    figure = curves_figure(title, note, drawing, curves, lambda ends: f"{ends[0][1]:.2f} to {ends[-1][1]:.2f}")
    rows = [[f"{each.confidence:.3f}", f"{each.share:.3f}", f"{each.n_lines:,}"] for each in figures.bins]
    table = Table(["mean confidence", "share of good lines", "lines"], rows, words=frozenset())
    lead = f"The confidence {figures.summary}. A line is good if its chrF is {good:g} or more."
    return Report(f"Confidence of {model}", lead, [Section("Reliability", [figure, table])])
