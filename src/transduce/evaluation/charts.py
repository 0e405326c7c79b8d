"""Charts of curves over training steps, as SVG without a script.

A chart fills its element. The browser stretches the square of 1000 x 1000 that the curves are drawn on. Text and dots,
which must keep their shape, have positions in per cent. The style of the page sets colours and widths by class.
"""

import bisect
import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_MOST_POINTS = 1_000  # of a curve
_MOST_DOTS = 60  # a longer curve of evaluations has no dots
_DENSE = 250  # a curve of this many points or more is a thin line

ChartPoint = tuple[float, float]  # from the left and from the top, both 0 to 1


@dataclass(frozen=True)
class Curve:
    """The values of one figure at training steps. Steps never decrease. A value that is not finite is nan."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

    def at(self, step: int) -> float:
        """Return the value at `step`, or the last one before it; nan if there is none."""
        index = bisect.bisect_right(self.steps, step)
        return self.values[index - 1] if index else math.nan

    def last(self) -> float:
        """Return the newest value; nan if there is none."""
        return self.values[-1] if self.values else math.nan

    def finite(self) -> list[tuple[int, float]]:
        """Return steps and values without the nan."""
        return [(step, value) for step, value in zip(self.steps, self.values, strict=True) if not math.isnan(value)]


def thin(curve: Curve, most: int = _MOST_POINTS) -> Curve:
    """Return at most `most` points of `curve`.

    They are both ends, and the lowest, the highest and a nan of each of several equal intervals.
    """
    count, values = len(curve.steps), curve.values
    if count <= most:
        return curve
    interval = math.ceil(count / ((most - 2) // 3))
    selection = {0, count - 1}
    for start in range(0, count, interval):
        indices = range(start, min(start + interval, count))
        finite = [i for i in indices if not math.isnan(values[i])]
        if finite:
            selection |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        if len(finite) < len(indices):
            selection.add(next(i for i in indices if math.isnan(values[i])))
    indices = sorted(selection)
    return Curve(array("q", (curve.steps[i] for i in indices)), array("d", (values[i] for i in indices)))


def kind(key: str) -> str:
    """Return the CSS class of a figure of the log: the data that it was measured on."""
    return "validation" if key.startswith("valid_") else "training"


# ---- drawing -----------------------------------------------------------------------------------------------------


def chart_svg(
    curves: dict[str, Curve],
    *,
    last_step: int,
    logarithmic: bool,
    best_step: int | None = None,
    skipped: Collection[int] = (),
) -> str:
    """Return the content of an <svg>: axes and `curves`, by their keys in the log.

    last_step: the end of the axis of steps. logarithmic: True for a logarithmic axis of values, all positive.
    best_step: the step of the evaluation that gets a ring. skipped: steps that get a mark on the axis.
    """
    across = step_axis(last_step)
    values = [value for curve in curves.values() for _, value in curve.finite()]
    up = log_axis(values) if logarithmic else linear_axis(values)
    is_empty = not any(curve.steps for curve in curves.values())
    elements = [
        '<line class="base" x1="0" x2="100%" y1="100%" y2="100%"/>',
        *(['<text x="50%" y="50%" text-anchor="middle">nothing yet</text>'] if is_empty else axes(across, up)),
        *(element for key, curve in curves.items() for element in _curve(key, curve, across, up, best_step)),
        *_skip_marks(skipped, across),
    ]
    return "\n".join(elements)


def axes(across: "Axis", up: "Axis") -> Iterator[str]:
    """Yield lines and labels of two axes, which start at the lower left."""
    for tick, label in zip(up.ticks, up.labels, strict=True):
        y = f"{100 - 100 * up.position(tick):.2f}%"
        yield f'<line x1="0" x2="100%" y1="{y}" y2="{y}"/>'
        yield f'<text class="y" x="0" y="{y}" dx="-.75em" dy=".35em" text-anchor="end">{label}</text>'
    for tick, label in zip(across.ticks, across.labels, strict=True):
        x = f"{100 * across.position(tick):.2f}%"
        yield f'<line class="base" x1="{x}" x2="{x}" y1="100%" y2="102%"/>'
        yield f'<text class="x" x="{x}" y="100%" dy="1.75em" text-anchor="middle">{label}</text>'


def _curve(key: str, curve: Curve, across: "Axis", up: "Axis", best_step: int | None) -> Iterator[str]:
    """Yield the curve, with gaps where it is not finite, a dot for each evaluation, and a ring at the best one."""
    points = [
        None if math.isnan(value) else (across.position(step), 1 - up.position(value))
        for step, value in zip(curve.steps, curve.values, strict=True)
    ]
    dense = " dense" if len(points) >= _DENSE else ""
    yield stretch(f'<path class="{kind(key)}{dense}" data-curve="{key}" d="{strokes(points)}"/>')
    if kind(key) == "training":
        return
    if len(points) <= _MOST_DOTS:
        yield from (dot(point, "validation", 2.5) for point in points if point)
    if best_step is not None and not math.isnan(curve.at(best_step)):
        yield dot((across.position(best_step), 1 - up.position(curve.at(best_step))), "validation best", 4)


def strokes(points: Sequence[ChartPoint | None]) -> str:
    """Return the path of lines between neighbouring points; None is a gap.

    A point without neighbours becomes a dot, because line ends are round.
    """
    commands, pen_is_down = [], False
    for point in points:
        if point is not None:
            target = f"{1000 * point[0]:.2f} {1000 * point[1]:.2f}"
            commands.append(f"L{target}" if pen_is_down else f"M{target}h0")
        pen_is_down = point is not None
    return "".join(commands)


def dot(point: ChartPoint, name: str, radius: float) -> str:
    """Return a dot of the class `name`. radius: in pixels."""
    return f'<circle class="{name}" cx="{100 * point[0]:.2f}%" cy="{100 * point[1]:.2f}%" r="{radius}"/>'


def _skip_marks(skipped: Collection[int], across: "Axis") -> Iterator[str]:
    """Yield a short line on the axis for each step; steps at the same position share one."""
    positions = sorted({round(1000 * across.position(step)) for step in skipped})
    if positions:
        yield stretch(f'<path class="skips" d="{"".join(f"M{x} 1000V940" for x in positions)}"/>')


def stretch(path: str) -> str:
    """Return a path on the square of 1000 x 1000, which the browser stretches over the chart."""
    return f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none">{path}</svg>'


# ---- axes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """A scale from values to positions: `low` is at 0, `high` at 1."""

    low: float
    high: float
    ticks: list[float]
    labels: list[str]
    logarithmic: bool = False

    def position(self, value: float) -> float:
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def step_axis(last_step: int) -> Axis:
    """Return an axis from 0 to the last step, which need not be a round number."""
    high = max(last_step, 1)
    ticks = [tick for tick in round_numbers(0, high) if tick <= high and tick == int(tick)]
    return Axis(0, high, ticks, _labels(ticks))


def linear_axis(values: Iterable[float]) -> Axis:
    """Return an axis from 0, or a round number below all values, to a round number above them."""
    low, high = min([0.0, *values]), max([0.0, *values])
    ticks = round_numbers(low, high if high > low else low + 1)
    return Axis(ticks[0], ticks[-1], ticks, _labels(ticks))


def log_axis(values: Iterable[float]) -> Axis:
    """Return a logarithmic axis a little wider than the positive `values`, with at least two round numbers as ticks."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    if high < 1.2 * low:
        low, high = low / 1.1, high * 1.1
    margin = (high / low) ** 0.04
    low, high = low / margin, high * margin
    if high < 4 * low:
        ticks = [tick for tick in round_numbers(low, high) if low <= tick <= high]
        return Axis(low, high, ticks, _labels(ticks), logarithmic=True)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 3, 5, 7) if high < 30 * low else (1, 2, 5) if high < 1_000 * low else (1,)
    stride = math.ceil((last - first) / 7) if digits == (1,) else 1
    ticks = [digit * 10.0**power for power in range(first, last + 1, stride) for digit in digits]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return Axis(low, high, ticks, [_label(tick) for tick in ticks], logarithmic=True)


def round_numbers(low: float, high: float, about: int = 5) -> list[float]:
    """Return about `about` multiples of 1, 2 or 5 times a power of ten, from `low` or below to `high` or above."""
    power = 10.0 ** math.floor(math.log10((high - low) / about))
    step = next((digit * power for digit in (1, 2, 5) if digit * power * about >= high - low), 10 * power)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [count * step for count in range(first, last + 1)]


def _labels(ticks: Sequence[float]) -> list[str]:
    """Return the labels of ticks, all in one unit and with equally many decimals: 0, 2.5k, 5.0k."""
    top = max(abs(tick) for tick in ticks)
    unit, letter = (1e6, "M") if 1e6 <= top < 1e9 else (1e3, "k") if 1e4 <= top < 1e6 else (1, "")
    texts = [_label(tick / unit) for tick in ticks]
    if not any("e" in text for text in texts):
        digits = max(len(text.partition(".")[2]) for text in texts)
        texts = [f"{tick / unit:,.{digits}f}" for tick in ticks]
    return [text + letter if tick else "0" for tick, text in zip(ticks, texts, strict=True)]


def _label(value: float) -> str:
    """Return the shortest form of a round number: 0.25, 1,000, 1e-5."""
    if 1e-4 <= abs(value) < 1e6:
        return f"{value:,.10f}".rstrip("0").rstrip(".")
    mantissa, _, power = f"{value:.6g}".partition("e")
    return f"{mantissa}e{int(power)}" if power else mantissa
