"""The attention picture: its pixels, its labels, and the weights that it refuses."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from transduce.errors import UserError
from transduce.evaluation.attention_plot import attention_picture, readable

STRONGEST = (0x0D, 0x24, 0x40)  # the colour of the largest weight


def pixels(path: Path) -> np.ndarray:
    """Return the pixels (height, width, 3) of a PNG, 0 to 255; fail if it is not one."""
    from matplotlib.image import imread

    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    return np.rint(255 * imread(path, format="png")[:, :, :3]).astype(int)


def draw(
    tmp_path: Path, weights: ArrayLike, src: Sequence[str], tgt: Sequence[str], title: str = "", name: str = "a.png"
) -> np.ndarray:
    attention_picture(weights, src, tgt, tmp_path / name, title=title)
    return pixels(tmp_path / name)


def attention(n_heads: int, n_tgt: int, n_src: int) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.full(n_src, 0.2), size=(n_heads, n_tgt))


def strongest(image: np.ndarray) -> np.ndarray:
    """Return a mask (height, width) of the pixels that have the colour of the largest weight."""
    return (image == STRONGEST).all(axis=2)


def test_source_goes_across_and_target_down(tmp_path: Path) -> None:
    """Target 0 attends to source 2, target 1 to source 0, target 2 to source 1."""
    image = draw(tmp_path, [[[0, 0, 1], [1, 0, 0], [0, 1, 0]]], ["▁a", "▁b", "▁c"], ["▁x", "▁y", "▁z"])
    mask = strongest(image)
    rows = np.flatnonzero(mask.sum(axis=1) > 20)  # the end of the scale below is narrower
    bands = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    x0, x1, x2 = (float(np.nonzero(mask[band])[1].mean()) for band in bands)
    y0, y1, y2 = (float(band.mean()) for band in bands)
    assert (y2 - y1, x2 - x1, x0 - x2) == pytest.approx((y1 - y0,) * 3, abs=1)


def test_every_head_is_drawn_beside_the_mean(tmp_path: Path) -> None:
    """Head 0 attends to sources 0 and 1, head 1 below it to source 8; their mean is weaker than both everywhere."""
    heads = np.eye(9)[[[0, 1], [8, 8]]]
    mask = strongest(draw(tmp_path, heads, ["▁a"] * 9, ["▁x", "▁y"]))
    middle = mask.shape[1] // 2
    assert mask[:, :middle].any(axis=1).sum() < 15  # only the end of the scale
    ys, xs = np.nonzero(mask[:, middle:])
    upper = ys < (ys.min() + ys.max()) / 2
    assert xs[upper].max() <= xs[~upper].min()
    assert 0.9 < upper.sum() / (~upper).sum() < 1.1


@pytest.mark.parametrize(
    ("n_heads", "n_tgt", "n_src"), [(1, 1, 1), (8, 10, 12), (8, 42, 40), (7, 3, 30), (16, 30, 3), (1, 2, 200)]
)
def test_the_picture_fits_a_screen(tmp_path: Path, n_heads: int, n_tgt: int, n_src: int) -> None:
    image = draw(tmp_path, attention(n_heads, n_tgt, n_src), ["▁Grüße"] * n_src, ["▁weiß"] * n_tgt, title="Title")
    height, width, _ = image.shape
    assert 100 < width < 4000
    assert 100 < height < 3000
    assert (image[[0, -1]] == 255).all()  # a white margin: nothing is cut off
    assert (image[:, [0, -1]] == 255).all()


def test_the_same_input_gives_the_same_file(tmp_path: Path) -> None:
    pictures = []
    for name in ("one.png", "two.anything"):
        attention_picture(attention(2, 3, 3), ["▁a"] * 3, ["▁b"] * 3, tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize(
    ("pieces", "labels"),
    [
        (["▁Das", "▁Ha", "us", "▁groß", "."], ["Das", "Ha", "·us", "groß", "."]),
        (["Üb", "ung", "▁2", "0", "</s>"], ["Üb", "·ung", "2", "·0", "</s>"]),
        (["▁Hau", "s"], ["Hau", "s"]),
        (["▁私", "は", "犬"], ["私", "は", "犬"]),
        (["▁", "▁▁a", " ", "<0x0A>"], ["␣", "␣a", "␣", "<0x0A>"]),
        (["▁a\nb", "▁\0", "▁\u2028x"], ["a□b", "□", "□x"]),
        (["▁" + "x" * 18, "y" * 19, ""], ["x" * 18, "y" * 17 + "…", "␣"]),
        ([], []),
    ],
)
def test_pieces_become_labels(pieces: list[str], labels: list[str]) -> None:
    assert readable(pieces) == labels


def test_characters_that_no_font_has_are_boxes(tmp_path: Path) -> None:
    """U+10FFFD is for private use."""
    weights = attention(1, 1, 1)
    unknown = draw(tmp_path, weights, ["▁\U0010fffd"], ["▁x"], title="\U0010fffd")
    assert np.array_equal(unknown, draw(tmp_path, weights, ["▁□"], ["▁x"], title="□"))


def test_a_second_font_has_the_missing_characters(tmp_path: Path) -> None:
    """A letter of STIX, a font of matplotlib, that the usual font does not have; and an umlaut, which it has."""
    from matplotlib.font_manager import findfont, get_font

    usual, stix = (get_font(findfont(name)).get_charmap() for name in ("DejaVu Sans", "STIXGeneral"))
    letter = next(chr(point) for point in sorted(stix) if point not in usual and chr(point).isalpha())
    weights = attention(1, 1, 1)
    box = draw(tmp_path, weights, ["□"], ["▁x"])
    for text in (letter, "ä"):
        assert not np.array_equal(draw(tmp_path, weights, [text], ["▁x"]), box)


@pytest.mark.parametrize("title", ["$\\nonsense{$ costs $5", "a $ b ^{ \\", "日本語 עברית 🎉", "x" * 300])
def test_any_text_can_be_written(tmp_path: Path, title: str) -> None:
    pieces = title.split() or ["▁"]
    assert draw(tmp_path, attention(2, len(pieces), len(pieces)), pieces, pieces, title=title).size


@pytest.mark.parametrize("shape", [(3, 4), (1, 2, 3, 4), (2, 4, 3), (2, 3, 5), (0, 3, 4)])
def test_shape_must_fit_the_pieces(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as error:
        attention_picture(np.full(shape, 0.25), ["▁s"] * 4, ["▁t"] * 3, tmp_path / "a.png")
    assert f"weights of shape {shape}: expected (heads, 3 target pieces, 4 source pieces)" in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("row", "fault"), [([0.5, 0.4], "sum is 0.9"), ([1.5, -0.5], "smallest value -0.5"), ([np.nan, 1], "sum is nan")]
)
def test_rows_must_be_distributions(tmp_path: Path, row: list[float], fault: str) -> None:
    weights = np.full((2, 3, 2), 0.5)
    weights[1, 2] = row
    with pytest.raises(UserError, match=f"weights of head 1, row 2: expected a distribution.*{fault}"):
        attention_picture(weights, ["▁s"] * 2, ["▁t"] * 3, tmp_path / "a.png")


def test_half_precision_is_precise_enough(tmp_path: Path) -> None:
    attention_picture(attention(2, 3, 40).astype(np.float16), ["▁s"] * 40, ["▁t"] * 3, tmp_path / "a.png")


def test_without_matplotlib_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"pip install 'transduce\[plot\]'"):
        attention_picture(attention(1, 1, 1), ["▁a"], ["▁b"], tmp_path / "a.png")


def test_only_drawing_imports_matplotlib_and_never_pyplot(tmp_path: Path) -> None:
    code = f"""
import sys
from transduce.evaluation.attention_plot import attention_picture
assert "matplotlib" not in sys.modules
attention_picture([[[1.0]]], ["a"], ["b"], {str(tmp_path / "a.png")!r})
assert "matplotlib.pyplot" not in sys.modules
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
