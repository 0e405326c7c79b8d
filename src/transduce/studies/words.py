"""Figures of several seeds, and differences with their intervals, as text in reports."""

import statistics
from collections.abc import Sequence

from transduce.studies.effects import Difference, factor


def mean_and_range(values: Sequence[float]) -> str:
    """Return the mean, and for several values also the lowest and the highest; "" without values."""
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values)
    return f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def as_factor(change: Difference | None) -> str:
    """Return a difference of logarithms as a factor with its interval; "" without a difference."""
    if change is None:
        return ""
    text = f"x {factor(change.value):.3f}"
    return text + (f", {factor(change.interval[0]):.3f} to {factor(change.interval[1]):.3f}" if change.interval else "")


def as_points(change: Difference | None, *, digits: int = 2) -> str:
    """Return a difference in points with its interval; "" without a difference. digits: after the point."""
    if change is None:
        return ""
    return f"{change.value:+.{digits}f}" + (
        f", {change.interval[0]:+.{digits}f} to {change.interval[1]:+.{digits}f}" if change.interval else ""
    )
