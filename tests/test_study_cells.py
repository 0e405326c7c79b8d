"""A study's cells as processes: figures are kept at once, interruptions cost nothing, a failure harms only itself."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, write_pairs

from transduce.errors import UserError
from transduce.study.cells import Cell, Texts, run_cells, stored_parameters
from transduce.study.results import Results, open_results, read_results

RECIPE = """
from transduce import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig

def tiny() -> Config:
    return Config(
        model=ModelConfig(vocab_size=None, d_model=16, n_layers=1, n_heads=2, d_ff=16),
        data=DataConfig(vocab_size=300, batch_tokens=100, max_tokens=32),
        train=TrainConfig(max_steps=40, warmup_steps=20, log_every_steps=5, checkpoint_every_steps=5, use="last"),
        search=SearchConfig(max_extra_tokens=5),
    )
"""


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    lines = ["a b c d", "b c", "c d e f g", "a", "g f a b"] * 8
    (tmp_path / "recipe.py").write_text(RECIPE, encoding="utf-8")
    return Texts(write_pairs(tmp_path, "train", lines), write_pairs(tmp_path, "valid", lines[:6]))


def cells_of(texts: Texts, *rows: str, settings: tuple[str, ...] = ()) -> list[Cell]:
    return [Cell(row, 1, f"{texts.train[0].parent / 'recipe.py'}:tiny", settings) for row in rows]


def results_in(out: Path) -> Results:
    return open_results(out, "table3", {"scale": "tiny"})


COSTS = ("seconds", "cpu_seconds", "ended_at", "session", "command")


def figures(path: Path) -> dict[str, dict[str, object]]:
    """What of results.json does not depend on when and how long."""
    cells = read_results(path).cells
    return {name: {key: value for key, value in cell.items() if key not in COSTS} for name, cell in cells.items()}


def test_cells_are_trained_judged_and_kept(tmp_path: Path, texts: Texts, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    run_cells(cells_of(texts, "x", "y"), texts, results_in(out), jobs=2)
    assert "x-1: perplexity" in capfd.readouterr().err
    found = json.loads((out / "results.json").read_text("utf-8"))
    cell = found["cells"]["x-1"]
    assert cell["status"] == "done" and cell["steps"] == 40 and cell["perplexity"] > 1 and 0 <= cell["bleu"] <= 100
    assert cell["parameters"] == stored_parameters(out / "runs" / "x-1" / "model")
    assert 0 < cell["cpu_seconds"] and cell["valid"]["lines"] == 6 and "sacrebleu" not in cell
    assert "train.seed=1" in cell["command"] and found["sessions"][0]["versions"]["torch"]

    changed_at = (out / "results.json").stat().st_mtime_ns
    for path in sorted((out / "runs").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    run_cells(cells_of(texts, "x", "y"), texts, results_in(out))  # from results.json alone
    assert "nothing is left to do" in capfd.readouterr().err
    assert (out / "results.json").stat().st_mtime_ns == changed_at and not list((out / "runs").iterdir())


def test_a_failure_is_told_and_the_others_go_on(tmp_path: Path, texts: Texts) -> None:
    bad = cells_of(texts, "bad", settings=("train.lr_factor=1e15",))
    with pytest.raises(UserError, match="1 of 3 cells failed: bad-1; their logs"):
        run_cells([*bad, *cells_of(texts, "x", "y")], texts, results_in(tmp_path / "out"))
    cells = read_results(tmp_path / "out" / "results.json").cells
    assert {name: cell["status"] for name, cell in cells.items()} == {"bad-1": "failed", "x-1": "done", "y-1": "done"}
    assert "perplexity" not in cells["bad-1"] and "train: " in cells["bad-1"]["why"]


STUDY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from transduce.study.cells import Cell, Texts, run_cells
from transduce.study.results import open_results
folder = Path(sys.argv[2])
def pair(name): return folder / f"{name}.src", folder / f"{name}.tgt"
recipe = f"{folder / 'recipe.py'}:tiny"
settings = ("train.max_steps=150",)
cells = [Cell("x", 1, recipe), Cell("y", 1, recipe, settings), Cell("z", 1, recipe)]
results = open_results(folder / "out", "table3", {"scale": "tiny"})
run_cells(cells, Texts(pair("train"), pair("valid")), results)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_study_goes_on_to_the_same_figures(tmp_path: Path, texts: Texts, ending: signal.Signals) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", STUDY, str(ROOT / "src"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    study = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    wait_for(lambda: (out / "runs" / "y-1" / "checkpoints").exists())  # x is done, y trains
    study.send_signal(ending)
    study.wait()
    before = read_results(out / "results.json").cells
    assert {name: cell["status"] for name, cell in before.items()} == {
        "x-1": "done", "y-1": "not run", "z-1": "not run"
    }  # fmt: skip
    wait_for(lambda: not is_locked(out / "runs" / ".lock"))  # a training that was left behind ends by itself
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    after = read_results(out / "results.json")
    assert after.cells["x-1"] == before["x-1"] and len(after.sessions) == 2
    whole = tmp_path / "whole"
    whole.mkdir()
    for path in [*texts.train, *texts.valid, tmp_path / "recipe.py"]:
        (whole / path.name).write_bytes(path.read_bytes())
    subprocess.run([*command[:-1], str(whole)], env=environment, check=True, stderr=subprocess.DEVNULL)
    assert figures(out / "results.json") == figures(whole / "out" / "results.json")


def wait_for(happens: object, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not happens():  # type: ignore[operator]
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def is_locked(path: Path) -> bool:
    import fcntl

    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_two_studies_keep_out_of_each_others_way(tmp_path: Path, texts: Texts) -> None:
    import fcntl

    runs = tmp_path / "out" / "runs"
    runs.mkdir(parents=True)
    with (runs / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="a study is at work in .*out"):
            run_cells(cells_of(texts, "x"), texts, results_in(tmp_path / "out"))


# ---- results.json ------------------------------------------------------------------------------------------------


def test_results_of_other_things_are_refused(tmp_path: Path) -> None:
    Results(tmp_path / "results.json", "table3", {"scale": "small", "training text": "1"}).save()
    with pytest.raises(UserError, match="is of table3, not of table2"):
        open_results(tmp_path, "table2", {})
    with pytest.raises(UserError, match="begun with another training text;"):
        open_results(tmp_path, "table3", {"scale": "small", "training text": "2"})
    assert open_results(tmp_path, "table3", {"scale": "small", "training text": "1"}).cells == {}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format_version": 1}', b"\xff"])
def test_damaged_results_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(UserError, match="is not what a study writes"):
        open_results(tmp_path, "table3", {})


def test_texts_are_checked_before_anything_runs(tmp_path: Path, texts: Texts) -> None:
    with pytest.raises(UserError, match="no file"):
        Texts(texts.train, (tmp_path / "none", tmp_path / "nothing")).read()
    with pytest.raises(UserError, match="line by line"):
        Texts((texts.train[0], texts.valid[1]), texts.valid).read()
    assert set(texts.read()) == {"training text", "validation text"}
