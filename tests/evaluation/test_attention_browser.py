"""The page of attention in Chromium: by keyboard only, narrow and wide, light and dark, on paper (slow tests)."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.attention import HOSTILE, long_attended, random_attended
from support.toy_task import ROOT

from transduce.decoding.hypothesis import Attended
from transduce.evaluation.attention_file import write_attention
from transduce.evaluation.attention_view import views

NPM = ROOT / "tests" / "serve" / "npm"
FOCUS = [
    *("Cross", "Encoder", "encoder 2.mean", "encoder 1.1", "lines", "threshold", "smaller", "larger"),
    *["stage"] * 5,
]


def in_chromium(attended: Attended, folder: Path) -> list[dict[str, Any]]:
    """Return what the page is in Chromium, at two widths and in two schemes of colours."""
    node, chromium = shutil.which("node"), shutil.which("chromium")
    if node is None or chromium is None:
        pytest.skip("needs node and chromium")
    if not (NPM / "node_modules" / "playwright-core").is_dir():
        pytest.skip("needs playwright-core of npm: npm ci --prefix tests/serve/npm")
    path = folder / "attention.html"
    write_attention(attended, path, model="run/model")
    command = [node, str(NPM / "attention.mjs"), str(path), chromium]
    result = subprocess.run(command, capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr.decode()
    return json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.xdist_group("timing")
def test_the_page_works_by_keyboard_only_and_obeys_no_text(tmp_path: Path) -> None:
    attended = random_attended(HOSTILE, HOSTILE)
    pages = in_chromium(attended, tmp_path)
    sizes = [(page["width"], page["colorScheme"]) for page in pages]
    assert sizes == [(360, "light"), (360, "dark"), (1400, "light"), (1400, "dark")]
    for page in pages:
        assert page["errors"] == [] and page["requests"] == [] and not page["isWide"]
        assert page["title"].startswith("Attention: </script><script>alert(1)</script> <!-- \"' \\u2028 \\u202eabc")
        assert "$title ${1+1} \\x00\\x1b[2J שלום" in page["output"] and page["texts"][3] == "\\u2028"
        assert page["paper"] > 10_000
        assert_weights(page, attended)
        assert_walk(page["steps"], attended)
        for colours in page["forcedColours"].values():
            assert colours["chosen"] not in colours["others"] and len(colours["others"]) == 1, colours
    assert len({page["background"] for page in pages}) == 2


def assert_weights(page: dict[str, Any], attended: Attended) -> None:
    """Check each matrix, also mean and rollout, and the words of the table with the strongest sources."""
    expected = {view.name: view.weights(attended) for view in views(attended)}
    assert page["views"].keys() == expected.keys()
    for name, weights in expected.items():
        actual = np.array(page["views"][name]).reshape(weights.shape)
        np.testing.assert_allclose(actual, weights, atol=0.0032, err_msg=name)
        np.testing.assert_allclose(actual.sum(1), 1, atol=0.02)
    weights = expected["cross 2.mean"]
    assert len(page["table"]) == len(HOSTILE)
    assert page["table"][2][0] == "\"'" and page["table"][2][1] == f"{100 * np.exp(attended.log_probs[2]):.1f} %"
    assert float(page["table"][2][2].removesuffix(" %")) == pytest.approx(100 * weights[2].max(), abs=0.4)


def assert_walk(steps: list[dict[str, str]], attended: Attended) -> None:
    assert [step["focus"] for step in steps] == FOCUS
    assert [steps[i]["name"] for i in (0, 1, 3, -1)] == ["cross 2.mean", "encoder 2.mean", "encoder 1.1", "encoder 1.1"]
    lines = [step["line"].replace("\u2068", "").replace("\u2069", "") for step in steps[8:]]
    weights = attended.encoder[0, 0]
    best, last = int(weights[1].argmax()), len(weights) - 1
    for line, row, column in zip(lines, (0, 1, 1, 11), (0, 1, best, last), strict=False):
        percent = float(line.partition(" %")[0].rpartition(" ")[2])
        assert line.startswith("encoder 1.1: ") and percent == pytest.approx(100 * weights[row, column], abs=0.4), line
    assert lines[2].endswith(" %, the strongest of the row")
    assert lines[4] == "Point at a word or a cell, or use the arrow keys."


@pytest.mark.slow
@pytest.mark.xdist_group("timing")
@pytest.mark.parametrize("length", [30, 100, 250, 600])
def test_a_page_of_the_base_model_is_fast(length: int, tmp_path: Path) -> None:
    """6 layers of 8 heads, three times. The goal at 100 tokens is 1.5 s on an idle machine; it prints the figures."""
    pages = in_chromium(long_attended(length, layers=6, heads=8), tmp_path)
    size = (tmp_path / "attention.html").stat().st_size
    times = ", ".join(f"{page['milliseconds'] / 1000:.2f}" for page in pages)
    print(f"{length} tokens: {size / 1e6:.2f} MB, complete in Chromium after {times} s")
    assert all(page["errors"] == [] and page["requests"] == [] for page in pages)
    assert length != 100 or min(page["milliseconds"] for page in pages) < 1_500
