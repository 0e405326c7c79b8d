"""The page of attention: its weights, its size, its texts that are data, and its other forms."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.attention import HOSTILE, data_of, long_attended, random_attended, weights_of
from support.pages import Page

from transduce.decoding.hypothesis import Attended
from transduce.errors import UserError
from transduce.evaluation.attention_file import MOST_TOKENS, write_attention
from transduce.evaluation.attention_page import attention_page
from transduce.evaluation.attention_svg import attention_svg, colour
from transduce.evaluation.attention_view import PARTS, View, find_view, views
from transduce.evaluation.lens import Inside

MEGABYTE = 1_000_000


def page_of(attended: Attended, name: str | None = None) -> str:
    return attention_page(attended, find_view(attended, name), "run/model")


def test_weights_in_the_page_equal_the_arrays() -> None:
    attended = long_attended(20, layers=3, heads=4)
    weights = weights_of(page_of(attended))
    for part in PARTS:
        expected = getattr(attended, part)
        assert np.abs(weights[part] - expected).max() < 0.0032
        assert ((weights[part] == 0) | (expected > 0)).all()


@pytest.mark.parametrize(("length", "megabytes"), [(30, 0.25), (100, 2)])
def test_a_page_of_the_base_model_is_small(length: int, megabytes: float) -> None:
    """6 layers of 8 heads, three times, with random weights, which are harder to compress than a model's."""
    size = len(page_of(long_attended(length, layers=6, heads=8)).encode())
    print(f"{length} tokens: {size / MEGABYTE:.2f} MB")
    assert size < megabytes * MEGABYTE


def test_a_long_sentence_has_one_layer_and_says_so() -> None:
    attended = long_attended(401, layers=2, heads=2)
    page = page_of(attended, "encoder 1.2")
    parts = "encoder 1 of 2, decoder 1 of 2, cross 1 of 2"
    assert f"One layer of each part: {parts}. A side has more than 400 tokens." in Page(page).text
    assert [kind["layers"] for kind in data_of(page)["kinds"]] == [[1]] * 3 and not data_of(page)["rollout"]
    np.testing.assert_allclose(weights_of(page)["cross"], attended.cross[:1], atol=0.004)
    shorter = page_of(long_attended(400, layers=2, heads=1))
    assert "One layer" not in Page(shorter).text and data_of(shorter)["kinds"][0]["layers"] == [1, 2]


def test_a_rival_of_table_2_has_only_cross_attention() -> None:
    data = data_of(page_of(random_attended(heads=1, self_layers=0)))
    assert [kind["layers"] for kind in data["kinds"]] == [[], [], [1, 2]]
    assert data["first"] == ["cross", 2, 1] and not data["rollout"]


def test_the_worth_of_heads_is_shown_where_it_is_known(tmp_path: Path) -> None:
    attended = random_attended(layers=2, heads=2)
    worth = {view.name: 0.1 for view in views(attended) if isinstance(view.head, int)}
    write_attention(attended, tmp_path / "a.html", worth=worth)
    assert data_of((tmp_path / "a.html").read_text("utf-8"))["worth"] == worth
    assert data_of(page_of(attended))["worth"] is None
    for wrong in ({}, {**worth, "cross 9.9": 1.0}):
        with pytest.raises(UserError, match="^heads: expected the heads of this model, but .* is in only one"):
            write_attention(attended, tmp_path / "b.html", worth=wrong)


def test_answers_of_layers_are_data(tmp_path: Path) -> None:
    """Each piece is a label, and no script runs, whatever the vocabulary has."""
    attended = random_attended()
    answers = np.array([[[HOSTILE[0], HOSTILE[4], "▁x"]] * 4] * 3)
    numbers = np.log(np.full((3, 4, 3), 0.25, "f4"))
    effects: dict[Any, np.ndarray] = {part: np.full((2, 2, 4), 0.5, "f4") for part in PARTS}
    effects["encoder"] = effects["encoder"][:0]
    inside = Inside(answers, numbers, numbers[..., 0], effects, "</script> \u202ea")
    page = attention_page(attended, find_view(attended), inside=inside)
    assert [tag for tag, _ in Page(page).elements].count("script") == 3 and not re.search("[\u202e\u202c]", page)
    data = data_of(page)["inside"]
    assert data["answers"][0][0] == ["</script><script>alert(1)</script>", "\\u202eabc\\u202c", "x"]
    assert data["probabilities"][2][3] == data["target"][2][:3] == [0.25] * 3
    assert [effect["head"] for effect in data["effects"][::4]] == ["decoder 1.1", "cross 1.1"]
    assert "the heads of the encoder are left out" in data["note"] and "\\u202ea" in data["note"]
    assert 'id="inside" hidden' in page


# ---- the page as a file ------------------------------------------------------------------------------------------


def test_text_is_data() -> None:
    page = page_of(random_attended(HOSTILE, HOSTILE))
    elements = Page(page).elements
    assert [tag for tag, _ in elements].count("script") == 3 and "img" not in {tag for tag, _ in elements}
    assert "alert" not in "".join(re.findall(r"<script>(.*?)</script>", page, re.DOTALL))
    assert not re.search("[\u2028\u202e\u202c\u200f\x00\x1b]", page)
    data = data_of(page)
    assert data["source"]["labels"][0] == "</script><script>alert(1)</script>"
    assert data["source"]["labels"][4] == "\\u202eabc\\u202c" and data["source"]["labels"][11] == "שלום"
    assert data["source"]["labels"][8:10] == ["$title", "${1+1}"]


def test_the_page_loads_nothing() -> None:
    page = Page(page_of(random_attended()))
    assert {*page.loads()} <= {"//"}  # in comments of the script, and in this name, which no browser loads:
    assert re.findall(r"\w+://[^\s\"]+", page.source) == ["http://www.w3.org/2000/svg"]
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy and policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy


def test_the_description_names_what_is_shown_first() -> None:
    data = data_of(page_of(random_attended(), "decoder 1.2"))
    assert data["first"] == ["decoder", 1, 2]
    assert data["target"]["words"] == [[0, 2, " xy"], [2, 3, " z"], [3, 4, "</s>"]]
    assert data["probabilities"] == pytest.approx([0.3, 0.5333, 0.7667, 1.0], abs=1e-3)


# ---- the other forms ---------------------------------------------------------------------------------------------


def test_npz_has_every_array(tmp_path: Path) -> None:
    attended = random_attended(layers=3)
    write_attention(attended, tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        for part in PARTS:
            np.testing.assert_array_equal(arrays[part], getattr(attended, part))
            assert arrays[part].dtype == np.float32
            assert arrays[f"{part}_heads"][2, 1] == f"{part} 3.2"
        assert tuple(arrays["src"]) == attended.src_pieces and tuple(arrays["tgt"]) == attended.tgt_pieces
        np.testing.assert_array_equal(arrays["log_probs"], attended.log_probs)


def test_svg_is_the_first_view_with_text_as_text(tmp_path: Path) -> None:
    attended = random_attended(HOSTILE, ["▁x", "▁&<>", "</s>"])
    write_attention(attended, tmp_path / "a.svg", head="cross 1.2")
    root = ET.parse(tmp_path / "a.svg").getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "cross 1.2: output ↓ from source →" in texts
    assert {"x", "&<>", "</s>", "\\u202eabc\\u202c", "שלום", "</script><script>…"} <= {*texts}
    numbers = sorted(round(100 * weight) for weight in attended.cross[0, 1].flat if weight >= 0.005)
    inside = [element.text for element in root.iter() if (element.get("class") or "").startswith("n ")]
    inside += [element.text for element in root.iter() if element.get("class") == "n"]
    assert sorted(map(int, filter(None, inside))) == numbers


def test_svg_has_source_across_and_target_down() -> None:
    """Target x attends to source c, y to a, z to b."""
    weights = np.array([[[[0, 0, 1], [1, 0, 0], [0, 1, 0]]]], dtype="f4")
    attended = Attended(("▁a", "▁b", "▁c"), ("▁x", "▁y", "▁z"), weights, weights, weights, np.zeros(3, "f4"))
    root = ET.fromstring(attention_svg(attended, View("cross", 0, 0)))
    texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
    heights = {element.text: float(element.get("y", "")) for element in texts if element.get("class") == "row"}
    columns = {e.text: float(m[1]) for e in texts if (m := re.match(r"translate\((\S+)", e.get("transform", "")))}
    cells = [(float(e.get("x", "")), float(e.get("y", ""))) for e in texts if e.text == "100" and e.get("x")]
    expected = [(columns["c"], heights["x"]), (columns["a"], heights["y"]), (columns["b"], heights["z"])]
    np.testing.assert_allclose(cells, expected, atol=5)


def test_svg_of_a_long_sentence_marks_the_strongest_of_each_row() -> None:
    attended = long_attended(50, layers=1, heads=1)
    picture = attention_svg(attended, View("encoder", 0, 0))
    assert picture.count("<circle") == 50 and len(picture) < 100_000


def test_colours_get_darker_with_the_weight() -> None:
    values = [sum(int(colour(i / 100)[k : k + 2], 16) for k in (1, 3, 5)) for i in range(101)]
    assert values == sorted(values, reverse=True) and len({*values}) > 50


@pytest.mark.parametrize("name", ["a.pdf", "a", ".html", "a.html.gz"])
def test_another_ending_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^out=.*: expected a name that ends in .html, .svg, .npz; add one"):
        write_attention(random_attended(), tmp_path / name)


def test_a_picture_has_a_limit_and_the_arrays_have_none(tmp_path: Path) -> None:
    attended = long_attended(MOST_TOKENS + 1, layers=1, heads=1)
    for name in ("a.html", "a.svg"):
        with pytest.raises(
            UserError, match="a.(html|svg): expected at most 1,000 tokens a side, not 1,001; write an .npz"
        ):
            write_attention(attended, tmp_path / name)
        assert not (tmp_path / name).exists()
    write_attention(attended, tmp_path / "A.NPZ")
    assert (tmp_path / "A.NPZ").exists()
