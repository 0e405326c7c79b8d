"""One matrix of attention weights as a picture: SVG, with its text as text. It is what the page shows first."""

from html import escape

import numpy as np

from transduce.decoding.hypothesis import Attended
from transduce.evaluation.attention_view import View
from transduce.evaluation.pieces import labels

# The colours of weights from 0 to 1, evenly spaced by the root of the weight. One hue; only the lightness counts.
LIGHT = ("#f1f3f6", "#cfe1ea", "#86b7cf", "#3f80a8", "#1d4e79", "#0d2440")
DARK = ("#1b222a", "#24405a", "#2f6a8f", "#5aa6c9", "#a5d6e6", "#f2fbff")
INK = "#1b2430"
PAPER = "#ffffff"
FAINT = "#5a6572"

LONGEST_LABEL = 18  # characters
FEW = 32  # columns; the cells of a larger matrix have no numbers
LEVELS = 32  # of colour
MARGIN = 16  # pixels around the picture
HEADING = 34  # pixels of the line above it
SCALE = 34  # pixels of the scale below it
WIDE = 0x2E80  # from here on, characters are about twice as wide
STYLE = (
    f"text {{ font: 13px system-ui, sans-serif; fill: {INK} }} .name {{ font-weight: bold }} "
    f".faint {{ fill: {FAINT} }} .row {{ text-anchor: end }} .n {{ font-size: 11px; text-anchor: middle }} "
    f".light {{ fill: {PAPER} }} .best {{ font-weight: bold }}"
)


def attention_svg(attended: Attended, view: View) -> str:
    """Return the picture of `view` as the text of an SVG file: queries down, keys across.

    Cells of a small matrix have their weights in per cent; in a large one, a dot marks the strongest of each row.
    """
    weights = view.weights(attended)
    rows, columns = ([_short(label) for label in labels(side)] for side in view.pieces(attended))
    n_rows, n_columns = weights.shape
    cell = 30 if n_columns <= FEW else 14
    left, top = MARGIN + _widest(rows), MARGIN + HEADING + _widest(columns)
    width = max(left + cell * n_columns, 260) + MARGIN
    bottom = top + cell * n_rows
    to, at = ("output" if side == "target" else side for side in _sides(view))
    parts = [
        _text(MARGIN, MARGIN + 12, f"{view.name}: {to} ↓ from {at} →", "name"),
        f'<rect x="{left}" y="{top}" width="{cell * n_columns}" height="{cell * n_rows}" fill="{LIGHT[0]}"/>',
        *_cells(weights, cell, left, top),
        *(_text(left - 7, top + (i + 0.5) * cell + 4.5, label, "row") for i, label in enumerate(rows)),
        *(_upright(left + (j + 0.5) * cell + 4.5, top - 7, label) for j, label in enumerate(columns)),
        *(_numbers(weights, cell, left, top) if n_columns <= FEW else _dots(weights, cell, left, top)),
        *_scale(left, bottom + 12),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + SCALE + MARGIN}" '
        f'viewBox="0 0 {width} {bottom + SCALE + MARGIN}" role="img">\n<title>Attention, {view.name}</title>\n'
        f'<style>{STYLE}</style>\n<rect width="100%" height="100%" fill="{PAPER}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def colour(weight: float) -> str:
    """Return the colour of a weight in the light scheme, as #rrggbb."""
    at = min(max(weight, 0.0), 1.0) ** 0.5 * (len(LIGHT) - 1)
    i = min(int(at), len(LIGHT) - 2)
    parts = [[int(stop[k : k + 2], 16) for k in (1, 3, 5)] for stop in LIGHT[i : i + 2]]
    return "#" + "".join(f"{round(a + (at - i) * (b - a)):02x}" for a, b in zip(*parts, strict=True))


def _sides(view: View) -> tuple[str, str]:
    return {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}[view.part]


def _cells(weights: np.ndarray, cell: int, left: int, top: int) -> list[str]:
    """Return one path for all cells of each level of colour."""
    levels = np.rint(LEVELS * np.sqrt(weights.clip(0, 1))).astype(int)
    paths = []
    for level in range(1, LEVELS + 1):
        squares = [
            f"M{left + j * cell} {top + i * cell}h{cell}v{cell}h-{cell}" for i, j in np.argwhere(levels == level)
        ]
        if squares:
            paths.append(f'<path fill="{colour((level / LEVELS) ** 2)}" d="{"".join(squares)}"/>')
    return paths


def _numbers(weights: np.ndarray, cell: int, left: int, top: int) -> list[str]:
    best = weights.argmax(1)
    return [
        _text(
            left + (j + 0.5) * cell,
            top + (i + 0.5) * cell + 4,
            f"{100 * weights[i, j]:.0f}",
            "n" + (" light" if _is_dark(float(weights[i, j])) else "") + (" best" if j == best[i] else ""),
        )
        for i, j in np.argwhere(weights >= 0.005)
    ]


def _dots(weights: np.ndarray, cell: int, left: int, top: int) -> list[str]:
    return [
        f'<circle cx="{left + (j + 0.5) * cell}" cy="{top + (i + 0.5) * cell}" r="2" '
        f'fill="{PAPER if _is_dark(float(weights[i, j])) else INK}"/>'
        for i, j in enumerate(weights.argmax(1))
    ]


def _is_dark(weight: float) -> bool:
    return weight**0.5 > 0.52


def _scale(left: int, top: int) -> list[str]:
    """Return the scale of colours, with the weights at its steps."""
    steps = [i / 10 for i in range(11)]
    squares = [
        f'<rect x="{left + 20 * i}" y="{top}" width="20" height="8" fill="{colour(s * s)}"/>'
        for i, s in enumerate(steps)
    ]
    texts = [_text(left + 200 * s, top + 22, f"{100 * s * s:.0f}", "faint") for s in (0, 0.2, 0.4, 0.6, 0.8)]
    return [*squares, *texts, _text(left + 200, top + 22, "100 %", "faint")]


def _text(x: float, y: float, text: str, css_class: str) -> str:
    return f'<text class="{css_class}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _upright(x: float, y: float, text: str) -> str:
    return f'<text transform="translate({x:g} {y:g}) rotate(-90)">{escape(text)}</text>'


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


def _widest(texts: list[str]) -> int:
    """Return about the width of the widest text in pixels, with the gap after it."""
    return 10 + round(max(sum(13.0 if ord(c) >= WIDE else 7.8 for c in text) for text in texts))
