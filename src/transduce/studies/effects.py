"""The effect of a change on a figure, here and in the paper, and whether the two are the same.

Here, an effect is larger than the noise between seeds. The paper gives no spread, so there a change of at most a
`smallest` difference counts as none.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # Student's t, 95 %, by degrees of freedom from 1


@dataclass(frozen=True)
class Noise:
    """The spread of a figure between seeds: its standard deviation, and the degrees of freedom of that estimate."""

    deviation: float
    freedom: int

    def interval(self, n_seeds: int, n_other_seeds: int) -> float:
        """Return half the 95 % interval of the difference between the means of `n_seeds` and `n_other_seeds` seeds."""
        t = T95[min(self.freedom, len(T95)) - 1]
        return t * self.deviation * math.sqrt(1 / n_seeds + 1 / n_other_seeds)


def noise(samples: Sequence[Sequence[float]]) -> Noise | None:
    """Return the noise of a figure, pooled over all rows with several seeds; None if there is no such row."""
    groups = [values for values in samples if len(values) > 1]
    if not groups:
        return None
    freedom = sum(len(values) - 1 for values in groups)
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in groups)
    return Noise(math.sqrt(squares / freedom), freedom)


def effect(values: Sequence[float], base: Sequence[float], spread: Noise | None) -> str:
    """Return the effect of a change on a figure that is better when larger: "helps", "hurts" or "within noise".

    Within noise: the difference is smaller than its 95 % interval. spread: between seeds; None if unknown, and then
    the effect is "spread unknown".
    """
    if spread is None:
        return "spread unknown"
    difference = statistics.fmean(values) - statistics.fmean(base)
    if abs(difference) <= spread.interval(len(values), len(base)):
        return "within noise"
    return "helps" if difference > 0 else "hurts"


def published_effect(difference: float, smallest: float) -> str:
    """Return the effect of a change in the paper; a change of at most `smallest` is none."""
    return "no change" if abs(difference) <= smallest else "helps" if difference > 0 else "hurts"


def verdict(in_paper: str, in_study: str, difference: float, smallest: float) -> str:
    """Return whether a change has the same effect as in the paper: "yes", "yes, none", "no" or "unclear".

    in_paper: from `published_effect`. in_study: from `effect`. difference: of the means here. If the paper reports
    no change, one of at most `smallest` is none here too, and a larger one differs unless it is within noise.
    """
    if in_study == "spread unknown":
        return "unclear"
    if in_paper == "no change" and abs(difference) <= smallest:
        return "yes, none"
    if in_study == "within noise":
        return "unclear"
    return "yes" if in_paper == in_study else "no"
