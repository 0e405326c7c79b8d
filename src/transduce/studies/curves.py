"""Curves of a figure against cost, with several seeds, and the costs at which one curve crosses another.

A system is ahead of another at a cost if their difference is larger than its 95 % interval, from the spread between the
seeds of all systems at this cost. Two curves cross only if each system is ahead at some cost.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from transduce.studies.comparison import Difference, difference, noise


@dataclass(frozen=True)
class CostCurve:
    """A figure against cost. costs: ascending, positive. values: of each seed, at these costs; more is better."""

    costs: Sequence[float]
    values: Sequence[Sequence[float]]

    def at(self, cost: float) -> list[float]:
        """Return the figure of each seed at a cost within the curve, on a line over the logarithm of the cost."""
        logarithms = [math.log(x) for x in self.costs]
        return [float(np.interp(math.log(cost), logarithms, seed)) for seed in self.values]

    def mean(self) -> list[float]:
        """Return the mean over the seeds at each cost."""
        return [statistics.fmean(column) for column in zip(*self.values, strict=True)]


@dataclass(frozen=True)
class Crossing:
    """The cost at which the system `leader` passes the system `other`, and the mean figure of both there."""

    leader: str
    other: str
    cost: float
    value: float


def lead(curves: Mapping[str, CostCurve], name: str, other: str, cost: float) -> Difference:
    """Return the difference of two systems at a cost, with its interval from the spread of all systems there."""
    covering = [curve for curve in curves.values() if curve.costs[0] <= cost <= curve.costs[-1]]
    spread = noise([curve.at(cost) for curve in covering])
    change = difference(curves[name].at(cost), curves[other].at(cost), spread)
    assert change is not None  # a curve has at least one seed
    return change


def crossings(curves: Mapping[str, CostCurve]) -> list[Crossing]:
    """Return every crossing of two curves, by rising cost. curves: by the name of the system, two points or more."""
    every = [crossing for pair in combinations(curves, 2) for crossing in _crossings_of(curves, *pair)]
    return sorted(every, key=lambda crossing: crossing.cost)


def _crossings_of(curves: Mapping[str, CostCurve], name: str, other: str) -> list[Crossing]:
    points = []
    ahead = 0  # 1: `name`, -1: `other`, 0: neither so far
    last_cost = 0.0
    for cost in _common_costs(curves[name], curves[other]):
        verdict = lead(curves, name, other, cost).verdict(more_is_better=True)
        if verdict == "inconclusive":
            continue
        now = 1 if verdict == "better" else -1
        if now == -ahead:
            pair = (name, other) if now == 1 else (other, name)
            middle = _zero(curves, pair, last_cost, cost)
            points.append(Crossing(*pair, middle, statistics.fmean(curves[name].at(middle))))
        ahead, last_cost = now, cost
    return points


def _common_costs(curve: CostCurve, other: CostCurve) -> list[float]:
    """Return the costs of both curves at which both have a value."""
    low, high = max(curve.costs[0], other.costs[0]), min(curve.costs[-1], other.costs[-1])
    return sorted({cost for cost in (*curve.costs, *other.costs) if low <= cost <= high})


def _zero(curves: Mapping[str, CostCurve], pair: tuple[str, str], low: float, high: float) -> float:
    """Return the cost between `low` and `high` where the means are equal, by bisection. The second leads at `low`."""
    leader, other = (curves[name] for name in pair)
    for _ in range(50):
        middle = math.sqrt(low * high)
        if statistics.fmean(leader.at(middle)) > statistics.fmean(other.at(middle)):
            high = middle
        else:
            low = middle
    return math.sqrt(low * high)
