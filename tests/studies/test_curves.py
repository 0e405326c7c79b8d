"""Curves of several seeds against cost: values between their points, and crossings beyond the spread."""

import math

import pytest

from transduce.studies.curves import CostCurve, crossings, lead

COSTS = [100.0, 200.0, 400.0, 800.0]


def curve(start: float, slope: float, spread: float = 0.1) -> CostCurve:
    """Return a curve that is a line over the logarithm of the cost, with two seeds."""
    middle = [start + slope * math.log2(cost / 100) for cost in COSTS]
    return CostCurve(COSTS, [[value - spread / 2 for value in middle], [value + spread / 2 for value in middle]])


def test_values_are_interpolated_over_the_logarithm_of_the_cost() -> None:
    one = curve(10, 2, spread=0)
    assert one.at(100) == [10, 10] and one.at(800) == [16, 16]
    assert one.at(math.sqrt(200 * 400)) == [pytest.approx(13)] * 2
    assert one.mean() == [10, 12, 14, 16]


def test_a_crossing_is_where_the_means_are_equal() -> None:
    """20 + log2(cost / 100) and 18 + 3 log2(cost / 100) are equal at twice the first cost."""
    curves = {"first": curve(20, 1), "second": curve(18, 3)}
    (crossing,) = crossings(curves)
    assert (crossing.leader, crossing.other) == ("second", "first")
    assert crossing.cost == pytest.approx(200) and crossing.value == pytest.approx(21)
    assert lead(curves, "second", "first", 800).value == pytest.approx(4)


def test_curves_within_the_spread_of_the_seeds_do_not_cross() -> None:
    assert crossings({"first": curve(20, 1, spread=9), "second": curve(18, 3, spread=9)}) == []
    assert crossings({"first": curve(20, 1, spread=2), "second": curve(18, 3, spread=0.1)}) == [], "one end only"
    one_seed = {name: CostCurve(one.costs, one.values[:1]) for name, one in (("a", curve(20, 1)), ("b", curve(18, 3)))}
    assert crossings(one_seed) == []


def test_curves_are_compared_where_both_have_values() -> None:
    early = CostCurve([10.0, 50.0], [[1.0, 2.0], [1.1, 2.1]])
    assert crossings({"early": early, "late": curve(18, 3)}) == []
    longer = CostCurve([50.0, *COSTS, 1600.0], [[19, 20, 21, 22, 23, 24], [19.1, 20.1, 21.1, 22.1, 23.1, 24.1]])
    (crossing,) = crossings({"longer": longer, "second": curve(18, 3)})
    assert crossing.leader == "second" and 190 < crossing.cost < 215


def test_a_curve_can_be_passed_twice() -> None:
    middle = [0.0, 2.0, -2.0, 2.0]
    wave = CostCurve(COSTS, [[21 + value for value in middle], [21.1 + value for value in middle]])
    flat = CostCurve(COSTS, [[20.0] * 4, [20.1] * 4])
    assert [(one.leader, one.other) for one in crossings({"wave": wave, "flat": flat})] == [
        ("flat", "wave"),
        ("wave", "flat"),
    ]
