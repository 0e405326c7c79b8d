"""A study's cells as processes: figures are kept at once, interruptions cost nothing, a failure harms only itself.

Most tests put a program in the place of `transduce` that takes the same arguments and leaves such files, in no time.
"""

import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.toy_task import ROOT, Finished, write_pairs

from transduce.errors import UserError
from transduce.studies.results import Results, commit, open_results, read_results
from transduce.studies.trainings import Cell, Texts, run_cells, stored_parameters

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

# A training makes a step in 10 ms, saves each, stops at SIGTERM, and goes on where it stopped. Its seed is what it
# learns. A learning rate of 9 ruins it, one of 8 makes it end early, as if it had been told to stop.
STAND_IN = """
import json, os, pathlib, signal, sys, time
command, *words = sys.argv[1:]
if command == "evaluate":
    run = pathlib.Path(words[0]).parent
    learned = float((run / "model" / "learned").read_text())
    scores = [{"name": "bleu", "value": learned, "signature": "s", "label": "l"}]
    print(json.dumps({"lines": 6, "systems": {"model": scores}, "perplexity": 2 * learned, "search": None}))
    sys.exit()
run = pathlib.Path(words[words.index("--out") + 1])
settings = dict(word.split("=") for word in words if word.startswith("train."))
(run / "model").mkdir(parents=True, exist_ok=True)
(run / "environment").write_text(os.environ["OMP_NUM_THREADS"])
log = run / "log.jsonl"
step = len(log.read_text().splitlines()) if log.exists() else 0
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
if settings.get("train.lr_factor") == "9":
    sys.exit("the training diverged")
while step < int(settings.get("train.max_steps", 40)) and not stops:
    time.sleep(0.01)
    step += 1
    with log.open("a") as file:
        file.write(json.dumps({"step": step, "seconds": step / 100}) + "\\n")
    if settings.get("train.lr_factor") == "8":
        stops.append(1)
header = json.dumps({"__metadata__": {}, "a": {"shape": [3, 4]}, "b": {"shape": [5]}}).encode()
(run / "model" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
(run / "model" / "learned").write_text(settings["train.seed"])
"""


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    lines = ["a b c d", "b c", "c d e f g", "a", "g f a b"] * 8
    (tmp_path / "recipe.py").write_text(RECIPE, encoding="utf-8")
    return Texts(write_pairs(tmp_path, "train", lines), write_pairs(tmp_path, "valid", lines[:6]))


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "stand-in" / "transduce"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package.parent


def cells_of(texts: Texts, *rows: str, settings: tuple[str, ...] = ()) -> list[Cell]:
    return [Cell(row, 1, f"{texts.train[0].parent / 'recipe.py'}:tiny", settings) for row in rows]


def results_in(out: Path) -> Results:
    return open_results(out, "table3", {"scale": "tiny"})


def empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def test_each_cell_is_kept_as_it_ends(tmp_path: Path, texts: Texts, stand_in: Path) -> None:
    out = tmp_path / "out"
    recipe = f"{tmp_path / 'recipe.py'}:tiny"
    run_cells([Cell("x", seed, recipe) for seed in (7, 8)], texts, results_in(out), jobs=2)
    found = json.loads((out / "results.json").read_text("utf-8"))
    assert list(found["cells"]) == ["x-7", "x-8"]
    for seed in (7, 8):
        cell = found["cells"][f"x-{seed}"]
        assert (cell["status"], cell["row"], cell["seed"], cell["steps"]) == ("done", "x", seed, 40)
        assert (cell["bleu"], cell["perplexity"], cell["parameters"]) == (seed, 2 * seed, 17)
        assert cell["seconds"] > 0.4 and cell["cpu_seconds"] > 0 and cell["session"] == 0
        assert f"train.seed={seed}" in cell["command"] and str(texts.train[0]) in cell["command"]
    assert found["sessions"][0]["versions"].keys() == {"transduce", "torch", "python"}


def test_what_is_done_is_not_run_again_even_without_its_run(
    tmp_path: Path, texts: Texts, stand_in: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run_cells(cells_of(texts, "x"), texts, results_in(out))
    empty(out / "runs")
    before = (out / "results.json").read_bytes()
    run_cells(cells_of(texts, "x"), texts, results_in(out))
    assert "nothing is left to do" in capfd.readouterr().err
    assert (out / "results.json").read_bytes() == before and not list((out / "runs").iterdir())
    run_cells(cells_of(texts, "x", "y"), texts, results_in(out))
    assert [path.name for path in (out / "runs").iterdir() if path.is_dir()] == ["y-1"]
    assert read_results(out / "results.json").cells["x-1"] == json.loads(before)["cells"]["x-1"]


def test_a_failure_is_told_and_the_others_go_on(
    tmp_path: Path, texts: Texts, stand_in: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = cells_of(texts, "bad", settings=("train.lr_factor=9",))
    early = cells_of(texts, "early", settings=("train.lr_factor=8",))
    with pytest.raises(UserError, match="2 of 4 cells failed: bad-1, early-1; their logs are in .*runs"):
        run_cells([*bad, *early, *cells_of(texts, "x", "y")], texts, results_in(tmp_path / "out"))
    cells = read_results(tmp_path / "out" / "results.json").cells
    assert [cell["status"] for cell in cells.values()] == ["failed", "failed", "done", "done"]
    assert cells["bad-1"]["why"] == "train: the training diverged (exit code 1)" and "bleu" not in cells["bad-1"]
    assert cells["early-1"]["why"] == "train: ended at step 1 of 40" and "bleu" not in cells["early-1"]
    assert "bad-1: failed, train: the training diverged" in capfd.readouterr().err
    run_cells(cells_of(texts, "bad"), texts, results_in(tmp_path / "out"))  # mended
    assert read_results(tmp_path / "out" / "results.json").is_done("bad-1")


def test_the_cores_are_shared(tmp_path: Path, texts: Texts, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("transduce.studies.trainings.cores", lambda: 6)
    run_cells(cells_of(texts, "x", "y", "z"), texts, results_in(tmp_path / "a"), jobs=2)
    assert (tmp_path / "a" / "runs" / "x-1" / "environment").read_text() == "3"
    run_cells(cells_of(texts, "x"), texts, results_in(tmp_path / "c"), jobs=2)  # nobody to share with
    assert (tmp_path / "c" / "runs" / "x-1" / "environment").read_text() == "6"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run_cells(cells_of(texts, "x"), texts, results_in(tmp_path / "b"))
    assert (tmp_path / "b" / "runs" / "x-1" / "environment").read_text() == "1"


def test_each_job_has_a_gpu(tmp_path: Path, texts: Texts, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.studies.trainings.visible_gpus", lambda: ["2", "5"])
    run_cells(cells_of(texts, "x", "y", "z"), texts, results_in(tmp_path / "out"))
    cells = read_results(tmp_path / "out" / "results.json").cells
    assert {cells["x-1"]["gpu"], cells["y-1"]["gpu"]} == {"2", "5"} and cells["z-1"]["gpu"] in ("2", "5")


# ---- interruptions -----------------------------------------------------------------------------------------------

STUDY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from transduce.studies.trainings import Cell, Texts, run_cells
from transduce.studies.results import open_results
folder = Path(sys.argv[2])
def pair(name): return folder / f"{name}.src", folder / f"{name}.tgt"
recipe = f"{folder / 'recipe.py'}:tiny"
cells = [Cell("x", 1, recipe), Cell("y", 1, recipe, ("train.max_steps=150",)), Cell("z", 1, recipe)]
run_cells(cells, Texts(pair("train"), pair("valid")), open_results(folder / "out", "table3", {"scale": "tiny"}))
"""


def interrupted_and_gone_on(folder: Path, ending: signal.Signals, goes: Callable[[], bool]) -> Results:
    """Run STUDY in `folder`, end it as soon as it `goes`, and go on; what has come of it."""
    out, command = folder / "out", [sys.executable, "-c", STUDY, str(ROOT / "src"), str(folder)]
    study = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for(goes)
    study.send_signal(ending)
    assert study.wait() != 0
    before = read_results(out / "results.json").cells
    statuses = {name: cell["status"] for name, cell in before.items()}
    assert statuses == {"x-1": "done", "y-1": "not run", "z-1": "not run"}
    wait_for(lambda: not is_locked(out / "runs" / ".lock"))  # a training that was left behind ends by itself
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    after = read_results(out / "results.json")
    assert after.cells["x-1"] == before["x-1"] and len(after.sessions) == 2
    return after


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_study_goes_on(tmp_path: Path, texts: Texts, stand_in: Path, ending: signal.Signals) -> None:
    log = tmp_path / "out" / "runs" / "y-1" / "log.jsonl"
    results = interrupted_and_gone_on(tmp_path, ending, lambda: log.exists() and len(log.read_bytes()) > 200)
    found = {name: (cell["status"], cell["steps"], cell["bleu"]) for name, cell in results.cells.items()}
    assert found == {"x-1": ("done", 40, 1), "y-1": ("done", 150, 1), "z-1": ("done", 40, 1)}
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [*range(1, 151)]


@pytest.mark.slow
def test_an_interrupted_study_of_real_trainings_finds_the_same(
    tmp_path: Path, texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    checkpoints = tmp_path / "out" / "runs" / "y-1" / "checkpoints"
    interrupted = interrupted_and_gone_on(tmp_path, signal.SIGTERM, checkpoints.exists)
    cell = interrupted.cells["y-1"]
    assert cell["perplexity"] > 1 and 0 <= cell["bleu"] <= 100 and cell["valid"]["lines"] == 6
    assert cell["parameters"] == stored_parameters(tmp_path / "out" / "runs" / "y-1" / "model")
    (tmp_path / "out").rename(tmp_path / "interrupted")
    subprocess.run([sys.executable, "-c", STUDY, str(ROOT / "src"), str(tmp_path)], check=True)
    assert figures(interrupted) == figures(read_results(tmp_path / "out" / "results.json"))


COSTS = ("seconds", "cpu_seconds", "ended_at", "session")


def figures(results: Results) -> dict[str, dict[str, object]]:
    """What of the cells does not depend on when and how long."""
    return {
        name: {key: value for key, value in cell.items() if key not in COSTS} for name, cell in results.cells.items()
    }


def wait_for(happens: Callable[[], bool], seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def is_locked(path: Path) -> bool:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_two_studies_keep_out_of_each_others_way(tmp_path: Path, texts: Texts) -> None:
    runs = tmp_path / "out" / "runs"
    runs.mkdir(parents=True)
    with (runs / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="a study is at work in .*out"):
            run_cells(cells_of(texts, "x"), texts, results_in(tmp_path / "out"))
    assert not (tmp_path / "out" / "results.json").exists()


def test_results_that_changed_meanwhile_are_not_written_over(tmp_path: Path, texts: Texts, stand_in: Path) -> None:
    early = results_in(tmp_path / "out")
    run_cells(cells_of(texts, "x"), texts, results_in(tmp_path / "out"))
    with pytest.raises(UserError, match="another study has just been at work"):
        run_cells(cells_of(texts, "y"), texts, early)


def test_trainings_end_with_a_study_that_cannot_write(
    tmp_path: Path, texts: Texts, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(results: Results, name: str, status: str, **figures: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Results, "record", refuse)
    long = cells_of(texts, "long", settings=("train.max_steps=9999",))
    with pytest.raises(OSError, match="no room"):
        run_cells([*cells_of(texts, "x"), *long], texts, results_in(tmp_path / "out"), jobs=2)
    wait_for(lambda: not is_locked(tmp_path / "out" / "runs" / ".lock"))


# ---- results.json ------------------------------------------------------------------------------------------------


def test_results_of_other_things_are_refused(tmp_path: Path) -> None:
    Results(tmp_path / "results.json", "table3", {"scale": "small", "training text": "1"}).save()
    with pytest.raises(UserError, match="is of table3, not of table2"):
        open_results(tmp_path, "table2", {})
    with pytest.raises(UserError, match="begun with another training text;"):
        open_results(tmp_path, "table3", {"scale": "small", "training text": "2"})
    assert open_results(tmp_path, "table3", {"scale": "small", "training text": "1"}).cells == {}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"format_version": 1}', b'{\n  "format_version": 1,\n  "study": "x"\n}', b"\xff"]
)
def test_damaged_results_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(UserError, match="is not what a study writes"):
        open_results(tmp_path, "table3", {})


def test_results_of_the_future_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(b'{\n  "format_version": 2\n}')
    with pytest.raises(UserError, match="format version 2, this program reads 1; update"):
        open_results(tmp_path, "table3", {})


def test_the_commit_is_this_checkouts() -> None:
    inside = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    if inside.returncode:
        pytest.skip("this is no checkout")
    assert (commit() or "").rstrip("+") == inside.stdout.strip()


# ---- what a user gets wrong --------------------------------------------------------------------------------------


def test_texts_are_checked_before_anything_runs(tmp_path: Path, texts: Texts) -> None:
    with pytest.raises(UserError, match="2 problems"):
        Texts(texts.train, (tmp_path / "none", tmp_path / "nothing")).read()
    with pytest.raises(UserError, match="line by line"):
        Texts((texts.train[0], texts.valid[1]), texts.valid).read()
    assert set(texts.read()) == {"training text", "validation text"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rows", "base", "h3"], "--rows h3: Table 3 has no such row; did you mean 'h32'?"),
        (["--jobs", "0"], "--jobs=0: expected 1 or more"),
        (["--seeds", "-1"], "train.seed=-1: expected 0 or more"),
        (["--seeds", "2", "2"], "--seeds 2 2: expected different seeds"),
        (["--language", "German"], "language='German': expected a code"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    cli: Callable[..., Finished], tmp_path: Path, texts: Texts, words: list[str], said: str
) -> None:
    given = ["--train", *texts.train, "--valid", *texts.valid, "--out", tmp_path / "out", *words]
    done = cli("study", "table3", *given)
    assert done.code == 2 and said in done.err and not (tmp_path / "out").exists()
