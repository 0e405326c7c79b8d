"""Charts: the values that are read back from a drawing, by the labels on its axes, equal the input."""

import math
import re
from collections.abc import Callable, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.evaluation.charts import Axis, Curve, chart_svg, linear_axis, log_axis, round_numbers, step_axis, thin

UNITS = {"k": 1e3, "M": 1e6}
magnitudes = st.floats(-98.9, 98.9).map(lambda power: 10**power)


def curve(*points: tuple[int, float]) -> Curve:
    result = Curve()
    for step, value in points:
        result.add(step, value)
    return result


def points_of(a_curve: Curve) -> list[tuple[int, float]]:
    return list(zip(a_curve.steps, a_curve.values, strict=True))


def draw(curves: dict[str, Curve], *, last_step: int = 1_000, logarithmic: bool = False, **options: object) -> Element:
    content = chart_svg(curves, last_step=last_step, logarithmic=logarithmic, **options)  # type: ignore[arg-type]
    return ElementTree.fromstring(f"<svg>{content}</svg>")


def percent(text: str | None) -> float:
    assert text is not None and text.endswith("%")
    return float(text[:-1]) / 100


def number(label: str | None) -> float:
    """Return the number that a label of an axis stands for."""
    assert label
    return float(label.rstrip("kM").replace(",", "")) * UNITS.get(label[-1], 1)


def scale(svg: Element, name: str, logarithmic: bool) -> Callable[[float], float]:
    """Return the map from a position (0 to 1) to a value, by the outermost labels of axis `name`."""
    labels = [(percent(text.get(name)), number(text.text)) for text in svg.findall(f"text[@class='{name}']")]
    (p0, v0), (p1, v1) = min(labels), max(labels)
    assert p0 != p1
    if logarithmic:
        return lambda position: math.exp(math.log(v0) + (position - p0) / (p1 - p0) * (math.log(v1) - math.log(v0)))
    return lambda position: v0 + (position - p0) / (p1 - p0) * (v1 - v0)


def path_of(svg: Element, key: str) -> str:
    path = svg.find(f".//path[@data-curve='{key}']")
    assert path is not None
    return path.attrib["d"]


def positions_of(path: str) -> list[tuple[float, float]]:
    return [(float(x) / 1000, float(y) / 1000) for x, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", path)]


# ---- drawings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize(
    ("last_step", "values"),
    [
        (900, [7.83, 6.25, 5.67, 4.1, 3.2, 3.05, 2.98]),
        (36_000_000, [0.0003, 0.0002, 0.00011, 0.0001]),
        (50_000, [17_500.0, 16_000.0, 18_250.0]),
        (7, [50.9, 17.6, 10.2, 6.8]),
        (12_345, [1_000.0, 0.01, 3.0, 1e5]),
        (400, [33.61, 33.62]),
    ],
)
def test_a_curve_agrees_with_the_labels(logarithmic: bool, last_step: int, values: list[float]) -> None:
    steps = [round(last_step * (i + 1) / len(values)) for i in range(len(values))]
    svg = draw({"loss": curve(*zip(steps, values, strict=True))}, last_step=last_step, logarithmic=logarithmic)
    assert len(svg.findall("text[@class='x']")) >= 2 and len(svg.findall("text[@class='y']")) >= 2
    step_at, value_at = scale(svg, "x", False), scale(svg, "y", logarithmic)
    points = positions_of(path_of(svg, "loss"))
    assert [step_at(x) for x, _ in points] == pytest.approx(steps, abs=last_step / 2_000)
    if logarithmic:
        assert [math.log(value_at(y)) for _, y in points] == pytest.approx([math.log(v) for v in values], abs=0.02)
    else:
        assert [value_at(y) for _, y in points] == pytest.approx(values, abs=max(values) / 2_000)


def test_larger_is_higher_and_later_is_further_right() -> None:
    (x0, y0), (x1, y1) = positions_of(path_of(draw({"lr": curve((100, 0.1), (900, 0.4))}), "lr"))
    assert x0 < x1 and y1 < y0


def test_two_curves_share_their_axes() -> None:
    svg = draw({"loss": curve((100, 4.0), (200, 2.0)), "valid_loss": curve((200, 2.0))})
    assert positions_of(path_of(svg, "loss"))[1] == positions_of(path_of(svg, "valid_loss"))[0]


def test_a_curve_has_gaps_where_it_is_not_finite() -> None:
    svg = draw({"loss": curve((1, 5.0), (2, 4.0), (3, math.nan), (4, 3.0), (5, math.nan), (6, 2.0), (7, 1.0))})
    path = path_of(svg, "loss")
    assert re.sub(r"[^MLh]", "", path) == "MhLMhMhL"
    assert len(positions_of(path)) == 5


def test_evaluations_have_dots_and_the_best_a_ring() -> None:
    svg = draw({"valid_bleu": curve((100, 10.0), (200, 30.0), (300, math.nan), (400, 20.0))}, best_step=200)
    dots = [(percent(dot.get("cx")), percent(dot.get("cy"))) for dot in svg.findall("circle[@class='validation']")]
    expected = positions_of(path_of(svg, "valid_bleu"))
    assert len(dots) == 3 and sum(dots, ()) == pytest.approx(sum(expected, ()), abs=1e-4)
    (ring,) = svg.findall("circle[@class='validation best']")
    assert (percent(ring.get("cx")), percent(ring.get("cy"))) == dots[1]
    assert not draw({"loss": curve((200, 3.0))}, best_step=200).findall("circle")


def test_skipped_steps_are_marked_once() -> None:
    svg = draw({"loss": curve((1_000, 3.0))}, skipped=[250, 250, 700])
    marks = svg.find(".//path[@class='skips']")
    assert marks is not None and re.findall(r"M(\d+)", marks.attrib["d"]) == ["250", "700"]
    many = draw({"loss": curve((10**6, 3.0))}, last_step=10**6, skipped=range(10**5)).find(".//path[@class='skips']")
    assert many is not None and len(many.attrib["d"]) < 2_000


@pytest.mark.parametrize("logarithmic", [False, True])
def test_an_empty_chart_has_a_note_and_no_labels(logarithmic: bool) -> None:
    svg = draw({}, last_step=0, logarithmic=logarithmic)
    assert [text.text for text in svg.findall("text")] == ["nothing yet"]
    draw({"loss": curve((5, math.nan))}, last_step=5, logarithmic=logarithmic)


# ---- axes --------------------------------------------------------------------------------------------------------


def check(axis: Axis, values: Sequence[float]) -> None:
    """Check that the values are on the axis, and that its labels are few, different and equal to the ticks."""
    assert all(-1e-6 <= axis.position(value) <= 1 + 1e-6 for value in values)
    assert 2 <= len(axis.ticks) <= 11 and all(-1e-6 <= axis.position(tick) <= 1 + 1e-6 for tick in axis.ticks)
    assert axis.ticks == sorted(set(axis.ticks)) and len(set(axis.labels)) == len(axis.labels)
    assert all(len(label) <= 8 for label in axis.labels)
    assert [number(label) for label in axis.labels] == pytest.approx(axis.ticks, rel=1e-9, abs=1e-99)


@given(st.lists(magnitudes, min_size=1))
def test_any_positive_values_fit_a_log_axis(values: list[float]) -> None:
    check(log_axis(values), values)


@given(st.lists(magnitudes | magnitudes.map(lambda value: -value) | st.just(0.0)))
def test_any_values_fit_a_linear_axis(values: list[float]) -> None:
    check(linear_axis(values), values)


@given(st.integers(1, 2**53))
def test_any_number_of_steps_fits_its_axis(last_step: int) -> None:
    axis = step_axis(last_step)
    check(axis, [0, last_step])
    assert axis.position(last_step) == 1 and all(tick == int(tick) for tick in axis.ticks)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (0, 36.2, [0, 10, 20, 30, 40]), (0, 0.0035, [0, 0.001, 0.002, 0.003, 0.004])],
)
def test_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert round_numbers(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("axis", "labels"),
    [
        (step_axis(4_500), ["0", "1,000", "2,000", "3,000", "4,000"]),
        (step_axis(12_500), ["0", "5k", "10k"]),
        (step_axis(2_400_000), ["0", "0.5M", "1.0M", "1.5M", "2.0M"]),
        (step_axis(3), ["0", "1", "2", "3"]),
        (linear_axis([0.0014]), ["0", "0.0005", "0.0010", "0.0015"]),
        (linear_axis([4e-5]), ["0", "1e-5", "2e-5", "3e-5", "4e-5"]),
        (log_axis([5, 51]), ["5", "7", "10", "20", "30", "50"]),
        (log_axis([0.4, 1.1]), ["0.4", "0.6", "0.8", "1.0"]),
        (log_axis([1, 2e5]), ["1", "10", "100", "1,000", "10,000", "100,000"]),
    ],
)
def test_labels(axis: Axis, labels: list[str]) -> None:
    assert axis.labels == labels


# ---- thinning ----------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e9, 1e9) | st.just(math.nan), max_size=300), st.integers(8, 50))
def test_thinning_keeps_ends_extremes_and_breaks(values: list[float], most: int) -> None:
    original = curve(*enumerate(values))
    selection = thin(original, most)
    assert len(selection.steps) == len(selection.values) <= max(most, 0)
    assert list(selection.steps) == sorted(set(selection.steps))
    assert all(repr(value) == repr(values[step]) for step, value in points_of(selection))  # repr: nan is not itself
    if values:
        assert (selection.steps[0], selection.steps[-1]) == (0, len(values) - 1)
    finite = [value for value in values if not math.isnan(value)]
    remaining = [value for _, value in selection.finite()]
    if finite:
        assert (min(remaining), max(remaining)) == (min(finite), max(finite))
    assert any(math.isnan(value) for value in selection.values) == (len(finite) < len(values))


def test_thinning_keeps_each_spike_of_a_long_curve() -> None:
    original = curve(*((step, 50.0 + step if step % 10_000 == 77 else step % 7) for step in range(100_000)))
    selection = thin(original)
    assert len(selection.steps) <= 1_000
    assert {step for step, value in points_of(selection) if value >= 50} == set(range(77, 100_000, 10_000))


def test_a_short_curve_is_not_thinned() -> None:
    original = curve(*((step, float(step)) for step in range(1_000)))
    assert thin(original) is original


def test_the_value_at_a_step_is_the_last_one_up_to_it() -> None:
    steps = curve((10, 1.0), (20, 2.0), (20, 3.0))
    assert [steps.at(step) for step in (10, 19, 20, 99)] == [1.0, 1.0, 3.0, 3.0]
    assert math.isnan(steps.at(9)) and math.isnan(Curve().at(5)) and math.isnan(Curve().last())
