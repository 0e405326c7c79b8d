"""The effect of a change: the difference of a figure between two groups of seeds, its interval, and a verdict.

The interval is Student's, 95 %, with the spread between seeds pooled over all groups of a study.
"""

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # Student's t, 95 %, by degrees of freedom from 1

Effect = Literal["hurts", "helps", "none"]
Verdict = Literal["holds", "does not hold", "cannot be told"]


@dataclass(frozen=True)
class Noise:
    """The spread of a figure between seeds: its standard deviation, and the degrees of freedom of that estimate."""

    deviation: float
    freedom: int

    def margin(self, n_seeds: int, n_other_seeds: int) -> float:
        """Return half the 95 % interval of the difference between the means of `n_seeds` and `n_other_seeds` seeds."""
        t = T95[min(self.freedom, len(T95)) - 1]
        return t * self.deviation * math.sqrt(1 / n_seeds + 1 / n_other_seeds)


def noise(samples: Sequence[Sequence[float]]) -> Noise | None:
    """Return the noise of a figure, pooled over all groups of several seeds; None if there is no such group."""
    groups = [values for values in samples if len(values) > 1]
    if not groups:
        return None
    freedom = sum(len(values) - 1 for values in groups)
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in groups)
    return Noise(math.sqrt(squares / freedom), freedom)


@dataclass(frozen=True)
class Difference:
    """The difference of two means. margin: half its 95 % interval; None if the spread between seeds is unknown."""

    value: float
    margin: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.margin is None else (self.value - self.margin, self.value + self.margin)

    def __neg__(self) -> "Difference":
        return Difference(-self.value, self.margin)


def difference(values: Sequence[float], base: Sequence[float], spread: Noise | None) -> Difference:
    """Return the mean of `values` less the mean of `base`. spread: between seeds; None if unknown."""
    margin = None if spread is None else spread.margin(len(values), len(base))
    return Difference(statistics.fmean(values) - statistics.fmean(base), margin)


def paired_difference(differences: Sequence[float]) -> Difference:
    """Return the mean of the differences of the seeds, between two figures of one model, by their own spread."""
    spread, n = noise([differences]), len(differences)
    margin = None if spread is None else T95[min(n - 1, len(T95)) - 1] * spread.deviation / math.sqrt(n)
    return Difference(statistics.fmean(differences), margin)


def factor(logarithm: float) -> float:
    """Return exp of a difference of logarithms; infinity if the result is too large for a float."""
    return math.exp(logarithm) if logarithm < 700 else math.inf


def overall(verdicts: Collection[Verdict]) -> Verdict:
    """Return the verdict on a claim about several rows: it holds for all of them, or does not hold for at least one."""
    if verdicts and all(one == "holds" for one in verdicts):
        return "holds"
    return "does not hold" if "does not hold" in verdicts else "cannot be told"


def verdict(claim: Effect, change: Difference, smallest: float) -> Verdict:
    """Return whether a `change` of a figure that is better when smaller has the effect that is claimed.

    A direction holds if the whole interval is on its side of 0, and does not if all of it is on the other side.
    "none" holds if the whole interval is within `smallest` of 0, and does not if the whole interval is outside.
    """
    if change.interval is None:
        return "cannot be told"
    low, high = change.interval
    if claim == "none":
        holds, fails = -smallest <= low and high <= smallest, high < -smallest or low > smallest
    else:
        holds, fails = (low > 0, high < 0) if claim == "hurts" else (high < 0, low > 0)
    return "holds" if holds else "does not hold" if fails else "cannot be told"
