"""The figures of studies as SVG: costs that grow by a power, and changes compared with the paper's.

Horizontal positions are per cent of the width, and text keeps its size. A figure therefore fits phones and screens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from transduce.evaluation.charts import Axis, axes, dot, linear_axis, log_axis, round_numbers, stretch, strokes
from transduce.evaluation.study_report import Figure

Points = Sequence[tuple[float, float]]
Curves = Mapping[str, Points]  # by name
COLOURS = ("first", "second", "third", "fourth")
ROW = 24  # pixels


def powers_svg(curves: Curves) -> str:
    """Return curves on two logarithmic axes, where a power is a straight line. Each size has a tick.

    All values must be positive."""
    sizes = sorted({size for curve in curves.values() for size, _ in curve})
    across = log_axis(sizes)
    across = Axis(across.low, across.high, sizes, [f"{size:,.0f}" for size in sizes], logarithmic=True)
    return _curves(curves, across, log_axis(_heights(curves)))


def progress_svg(curves: Curves, rings: Points = (), *, is_logarithmic: bool = True) -> str:
    """Return curves of a score against cost, which is on a linear axis from 0.

    rings: points that get a ring. is_logarithmic: the axis of the score; all scores must then be positive.
    """
    cost = linear_axis([x for curve in curves.values() for x, _ in curve])
    score = (log_axis if is_logarithmic else linear_axis)(_heights(curves))
    elements = [_curves(curves, cost, score)]
    elements += [dot((cost.position(x), 1 - score.position(y)), "ring", 6) for x, y in rings]
    return "\n".join(elements)


def laws_svg(measured: Curves, laws: Curves, lowest: Points) -> str:
    """Return measured points as dots with their name, a law as a line for each name, and a line of lowest points.

    Both axes are logarithmic, and end at the measured points. laws: empty if there is none.
    """
    across = log_axis([x for curve in measured.values() for x, _ in curve])
    up = log_axis(_heights(measured))

    def places(points: Points) -> list[tuple[float, float]]:
        return [(across.position(x), min(max(1 - up.position(y), 0.0), 1.0)) for x, y in points]

    elements = [*_frame(across, up), _line(places(lowest), "second")]
    for name, points in measured.items():
        if name in laws:
            elements.append(_line(places(laws[name]), "first"))
        elements += [dot(place, "first", 2.5) for place in places(points)]
        x, y = places(points)[0]
        label = f'x="{100 * x:.2f}%" y="{100 * y:.2f}%" dy="-.75em" text-anchor="middle"'
        elements.append(f"<text {label}>{name}</text>")
    return "\n".join(elements)


def _heights(curves: Curves) -> list[float]:
    return [y for curve in curves.values() for _, y in curve]


def _curves(curves: Curves, across: Axis, up: Axis) -> str:
    """Return the axes, and for each curve a line with a dot at every point."""
    elements = _frame(across, up)
    for colour, curve in zip(COLOURS, curves.values(), strict=False):
        points = [(across.position(x), 1 - up.position(y)) for x, y in curve]
        elements += [_line(points, colour), *(dot(point, colour, 2.5) for point in points)]
    return "\n".join(elements)


def _frame(across: Axis, up: Axis) -> list[str]:
    return ['<line class="base" x1="0" x2="100%" y1="100%" y2="100%"/>', *axes(across, up)]


def _line(places: Sequence[tuple[float, float]], colour: str) -> str:
    return stretch(f'<path class="{colour}" d="{strokes(places)}"/>')


def curves_figure(title: str, note: str, drawing: str, curves: Curves, words: Callable[[Points], str]) -> Figure:
    """Return the figure of curves by name. drawing: of all curves. words: describes a curve for screen readers."""
    alt = "; ".join(f"{name}: {words(points)}" for name, points in curves.items())
    return Figure(title, drawing, 280, alt, note, list(zip(curves, COLOURS, strict=False)))


def ends_in_ms(points: Points) -> str:
    """Return the first and the last point of a curve of milliseconds over a size."""
    return ", ".join(f"{y:.1f} ms at {x:,.0f}" for x, y in (points[0], points[-1]))


@dataclass(frozen=True)
class Change:
    """The difference of a row from base, in the paper and in our runs.

    in_runs: one per seed; empty if the row was not run.
    """

    name: str
    in_paper: float
    in_runs: Sequence[float]


def changes_svg(changes: Sequence[Change]) -> str:
    """Return a row for each change, with dots in two panels: the paper's, and ours with a line over the seeds."""
    theirs = [change.in_paper for change in changes]
    ours = [value for change in changes for value in change.in_runs]
    left = 'class="row" x="0" dx="-.75em" dy=".35em" text-anchor="end"'
    names = (f'<text {left} y="{_middle(i)}">{escape(change.name)}</text>' for i, change in enumerate(changes))
    return "\n".join(
        [
            *names,
            '<svg x="0" width="45%" overflow="visible">',
            *_panel("in the paper", theirs, len(changes)),
            *(dot for i, change in enumerate(changes) for dot in _dots([change.in_paper], theirs, i, "there")),
            '</svg><svg x="55%" width="45%" overflow="visible">',
            *_panel("here", ours, len(changes)),
            *(dot for i, change in enumerate(changes) for dot in _dots(change.in_runs, ours, i, "here")),
            "</svg>",
        ]
    )


def changes_height(count: int) -> int:
    """Return the height of `changes_svg` in pixels, for `count` changes."""
    return ROW * (count + 1)


def _middle(row: int) -> int:
    return ROW * row + ROW * 3 // 2


def _axis(values: Sequence[float]) -> Axis:
    low, high = min([0.0, *values]), max([0.0, *values])
    ticks = round_numbers(low, high if high > low else low + 1, about=3)
    return Axis(ticks[0], ticks[-1], ticks, [f"{tick:+.4g}" if round(tick, 9) else "0" for tick in ticks])


def _panel(title: str, values: Sequence[float], rows: int) -> Iterator[str]:
    """Yield title, axis and lines of a panel; the line at 0 is stronger."""
    axis, bottom = _axis(values), changes_height(rows)
    yield f'<text x="50%" y="10" text-anchor="middle">{title}</text>'
    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        x = f"{100 * axis.position(tick):.2f}%"
        kind = ' class="base"' if label == "0" else ""
        anchor = {axis.low: "start", axis.high: "end"}.get(tick, "middle")  # else panels would overlap on a phone
        yield f'<line{kind} x1="{x}" x2="{x}" y1="{ROW}" y2="{bottom}"/>'
        yield f'<text x="{x}" y="{bottom}" dy="1.25em" text-anchor="{anchor}">{label}</text>'
    for row in range(rows):
        yield f'<line x1="0" x2="100%" y1="{_middle(row)}" y2="{_middle(row)}"/>'


def _dots(values: Sequence[float], all_values: Sequence[float], row: int, kind: str) -> Iterator[str]:
    """Yield a dot at the mean; for several values also a faint dot at each, and a line between them."""
    if not values:
        yield f'<text x="50%" y="{_middle(row)}" dy=".35em" text-anchor="middle">not run</text>'
        return
    axis, y = _axis(all_values), _middle(row)
    mean, low, high = (
        f"{100 * axis.position(value):.2f}%" for value in (sum(values) / len(values), min(values), max(values))
    )
    if len(values) > 1:
        yield f'<line class="bar {kind}" x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>'
        for value in values:
            yield f'<circle class="seed {kind}" cx="{100 * axis.position(value):.2f}%" cy="{y}" r="3"/>'
    yield f'<circle class="{kind}" cx="{mean}" cy="{y}" r="4.5"/>'
