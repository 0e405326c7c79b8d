"""Comparisons of several seeds: the difference of two means, its interval, one verdict, and all of it as text.

The interval is Student's, 95 %, with the spread between seeds pooled over all groups of a study.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from transduce.config.schema import Config, architecture
from transduce.evaluation.page import duration
from transduce.evaluation.study_report import NOT_RUN, Report, fill_report
from transduce.studies.results import JsonObject, Results, config_of

T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # Student's t by degrees of freedom from 1

Verdict = Literal["better", "worse", "inconclusive"]
VERDICTS: tuple[Verdict, ...] = ("better", "worse", "inconclusive")
Effect = Literal["hurts", "helps", "none"]
ClaimVerdict = Literal["holds", "does not hold", "inconclusive"]


def t95(freedom: int) -> float:
    """Return Student's t of an interval of 95 %. Beyond the table it is a little too large."""
    return T95[min(freedom, len(T95)) - 1]


@dataclass(frozen=True)
class Noise:
    """The spread of a figure between seeds: its standard deviation, and the degrees of freedom of that estimate."""

    deviation: float
    freedom: int

    def margin(self, n_seeds: int, n_other_seeds: float = math.inf) -> float:
        """Return half the 95 % interval of the difference between the means of `n_seeds` and `n_other_seeds` seeds.

        Without the second number it is half the interval of one mean.
        """
        return t95(self.freedom) * self.deviation * math.sqrt(1 / n_seeds + 1 / n_other_seeds)


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

    def verdict(self, *, more_is_better: bool = False) -> Verdict:
        """Return "better" or "worse" if the whole interval is on that side of 0, otherwise "inconclusive"."""
        low, high = self.interval or (-math.inf, math.inf)
        if low > 0:
            return "better" if more_is_better else "worse"
        if high < 0:
            return "worse" if more_is_better else "better"
        return "inconclusive"

    def claim_verdict(self, claim: Effect, smallest: float = 0.0) -> ClaimVerdict:
        """Return whether the change of a figure of which less is better has the effect that is claimed.

        "none" holds if the whole interval is within `smallest` of 0, and does not if the whole interval is outside.
        """
        if claim == "none":
            low, high = self.interval or (-math.inf, math.inf)
            if -smallest <= low and high <= smallest:
                return "holds"
            return "does not hold" if high < -smallest or low > smallest else "inconclusive"
        verdict = self.verdict()
        if verdict == "inconclusive":
            return verdict
        return "holds" if (verdict == "worse") == (claim == "hurts") else "does not hold"


def difference(values: Sequence[float], base: Sequence[float], spread: Noise | None) -> Difference | None:
    """Return the mean of `values` less the mean of `base`; None if one of them is empty.

    spread: between seeds; None if unknown.
    """
    if not values or not base:
        return None
    margin = spread and spread.margin(len(values), len(base))
    return Difference(statistics.fmean(values) - statistics.fmean(base), margin)


def paired_difference(differences: Sequence[float]) -> Difference | None:
    """Return the mean of the differences of the seeds, between two figures of one model; None without seeds.

    Its interval is from the spread of these differences.
    """
    if not differences:
        return None
    spread = noise([differences])
    return Difference(statistics.fmean(differences), spread and spread.margin(len(differences)))


class Row(list[JsonObject]):
    """The entries of a row that are done, one for each seed, and their figures as text."""

    def values(self, *keys: str) -> list[Any]:
        """Return a figure of each seed that has it. keys: its path, such as "valid", "f1"."""
        values: list[Any] = [*self]
        for key in keys:
            values = [value[key] for value in values if key in value]
        return values

    def mean(self, *keys: str) -> float:
        return statistics.fmean(self.values(*keys))

    def range(self, *keys: str) -> str:
        """Return `mean_and_range` of a figure."""
        return mean_and_range(self.values(*keys))

    def seeds(self) -> str:
        """Return the seeds in ascending order."""
        return " ".join(map(str, sorted(self.values("seed"))))

    def millions(self) -> str:
        """Return the parameters of the model; "" without entries."""
        return "".join(f"{count / 1e6:.2f} M" for count in self.values("parameters")[:1])

    def config(self) -> Config | None:
        """Return the configuration of the first seed; None if there is none, or if it was not recorded, as of 0.1.0."""
        return next(map(config_of, self), None)

    def sizes(self) -> str:
        """Return the sizes of the model that was trained."""
        config = self.config()
        return architecture(config) if config else "settings that were not recorded"


def rows_of(results: Results, names: Iterable[str]) -> dict[str, Row]:
    """Return the rows by their names."""
    return {name: Row(results.done(name)) for name in names}


@dataclass(frozen=True)
class Samples:
    """A figure of each seed, by row. pooled: the rows whose spread between seeds counts for all rows; None: all."""

    values: Mapping[str, Sequence[float]]
    pooled: Collection[str] | None = None

    @cached_property
    def spread(self) -> Noise | None:
        rows = self.values if self.pooled is None else self.pooled
        return noise([self.values[row] for row in rows])

    def change(self, row: str, base: str) -> Difference | None:
        """Return the difference of the means of two rows; None if one of them has no seed."""
        return difference(self.values[row], self.values[base], self.spread)


def samples_of(results: Results, rows: Iterable[str], *keys: str, pooled: Collection[str] | None = None) -> Samples:
    """Return a figure of each seed of the rows; of a perplexity, its logarithm. keys: as in `Row.values`."""
    scale = math.log if keys[-1] == "perplexity" else float
    return Samples({name: [*map(scale, row.values(*keys))] for name, row in rows_of(results, rows).items()}, pooled)


def by_verdict(changes: Mapping[str, Difference | None]) -> dict[Verdict, list[str]]:
    """Return the titles of each verdict, of figures of which less is better. Titles without a difference are left out.

    The verdicts are in the order of `VERDICTS`, without empty ones.
    """
    groups: dict[Verdict, list[str]] = {}
    for verdict in VERDICTS:
        if titles := [title for title, change in changes.items() if change and change.verdict() == verdict]:
            groups[verdict] = titles
    return groups


# ---- text --------------------------------------------------------------------------------------------------------

REPORTS = Path(__file__).with_name("reports")


def factor(logarithm: float) -> float:
    """Return exp of a difference of logarithms; infinity if the result is too large for a float."""
    return math.exp(logarithm) if logarithm < 700 else math.inf


def mean_and_range(values: Sequence[float]) -> str:
    """Return the mean, and for several values also the lowest and the highest; "" without values."""
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values)
    return f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def as_factor(change: Difference | None) -> str:
    """Return a difference of logarithms as a factor with its interval; "" without a difference."""
    return _with_interval(change, "x ", lambda value: f"{factor(value):.3f}")


def as_points(change: Difference | None, *, digits: int = 2) -> str:
    """Return a difference in points with its interval; "" without a difference. digits: after the point."""
    return _with_interval(change, "", lambda value: f"{value:+.{digits}f}")


def _with_interval(change: Difference | None, sign: str, number: Callable[[float], str]) -> str:
    if change is None:
        return ""
    value = sign + number(change.value)
    return f"{value}, {' to '.join(map(number, change.interval))}" if change.interval else value


def report_of(results: Results, *, missing: Sequence[str] | None = None, **parts: Any) -> Report:
    """Return the report of a study by its file in `reports`.

    missing: the titles of what was not run; None: the names of the entries. parts: what the other names in the file
    stand for, besides the settings of the study, the number of entries, those that are done, their processor time, and
    the failures as blocks and as text.
    """
    if missing is None:
        missing = [name for name, entry in results.entries.items() if entry["status"] == NOT_RUN]
    done, failures = results.done(), results.failures()
    general: dict[str, Any] = {
        "done": len(done),
        "total": len(results.entries),
        "cost": duration(sum(entry.get("cpu_seconds", 0) for entry in done)),
        "failures": failures,
        "failed": "".join(failures),
        "missing": [f"Not run: {', '.join(missing)}."] if missing else [],
    }
    return fill_report(REPORTS / f"{results.study.name}.md", {**results.settings, **general, **parts})
