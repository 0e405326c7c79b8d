"""Draw the attention of each target piece over the source pieces (§3.2 and the paper's appendix).

`attention_picture` draws the attention of one layer. On the left is the mean over its heads, with the pieces along the
edges; on the right is each head, in the same colours. H heads, T target pieces, S source pieces.
Lengths are in inches from the upper left corner. Drawing imports matplotlib; importing this module does not.
"""

import math
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from transduce.errors import UserError
from transduce.evaluation.pieces import marked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

_INK = "#2b2f36"
_FAINT_INK = "#7d8590"
# From no attention (0) to the maximum of all heads (1); steep at first, because means over heads are small.
_COLOURS = ((0, "#f1f3f6"), (0.08, "#cfe1ea"), (0.22, "#86b7cf"), (0.45, "#3f80a8"), (0.7, "#1d4e79"), (1, "#0d2440"))
_FONT = "DejaVu Sans"  # part of matplotlib: Latin, Greek, Cyrillic, and the signs used here
_LONGEST_LABEL = 18  # characters
_DOTS_PER_INCH = 150
_CAPTION = 0.2  # height of the line above a small panel
_GAP = 0.14  # between panels


def attention_picture(
    weights: ArrayLike,
    src_pieces: Sequence[str],
    tgt_pieces: Sequence[str],
    path: str | PathLike[str],
    *,
    title: str = "",
) -> None:
    """Write the attention `weights` (H, T, S) of one layer to `path`, a PNG: source across, target down.

    Each row of `weights` is a distribution over the source pieces. `readable` makes the labels. A character that no
    installed font has becomes a box.
    Raises UserError if `weights` are not attention over these pieces, or matplotlib is not installed.
    """
    attention = _validate(weights, len(src_pieces), len(tgt_pieces))
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("attention plot: expected the package matplotlib; pip install 'transduce[plot]'") from error
    figure = Figure(figsize=(1, 1), dpi=_DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    strongest = float(attention.max())
    n_heads, n_tgt, n_src = attention.shape
    cell = _cell_inches(n_src, n_tgt)
    width, height = n_src * cell, n_tgt * cell

    mean = _panel(figure, 0, 0, width, height)
    _draw(mean, attention.mean(axis=0), strongest, rule_points=4.5 * cell)
    _write(mean, readable(src_pieces), readable(tgt_pieces), title, points=min(10, 40 * cell))
    _draw_scale(figure, strongest, top=height + _GAP)
    if n_heads > 1:
        _draw_heads(figure, attention, strongest, left=width + 3 * _GAP, width=width, height=height)
    figure.savefig(path, format="png", bbox_inches="tight", pad_inches=0.15)


def readable(pieces: Sequence[str]) -> list[str]:
    """Return the pieces of one sentence as labels, marked as in `pieces.marked`.

    An unprintable character is `□`, and a long piece ends in `…`.
    """
    texts = ["".join(c if c.isprintable() else "□" for c in label) for label in marked(pieces)]
    return [text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…" for text in texts]


def _validate(weights: ArrayLike, n_src: int, n_tgt: int) -> np.ndarray:
    """Return `weights` as float64 (H, T, S). Raises UserError if they are not attention of T pieces over S pieces."""
    attention = np.asarray(weights, dtype=np.float64)
    expected = f"(heads, {n_tgt} target pieces, {n_src} source pieces)"
    if attention.ndim != 3 or attention.shape[1:] != (n_tgt, n_src) or attention.size == 0:
        raise UserError(f"weights of shape {attention.shape}: expected {expected}; give the weights of one layer")
    sums = attention.sum(axis=2)
    wrong = ~(np.abs(sums - 1) < 0.02) | (attention < 0).any(axis=2)  # 0.02: bfloat16 rounds; ~ catches NaN
    if wrong.any():
        head, row = (int(i) for i in np.argwhere(wrong)[0])
        raise UserError(
            f"weights of head {head}, row {row}: expected a distribution, without negative values and with sum 1; "
            f"the sum is {sums[head, row]:.4g} and the smallest value {attention[head, row].min():.4g}"
        )
    return attention


# ---- positions and sizes --------------------------------------------------------------------------------------------


def _cell_inches(n_src: int, n_tgt: int) -> float:
    """Return the side of a square of the large panel: legible up to about 50 pieces, and never wider than a screen."""
    longest = max(n_src, n_tgt)
    return min(0.42, max(0.27, 4.5 / longest), 14 / longest)


def _panel(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """Return empty axes with the upper left corner at (left, top)."""
    # The figure is 1 x 1 inch, so its relative units are inches. Saving with "tight" fits the page to the content.
    axes = figure.add_axes((left, 1 - top - height, width, height))
    axes.tick_params(length=0, colors=_INK)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def _draw_heads(
    figure: "Figure", attention: np.ndarray, strongest: float, *, left: float, width: float, height: float
) -> None:
    """Draw each head of attention (H, T, S), in rows to the right of a panel of `width` and `height`."""
    columns = math.isqrt(len(attention))
    rows = math.ceil(len(attention) / columns)
    scale = max((height + _CAPTION + _GAP) / rows - _CAPTION - _GAP, height / 5) / height
    for head, weights in enumerate(attention):
        row, column = divmod(head, columns)
        x = left + column * (scale * width + _GAP)
        top = row * (scale * height + _CAPTION + _GAP)
        panel = _panel(figure, x, top, scale * width, scale * height)
        _draw(panel, weights, strongest, rule_points=0)
        panel.set_title(f"head {head}", loc="left", fontsize=7, color=_FAINT_INK, pad=3)


# ---- contents -------------------------------------------------------------------------------------------------------


def _draw(axes: "Axes", weights: np.ndarray, strongest: float, *, rule_points: float) -> None:
    """Draw weights (T, S) as squares with white lines between them."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("attention", _COLOURS)
    axes.pcolormesh(weights, cmap=colours, vmin=0, vmax=strongest, edgecolors="white", linewidth=rule_points)
    axes.invert_yaxis()


def _write(axes: "Axes", src: Sequence[str], tgt: Sequence[str], title: str, *, points: float) -> None:
    """Write the source above the panel, the target on its left, and the title at the top."""
    font, known = _font_for("".join([*src, *tgt, title]))
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(len(src)) + 0.5, [_box(piece, known) for piece in src], rotation=90)
    axes.set_yticks(np.arange(len(tgt)) + 0.5, [_box(piece, known) for piece in tgt])
    heading = axes.set_title(_box(title, known), loc="left", pad=12, color=_INK)
    for text in [heading, *axes.get_xticklabels(), *axes.get_yticklabels()]:
        text.set(fontproperties=font, fontsize=points, parse_math=False)
    heading.set_fontsize(11)


def _draw_scale(figure: "Figure", strongest: float, *, top: float) -> None:
    """Draw the scale of colours from 0 to the strongest attention."""
    bar = _panel(figure, 0, top, 1.2, 0.08)
    _draw(bar, np.linspace(0, strongest, 64)[None], strongest, rule_points=0)
    bar.set_xticks([0, 64], ["0", f"{strongest:.2f}"], fontsize=7, color=_FAINT_INK)


# ---- fonts ----------------------------------------------------------------------------------------------------------


def _font_for(text: str) -> "tuple[FontProperties, frozenset[int]]":
    """Return a font for `text` and its code points: `_FONT`, and the installed font with most of the missing ones."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    families, known = [_FONT], frozenset(get_font(findfont(_FONT)).get_charmap())
    missing = {ord(character) for character in text} - known
    if missing:
        # "Last Resort" fonts have a box for every character.
        names = {entry.name for entry in fontManager.ttflist if not entry.name.startswith("Last Resort")}
        charmaps = {name: get_font(findfont(name)).get_charmap().keys() for name in sorted(names)}
        best = max(charmaps, key=lambda name: len(charmaps[name] & missing))
        if charmaps[best] & missing:
            families, known = [*families, best], known | charmaps[best]
    return FontProperties(family=families), known


def _box(text: str, known: frozenset[int]) -> str:
    """Return `text` with a box for each character that is not among the code points `known`."""
    return "".join(character if ord(character) in known else "□" for character in text)
