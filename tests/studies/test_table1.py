"""Table 1: its four layers against plain versions of themselves, and its counts against arithmetic."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from transduce.errors import UserError
from transduce.evaluation.study_report import markdown
from transduce.studies import table1
from transduce.studies.results import Results, read_results
from transduce.studies.table1 import (
    KERNEL,
    KINDS,
    WINDOW,
    ConvolutionalLayer,
    RecurrentLayer,
    RestrictedSelfAttention,
    SelfAttention,
    exponent,
    path_length,
    report,
    run_table1,
    saved_bytes,
    sequential_operations,
)

KIND = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize("window", [1, 3, 7, 65])
@pytest.mark.parametrize("n", [1, 6, 7, 50])
def test_restricted_attention_is_attention_with_a_band_mask(window: int, n: int) -> None:
    x = torch.randn(2, n, 6, dtype=torch.float64)
    is_near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= window // 2
    scores = (x @ x.transpose(1, 2) / math.sqrt(6)).masked_fill(~is_near, -math.inf)
    assert_close(RestrictedSelfAttention(window)(x), scores.softmax(dim=2) @ x)
    if window >= 2 * n:
        assert_close(RestrictedSelfAttention(window)(x), SelfAttention()(x))


def test_restricted_attention_has_no_square_matrix() -> None:
    layer = RestrictedSelfAttention(WINDOW)
    assert saved_bytes(layer, 4_096, 8) < 4.3 * saved_bytes(layer, 1_024, 8) < 1_024 * 1_024 * 4


@pytest.mark.parametrize("dilation", [1, 3, 9])
def test_the_convolution_equals_torchs_over_earlier_positions(dilation: int) -> None:
    layer, x = ConvolutionalLayer(6, KERNEL, dilation), torch.randn(2, 20, 6)
    weights = layer.weights.weight.unflatten(1, (KERNEL, 6)).transpose(1, 2)
    with_padding = F.pad(x.transpose(1, 2), ((KERNEL - 1) * dilation, 0))
    assert_close(layer(x), F.conv1d(with_padding, weights, layer.weights.bias, dilation=dilation).transpose(1, 2))


def test_the_recurrent_layer_equals_its_steps() -> None:
    layer, x = RecurrentLayer(6), torch.randn(2, 20, 6)
    assert_close(layer(x), layer.steps(x))


def test_only_the_recurrent_layer_is_sequential() -> None:
    counts = {name: [sequential_operations(kind.make(4), n, 4) for n in (5, 50, 500)] for name, kind in KIND.items()}
    assert counts == {
        "self_attention": [2, 2, 2],  # Q K^T, then the sum of values
        "restricted": [2, 2, 2],
        "convolutional": [1, 1, 1],
        "recurrent": [5, 50, 500],
    }


@pytest.mark.parametrize("n", [2, 9, 10, 81, 200])
def test_path_lengths_are_those_of_the_paper(n: int) -> None:
    assert path_length("self_attention", n) == 1
    assert path_length("restricted", n) == math.ceil((n - 1) / (WINDOW // 2))
    assert KERNEL ** (path_length("convolutional", n) - 1) < n <= KERNEL ** path_length("convolutional", n)
    assert path_length("recurrent", n) == n


def test_an_exponent_is_that_of_the_power() -> None:
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)


@pytest.mark.slow
def test_memory_grows_with_the_shapes() -> None:
    """Attention saves an n x n matrix, the others n rows."""
    lengths = (128, 256, 512)
    powers = {name: exponent(lengths, [saved_bytes(k.make(8), n, 8) for n in lengths]) for name, k in KIND.items()}
    assert powers["self_attention"] == pytest.approx(2, abs=0.05)
    assert all(powers[name] == pytest.approx(1, abs=0.1) for name in ("recurrent", "convolutional", "restricted"))


@pytest.mark.parametrize("make", [lambda: RestrictedSelfAttention(4), lambda: RestrictedSelfAttention(0)])
def test_a_window_must_be_odd(make: object) -> None:
    with pytest.raises(ValueError, match="odd"):
        make()  # type: ignore[operator]


# ---- the study ---------------------------------------------------------------------------------------------------


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are measured in less than a second."""
    for name, value in {"LENGTHS": (64, 128), "WIDTHS": (8, 16), "COUNT_LENGTHS": (4, 66), "REPEATS": 1}.items():
        monkeypatch.setattr(table1, name, value)


@pytest.mark.slow
def test_the_study_measures_every_layer(tmp_path: Path, brief: None) -> None:
    run_table1(tmp_path)
    layers = json.loads((tmp_path / "results.json").read_text("utf-8"))["layers"]
    assert layers.keys() == {"self_attention", "restricted", "recurrent", "convolutional"}
    for layer in layers.values():
        exponents = [layer[f"{cost}_exponent_{size}"] for cost in ("time", "memory") for size in ("n", "d")]
        assert all(isinstance(value, float) for value in exponents) and len(layer["points"]["n"]) == 2
    assert {name: (layer["sequential_ops"], layer["path_length"]) for name, layer in layers.items()} == {
        "self_attention": (2, 1),
        "restricted": (2, 3),
        "recurrent": (66, 66),
        "convolutional": (1, 4),
    }
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "4 of 4 measured" in text and "log_k n" in text and "not run" not in text
    assert (tmp_path / "report.html").read_text("utf-8").count("<path") == 2 * 4


@pytest.mark.slow
def test_a_measured_layer_is_not_measured_again(tmp_path: Path, brief: None, monkeypatch: pytest.MonkeyPatch) -> None:
    original = table1.measure

    def interrupted_at_the_third(kind: table1.LayerKind) -> dict[str, Any]:
        if kind.name == "convolutional":
            raise KeyboardInterrupt
        return original(kind)

    monkeypatch.setattr(table1, "measure", interrupted_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run_table1(tmp_path)
    before = read_results(tmp_path / "results.json", table1.STUDY).entries
    assert [layer["status"] for layer in before.values()] == ["done", "done", "not run", "not run"]
    assert "2 of 4 measured" in markdown(report(read_results(tmp_path / "results.json", table1.STUDY)))
    monkeypatch.setattr(table1, "measure", original)
    after = run_table1(tmp_path).entries
    assert after["recurrent"] == before["recurrent"] and after["convolutional"]["status"] == "done"


def test_results_of_other_sizes_are_refused(tmp_path: Path) -> None:
    Results(tmp_path / "results.json", table1.STUDY, {"window": 63}).save()
    with pytest.raises(UserError, match="expected results with the same .*window"):
        run_table1(tmp_path)
