"""The page at / in Chromium: by keyboard only, narrow and wide, light and dark (slow test)."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.serving import server_process
from support.toy_task import ROOT, Toy

NPM = ROOT / "tests" / "serve" / "npm"


@pytest.mark.slow
@pytest.mark.xdist_group("timing")
def test_the_page_works_by_keyboard_only_and_needs_no_other_host(toy: Toy, tmp_path: Path) -> None:
    node, chromium = shutil.which("node"), shutil.which("chromium")
    if node is None or chromium is None:
        pytest.skip("needs node and chromium")
    if not (NPM / "node_modules" / "playwright-core").is_dir():
        pytest.skip("needs playwright-core of npm: npm ci --prefix tests/serve/npm")
    with server_process(tmp_path, toy.model) as server:
        address = f"http://127.0.0.1:{server.port}"
        command = [node, str(NPM / "page.mjs"), f"{address}/", chromium, "a b c\nd e"]
        result = subprocess.run(command, capture_output=True, timeout=120)
        assert result.returncode == 0, result.stderr.decode()
    pages = json.loads(result.stdout)
    assert [(page["width"], page["colorScheme"]) for page in pages] == [
        (360, "light"), (360, "dark"), (1400, "light"), (1400, "dark")]  # fmt: skip
    for page in pages:
        assert page["translation"] == "c b a\ne d" and page["alternatives"] > 0
        assert page["start"] == "text" and page["order"][-1] == "copy"
        assert not page["errors"] and page["hosts"] == [address]
        assert not page["isWide"] and page["small"] == 0
        assert page["status"] == "Translated."
        assert_no_translation_of_another_text(page["cases"])
        doubts = "It repeats itself and may be wrong. It was cut at the longest length."
        doubts = f"It is good with a probability of 36 %. {doubts}"
        assert page["cases"]["doubtful"]["status"] == f"Translated. {doubts}"
        assert page["cases"]["detected"]["translation"] == "c b a\ne d" and page["isSwapDisabled"]


def assert_no_translation_of_another_text(cases: dict[str, dict[str, object]]) -> None:
    messages = {
        "long": "The text has 10,001 characters; at most 10,000 are translated at once.",
        "failure": "no translation within 30 s",
    }
    for name, message in messages.items():
        assert cases[name]["status"] == message and cases[name]["translation"] == ""
        assert cases[name]["copy"] == "There is nothing to copy."
    assert cases["long"]["length"] == 10_001
