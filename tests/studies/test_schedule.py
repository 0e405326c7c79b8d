"""The trainings of a study as processes: figures are saved at once, studies resume, and failures stay separate.

Most tests replace `transduce` by a fast program that takes the same arguments and writes the same files.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.studies import is_locked, wait_for, write_study
from support.toy_task import ROOT, CommandResult

from transduce.config.files import to_json
from transduce.data.system import locked
from transduce.errors import UserError
from transduce.studies import table3
from transduce.studies.results import Results, read_results
from transduce.studies.schedule import run_trainings
from transduce.studies.table3_report import PAPER
from transduce.studies.trainings import Texts, Training, stored_parameters

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

# A training takes 10 ms per step, saves every step, stops at SIGTERM, and resumes there. Its BLEU is its seed. With
# lr_factor=9 it fails, and with lr_factor=8 it ends early, as after SIGTERM. The BLEU of a mean is 50.
STAND_IN = """
import json, os, pathlib, signal, sys, time
command, *words = sys.argv[1:]
if command == "evaluate":
    bleu = float((pathlib.Path(words[0]) / "bleu").read_text())
    scores = [{"name": "bleu", "value": bleu, "signature": "s", "label": "l"}]
    print(json.dumps({"lines": 6, "systems": {"model": scores}, "perplexity": 2 * bleu, "search": None}))
    sys.exit()
run = pathlib.Path(words[words.index("--out") + 1])
if command == "average":
    run.mkdir()
    (run / "bleu").write_text("50")
    sys.exit()
settings = dict(word.split("=") for word in words if word.startswith("train."))
(run / "model").mkdir(parents=True, exist_ok=True)
(run / "environment").write_text(os.environ["OMP_NUM_THREADS"])
log = run / "log.jsonl"
step = len(log.read_text().splitlines()) if log.exists() else 0
stops = []
while time.process_time() < 0.1:  # so that it costs something
    pass
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
config = json.loads(pathlib.Path(__file__).with_name("config.json").read_text())
for name, value in settings.items():
    config["train"][name.removeprefix("train.")] = json.loads(value)
(run / "config.json").write_text(json.dumps(config))
header = json.dumps({"__metadata__": {}, "a": {"shape": [3, 4]}, "b": {"shape": [5]}}).encode()
(run / "model" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
(run / "model" / "bleu").write_text(settings["train.seed"])
"""


# An editable installation finds `transduce` before Python searches PYTHONPATH.
WITHOUT_INSTALLATION = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
"""


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    return write_study(tmp_path, RECIPE)


@pytest.fixture
def stand_in(tmp_path: Path, texts: Texts, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "stand-in" / "transduce"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN, encoding="utf-8")
    (package.parent / "sitecustomize.py").write_text(WITHOUT_INSTALLATION, encoding="utf-8")
    (package / "config.json").write_text(to_json(Training("x", 1, f"{tmp_path / 'recipe.py'}:tiny").config()))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package.parent


def trainings_of(texts: Texts, *rows: str, settings: tuple[str, ...] = ()) -> list[Training]:
    return [Training(row, 1, f"{texts.train[0].parent / 'recipe.py'}:tiny", settings) for row in rows]


def results_in(out: Path) -> Results:
    return table3.STUDY.open(out, {"scale": "tiny"})


def empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def test_results_have_each_training_when_it_ends(tmp_path: Path, texts: Texts, stand_in: Path) -> None:
    out = tmp_path / "out"
    recipe = f"{tmp_path / 'recipe.py'}:tiny"
    run_trainings([Training("x", seed, recipe) for seed in (7, 8)], texts, results_in(out), jobs=2)
    results = json.loads((out / "results.json").read_text("utf-8"))
    assert list(results["cells"]) == ["x-7", "x-8"]
    for seed in (7, 8):
        entry = results["cells"][f"x-{seed}"]
        assert (entry["status"], entry["row"], entry["seed"], entry["steps"]) == ("done", "x", seed, 40)
        assert (entry["bleu"], entry["perplexity"], entry["parameters"]) == (seed, 2 * seed, 17)
        assert entry["seconds"] > 0.4 and entry["cpu_seconds"] > 0 and entry["session"] == 0
        assert f"train.seed={seed}" in entry["command"] and str(texts.train[0]) in entry["command"]
    assert results["sessions"][0]["versions"].keys() == {"transduce", "torch", "python"}


def test_a_finished_training_does_not_run_again_without_its_folder(
    tmp_path: Path, texts: Texts, stand_in: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run_trainings(trainings_of(texts, "x"), texts, results_in(out))
    empty(out / "runs")
    before = (out / "results.json").read_bytes()
    run_trainings(trainings_of(texts, "x"), texts, results_in(out))
    assert "there is nothing to do" in capfd.readouterr().err
    assert (out / "results.json").read_bytes() == before and not list((out / "runs").iterdir())
    run_trainings(trainings_of(texts, "x", "y"), texts, results_in(out))
    assert [path.name for path in (out / "runs").iterdir() if path.is_dir()] == ["y-1"]
    assert read_results(out / "results.json", table3.STUDY).entries["x-1"] == json.loads(before)["cells"]["x-1"]


def test_the_mean_of_the_newest_checkpoints_is_evaluated_too(tmp_path: Path, texts: Texts, stand_in: Path) -> None:
    out, training = tmp_path / "out", Training("x", 1, f"{tmp_path / 'recipe.py'}:tiny", averaged=5)
    run_trainings([training], texts, results_in(out))
    results = read_results(out / "results.json", table3.STUDY)
    assert (results.entries["x-1"]["bleu"], results.entries["x-1"]["valid_mean"]["bleu"]) == (1, 50)
    results.entries["x-1"] = {"status": "not run"}  # as after an interruption between the mean and its evaluation
    results.save()
    run_trainings([training], texts, results_in(out))
    assert read_results(out / "results.json", table3.STUDY).entries["x-1"]["valid_mean"]["bleu"] == 50


def test_a_row_may_have_texts_of_its_own(tmp_path: Path, texts: Texts, stand_in: Path) -> None:
    other = Texts(texts.train, texts.train)
    out = tmp_path / "out"
    run_trainings(trainings_of(texts, "x", "y"), texts, results_in(out), other_data={"y": other})
    commands = {
        name: entry["command"] for name, entry in read_results(out / "results.json", table3.STUDY).entries.items()
    }
    assert "valid.src" in commands["x-1"] and "valid.src" not in commands["y-1"]


def change_recipe(texts: Texts, old: str, new: str) -> None:
    recipe = texts.train[0].parent / "recipe.py"
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))


def test_a_result_of_another_recipe_is_refused(tmp_path: Path, texts: Texts, stand_in: Path) -> None:
    out = tmp_path / "out"
    run_trainings(trainings_of(texts, "x", "y"), texts, results_in(out))
    entry = read_results(out / "results.json", table3.STUDY).entries["x-1"]
    assert entry["config"]["train"]["max_steps"] == 40 and entry["config"]["train"]["seed"] == 1
    before = (out / "results.json").read_bytes()
    change_recipe(texts, "max_steps=40", "max_steps=30")
    message = r"train them again with --rerun:\n  x-1, y-1: train.max_steps=40 then, 30 now$"
    with pytest.raises(UserError, match=message):
        run_trainings(trainings_of(texts, "x", "y"), texts, results_in(out))
    assert (out / "results.json").read_bytes() == before


def test_rerun_trains_results_of_another_recipe_from_step_0(tmp_path: Path, texts: Texts, stand_in: Path) -> None:
    out = tmp_path / "out"
    run_trainings(trainings_of(texts, "x"), texts, results_in(out))
    change_recipe(texts, "max_steps=40", "max_steps=30")
    other = trainings_of(texts, "other", settings=("train.max_steps=30",))
    run_trainings(other, texts, results_in(out))
    earlier = read_results(out / "results.json", table3.STUDY).entries
    again = trainings_of(texts, "x", settings=("train.max_steps=30",))  # our fast program reads no recipe
    run_trainings([*again, *other], texts, results_in(out), rerun=True)
    entries = read_results(out / "results.json", table3.STUDY).entries
    assert (entries["x-1"]["steps"], entries["x-1"]["config"]["train"]["max_steps"]) == (30, 30)
    assert entries["x-1"]["seconds"] < 2 * earlier["other-1"]["seconds"]  # without the cost of the first training
    assert entries["other-1"] == earlier["other-1"]


def test_a_failure_is_reported_and_the_others_continue(
    tmp_path: Path, texts: Texts, stand_in: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = trainings_of(texts, "bad", settings=("train.lr_factor=9",))
    early = trainings_of(texts, "early", settings=("train.lr_factor=8",))
    with pytest.raises(UserError, match="2 of 4 trainings failed: bad-1, early-1; see their logs in .*runs"):
        run_trainings([*bad, *early, *trainings_of(texts, "x", "y")], texts, results_in(tmp_path / "out"))
    entries = read_results(tmp_path / "out" / "results.json", table3.STUDY).entries
    assert [entry["status"] for entry in entries.values()] == ["failed", "failed", "done", "done"]
    assert entries["bad-1"]["why"] == "train: the training diverged (exit code 1)" and "bleu" not in entries["bad-1"]
    assert entries["early-1"]["why"] == "train: ended at step 1 of 40" and "bleu" not in entries["early-1"]
    assert "bad-1: failed, train: the training diverged" in capfd.readouterr().err
    run_trainings(trainings_of(texts, "bad"), texts, results_in(tmp_path / "out"))  # with the settings corrected
    assert read_results(tmp_path / "out" / "results.json", table3.STUDY).is_done("bad-1")


def test_jobs_share_the_cores(tmp_path: Path, texts: Texts, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("transduce.studies.schedule.cores", lambda: 6)
    run_trainings(trainings_of(texts, "x", "y", "z"), texts, results_in(tmp_path / "a"), jobs=2)
    assert (tmp_path / "a" / "runs" / "x-1" / "environment").read_text() == "3"
    run_trainings(
        trainings_of(texts, "x"), texts, results_in(tmp_path / "c"), jobs=2
    )  # a single training has all cores
    assert (tmp_path / "c" / "runs" / "x-1" / "environment").read_text() == "6"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run_trainings(trainings_of(texts, "x"), texts, results_in(tmp_path / "b"))
    assert (tmp_path / "b" / "runs" / "x-1" / "environment").read_text() == "1"


def test_each_job_has_a_gpu(tmp_path: Path, texts: Texts, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.studies.schedule.visible_gpus", lambda: ["2", "5"])
    run_trainings(trainings_of(texts, "x", "y", "z"), texts, results_in(tmp_path / "out"))
    entries = read_results(tmp_path / "out" / "results.json", table3.STUDY).entries
    assert {entries["x-1"]["gpu"], entries["y-1"]["gpu"]} == {"2", "5"} and entries["z-1"]["gpu"] in ("2", "5")


# ---- interruptions -----------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from transduce.studies import table3
from transduce.studies.schedule import run_trainings
from transduce.studies.trainings import Texts
from transduce.studies.trainings import Training
folder = Path(sys.argv[2])
def pair(name): return folder / f"{name}.src", folder / f"{name}.tgt"
recipe = f"{folder / 'recipe.py'}:tiny"
trainings = [Training("x", 1, recipe), Training("y", 1, recipe, ("train.max_steps=150",)), Training("z", 1, recipe)]
results = table3.STUDY.open(folder / "out", {"scale": "tiny"})
run_trainings(trainings, Texts(pair("train"), pair("valid")), results)
"""


def resume_after(folder: Path, ending: signal.Signals, is_under_way: Callable[[], bool]) -> Results:
    """Run SCRIPT in `folder`, send it `ending` when it `is_under_way`, resume it, and return its results."""
    out, command = folder / "out", [sys.executable, "-c", SCRIPT, str(ROOT / "src"), str(folder)]
    study = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for(is_under_way)
    study.send_signal(ending)
    assert study.wait() != 0
    before = read_results(out / "results.json", table3.STUDY).entries
    statuses = {name: entry["status"] for name, entry in before.items()}
    assert statuses == {"x-1": "done", "y-1": "not run", "z-1": "not run"}
    wait_for(lambda: not is_locked(out / "runs"))  # a training whose study was killed runs to its end
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    after = read_results(out / "results.json", table3.STUDY)
    assert after.entries["x-1"] == before["x-1"] and len(after.sessions) == 2
    return after


@pytest.mark.parametrize("ending", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_an_interrupted_study_resumes(tmp_path: Path, texts: Texts, stand_in: Path, ending: signal.Signals) -> None:
    log = tmp_path / "out" / "runs" / "y-1" / "log.jsonl"
    results = resume_after(tmp_path, ending, lambda: log.exists() and len(log.read_bytes()) > 200)
    figures = {name: (entry["status"], entry["steps"], entry["bleu"]) for name, entry in results.entries.items()}
    assert figures == {"x-1": ("done", 40, 1), "y-1": ("done", 150, 1), "z-1": ("done", 40, 1)}
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [*range(1, 151)]


@pytest.mark.slow
def test_an_interrupted_study_of_real_trainings_has_equal_results(
    tmp_path: Path, texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    checkpoints = tmp_path / "out" / "runs" / "y-1" / "checkpoints"
    results = resume_after(tmp_path, signal.SIGTERM, checkpoints.exists)
    entry = results.entries["y-1"]
    assert entry["perplexity"] > 1 and 0 <= entry["bleu"] <= 100 and entry["valid"]["lines"] == 6
    assert entry["parameters"] == stored_parameters(tmp_path / "out" / "runs" / "y-1" / "model")
    (tmp_path / "out").rename(tmp_path / "interrupted")
    subprocess.run([sys.executable, "-c", SCRIPT, str(ROOT / "src"), str(tmp_path)], check=True)
    assert reproducible(results) == reproducible(read_results(tmp_path / "out" / "results.json", table3.STUDY))


COSTS = ("seconds", "cpu_seconds", "ended_at", "session")


def reproducible(results: Results) -> dict[str, dict[str, object]]:
    """Return the entries without dates and durations."""
    return {
        name: {key: value for key, value in entry.items() if key not in COSTS}
        for name, entry in results.entries.items()
    }


def test_a_second_study_in_the_same_folder_is_refused(tmp_path: Path, texts: Texts) -> None:
    runs = tmp_path / "out" / "runs"
    runs.mkdir(parents=True)
    expected = pytest.raises(UserError, match="out: expected a folder that no other study uses")
    with locked(runs, "locked"), expected:
        run_trainings(trainings_of(texts, "x"), texts, results_in(tmp_path / "out"))
    assert not (tmp_path / "out" / "results.json").exists()


def test_results_that_another_study_changed_are_not_overwritten(tmp_path: Path, texts: Texts, stand_in: Path) -> None:
    early = results_in(tmp_path / "out")
    run_trainings(trainings_of(texts, "x"), texts, results_in(tmp_path / "out"))
    with pytest.raises(UserError, match="expected a file that no other study changes"):
        run_trainings(trainings_of(texts, "y"), texts, early)


def test_trainings_end_when_the_study_cannot_write(
    tmp_path: Path, texts: Texts, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(results: Results, name: str, status: str, **figures: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Results, "record", refuse)
    long = trainings_of(texts, "long", settings=("train.max_steps=9999",))
    with pytest.raises(OSError, match="disk full"):
        run_trainings([*trainings_of(texts, "x"), *long], texts, results_in(tmp_path / "out"), jobs=2)
    wait_for(lambda: not is_locked(tmp_path / "out" / "runs"))


# ---- mistakes ----------------------------------------------------------------------------------------------------


def test_texts_are_checked_before_a_training_starts(tmp_path: Path, texts: Texts) -> None:
    with pytest.raises(UserError, match="2 problems"):
        Texts(texts.train, (tmp_path / "none", tmp_path / "nothing")).read()
    with pytest.raises(UserError, match="expected the same number of lines"):
        Texts((texts.train[0], texts.valid[1]), texts.valid).read()
    assert set(texts.read()) == {"training text", "validation text"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "base", "h3"], f"--rows=h3: expected one of {', '.join(PAPER)}, all; did you mean 'h32'?"),
        (["--jobs", "0"], "--jobs=0: expected at least 1"),
        (["--seeds", "-1"], "train.seed=-1: expected at least 0"),
        (["--seeds", "2", "2"], "--seeds=2 2: expected different seeds"),
        (["--large-train", "a", "b"], "--large-valid: expected a text, since --large-train is given; give both"),
        (["--rows", "base-large"], "--rows=base-large: expected one of base, h1"),
        (["--language", "German"], "language='German': expected a code"),
    ],
)
def test_options_are_checked_before_a_training_starts(
    cli: Callable[..., CommandResult], tmp_path: Path, texts: Texts, options: list[str], message: str
) -> None:
    paths = ["--train", *texts.train, "--valid", *texts.valid, "--out", tmp_path / "out"]
    process = cli("study", "table3", *paths, *options)
    assert process.code == 2 and message in process.err and not (tmp_path / "out").exists()
