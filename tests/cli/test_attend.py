"""`transduce attend`: the page, the picture and the arrays of one sentence, and its mistakes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.attention import data_of, weights_of
from support.command_line import assert_mistake
from support.random_models import CONFIG, random_model, save_to
from support.toy_task import CommandResult, Toy

import transduce
from transduce.evaluation.attention_file import write_attention
from transduce.evaluation.heads import read_worth
from transduce.evaluation.lens import look_in

Cli = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_to(random_model(CONFIG, tags=("<2de>",)), tmp_path_factory.mktemp("attend") / "model")


def test_each_form_has_the_weights_that_python_gives(model: Path, tmp_path: Path, cli: Cli) -> None:
    attended = transduce.load(model).attend("the cat", "a b c")
    for name in ("a.html", "a.svg", "a.npz"):
        out = tmp_path / name
        result = cli("attend", model, "the cat", "--target", "a b c", "--out", out)
        assert (result.code, result.out, result.err) == (0, b"", ""), result
        write_attention(attended, tmp_path / f"python-{name}", model=str(model))
        if name != "a.npz":
            assert out.read_bytes() == (tmp_path / f"python-{name}").read_bytes()
    with np.load(tmp_path / "a.npz") as arrays:
        np.testing.assert_array_equal(arrays["cross"], attended.cross)
    np.testing.assert_allclose(
        weights_of((tmp_path / "a.html").read_text("utf-8"))["encoder"], attended.encoder, atol=0.004
    )


def test_the_translation_of_the_model_is_the_default_target(toy: Toy, tmp_path: Path, cli: Cli) -> None:
    assert cli("attend", toy.model, "a b c", "--out", tmp_path / "a.html", "--head", "decoder 1.3").code == 0
    data = data_of((tmp_path / "a.html").read_text("utf-8"))
    assert data["target"]["labels"] == ["c", "b", "a", "</s>"] and data["first"] == ["decoder", 1, 3]
    assert min(data["probabilities"]) > 0.5


def test_a_tag_comes_before_the_sentence(model: Path, tmp_path: Path, cli: Cli) -> None:
    assert cli("attend", model, "a b", "--tag", "<2de>", "--target", "a", "--out", tmp_path / "a.npz").code == 0
    assert np.load(tmp_path / "a.npz")["src"][0] == "<2de>"


def test_missing_folders_are_made(model: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "missing" / "folders" / "a.npz"
    assert cli("attend", model, "a b", "--target", "a", "--out", out).code == 0 and out.exists()


def test_an_old_page_is_replaced_whole(model: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "a.html"
    out.write_text("old")
    assert_mistake(cli("attend", model, "a", "--head", "cross 9.1", "--out", out))
    assert out.read_text() == "old"
    assert cli("attend", model, "a", "--target", "b", "--out", out).code == 0
    assert out.read_text("utf-8").startswith("<!doctype html>") and [*tmp_path.iterdir()] == [out]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "--out", "a.pdf"], "--out=a.pdf: expected a name that ends in .html, .svg, .npz"),
        (["a", "--out", "/dev/null/a.html"], "--out=/dev/null/a.html: expected a file in a folder, but /dev/null is"),
        ([" ", "--out", "a.html"], "sentence=' ': expected a sentence, but it is blank"),
        (["A dog.", "--target", " ", "--out", "a.html"], "--target=' ': expected a translation, but it is blank"),
        (["a\nb", "--out", "a.html"], "sentence: expected one line, not 2"),
        (["a", "--target", "a\nb\nc", "--out", "a.html"], "--target: expected one line, not 3"),
        (["a " * 9_000, "--target", "a", "--out", "a.npz"], "src:1: expected at most 8,192 tokens"),
        (["a", "--target", "a " * 9_000, "--out", "a.npz"], "tgt:1: expected at most 8,192 tokens"),
        (["a " * 7_000, "--out", "a.html"], "a.html: expected at most 1,000 tokens a side, not 14,002"),
        (["a", "--target", "a " * 7_000, "--out", "a.svg"], "a.svg: expected at most 1,000 tokens a side, not 14,002"),
        (["a", "--head", "encoder 3.1", "--out", "a.html"], "--head='encoder 3.1': expected a head of the model"),
        (["a", "--head", "encoder 1.1", "--out", "a.npz"], "--head='encoder 1.1': must not be set with a.npz, because"),
        (["a", "--tag", "<2fr>", "--out", "a.html"], "--tag='<2fr>': expected a tag of the model; use one of <2de>"),
        (["a", "--other", "b", "--out", "a.html"], "--other='b': must not be set without --lens; add --lens"),
        (["a", "--lens", "--out", "a.svg"], "--lens: must not be set with a.svg, because a picture does not show it"),
        (["a", "--lens", "--other", " ", "--out", "a.html"], "--other=' ': expected one line with a sentence"),
        (["a", "--lens", "--other", "a " * 9_000, "--target", "a", "--out", "a.npz"], "--other:1: expected at most"),
        (["\udcff", "--out", "a.html"], "expected a character, not '\\udcff'"),
    ],
)
def test_a_mistake_is_named(
    words: list[str], message: str, model: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_mistake(cli("attend", model, *words), message)
    assert [*tmp_path.iterdir()] == []


def test_the_page_shows_what_heads_are_worth(toy: Toy, tmp_path: Path, cli: Cli) -> None:
    heads, out = tmp_path / "heads.json", tmp_path / "a.html"
    heads.write_bytes(cli("heads", toy.model, "--src", toy.valid[0], "--tgt", toy.valid[1], "--json").out)
    assert cli("attend", toy.model, "a b c", "--heads", heads, "--out", out).code == 0
    worth = data_of(out.read_text("utf-8"))["worth"]
    assert len(worth) == 24 and worth["cross 1.2"] == read_worth(heads)["cross 1.2"]
    assert_mistake(cli("attend", toy.model, "a b c", "--heads", heads, "--out", tmp_path / "a.svg"))
    assert_mistake(cli("attend", toy.model, "a b c", "--heads", toy.valid[0], "--out", out))
    assert_mistake(cli("attend", toy.model, "a b c", "--heads", tmp_path / "none.json", "--out", out))


def test_the_page_and_the_arrays_show_the_inside(model: Path, tmp_path: Path, cli: Cli) -> None:
    page, arrays, target = tmp_path / "a.html", tmp_path / "a.npz", ["--target", "a b c"]
    for out in (page, arrays):
        result = cli("attend", model, "the cat", *target, "--lens", "--other", "a b c d", "--out", out)
        assert (result.code, result.out, result.err) == (0, b"", ""), result
    loaded = transduce.load(model)
    expected = look_in(loaded.models[0], loaded.tokenizer, "the cat", "a b c", "a b c d")
    inside = data_of(page.read_text("utf-8"))["inside"]
    np.testing.assert_allclose(inside["probabilities"], np.exp(expected.log_probs), atol=1e-4)
    np.testing.assert_allclose(inside["target"][-1], np.exp(expected.target_log_probs[-1]), atol=1e-4)
    probabilities = data_of(page.read_text("utf-8"))["probabilities"]
    np.testing.assert_allclose(inside["target"][-1], probabilities, atol=1.1e-4)
    changes = {effect["head"]: effect["changes"] for effect in inside["effects"]}
    np.testing.assert_allclose(changes["cross 2.3"], expected.effects["cross"][1, 2], atol=1e-4)
    assert "“a b c d”" in inside["note"] and inside["answers"][0][0][0]
    with np.load(arrays) as stored:
        np.testing.assert_array_equal(stored["lens_pieces"], expected.answers)
        np.testing.assert_allclose(stored["lens_log_probs"], expected.log_probs, atol=1e-5)
        np.testing.assert_allclose(stored["lens_target"], expected.target_log_probs, atol=1e-5)
        for part in ("encoder", "decoder", "cross"):
            np.testing.assert_allclose(stored[f"{part}_effects"], expected.effects[part], atol=1e-5)
    assert cli("attend", model, "the cat", *target, "--lens", "--out", page).code == 0
    inside = data_of(page.read_text("utf-8"))["inside"]
    assert len(inside["effects"]) == 2 * 3 * 4 and "replaced by zero" in inside["note"]
    assert cli("attend", model, "the cat", *target, "--out", page).code == 0
    assert data_of(page.read_text("utf-8"))["inside"] is None
