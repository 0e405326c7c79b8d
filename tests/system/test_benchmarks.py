"""Benchmarks that CI cannot run in full run here with tiny sizes."""

import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.random_models import random_model, save_to
from support.small_encoders import bert_folder
from support.toy_task import ROOT, write_lines

from transduce.config.schema import ModelConfig
from transduce.demo.grammar import corpus

sys.path.insert(0, str(ROOT / "benchmarks"))
SCALE = runpy.run_path(str(ROOT / "benchmarks" / "scale.py"))

# A machine with torch and numpy, and without the packages of the command line.
WITHOUT = """
import runpy, sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refused())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in {absent} else real(name, *a)
sys.argv = {argv}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ABSENT = {"cyclopts", "msgspec", "rich", "sacrebleu", "safetensors", "tokenizers", "transformers"}


@pytest.mark.slow
def test_the_gpu_script_runs_on_a_cpu_with_only_torch(tmp_path: Path) -> None:
    argv = [str(ROOT / "benchmarks" / "gpu.py"), "--tiny", "--out", str(tmp_path / "gpu.json")]
    program = WITHOUT.format(absent=ABSENT, argv=argv)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = str(ROOT / "benchmarks")
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert max(result["correctness"]["bf16"].values()) < 0.1
    for size in ("base", "big"):
        for side in ("transduce", "torch.nn.Transformer"):
            training = result[f"training {size}, {side}"]
            assert training["tokens_per_second"] > 0 and training["a_step"]["operations"] > 0
    assert result["translation, transduce"]["latency_ms"] > 0


@pytest.mark.slow
def test_the_gpu_script_skips_what_does_not_fit_into_its_minutes(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    words = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--tiny", "--minutes", "0.25", "--out", str(out)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
    result = json.loads(out.read_text())
    assert all(result[part].startswith("skipped") for part in ("correctness", "training base, transduce"))
    assert result["ceiling_tflops"] > 0


@pytest.mark.slow
def test_speeds_of_other_depths_are_compared(tmp_path: Path) -> None:
    model = save_to(random_model(ModelConfig(d_model=16, n_heads=2, n_layers=1, d_ff=32)), tmp_path / "model")
    (tmp_path / "test.en").write_text("a b c\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "benchmarks" / "depths.py"), str(model), "--src", str(tmp_path / "test.en")]
    options = ["--depths", "1,1", "2,1", "--tokens", "2", "--beam-size", "1", "--rounds", "1"]
    process = subprocess.run([*command, *options], capture_output=True, text=True, check=True, timeout=300)
    assert "| 1 | 2 + 1 layers, d_model 512," in process.stdout


@pytest.mark.slow
def test_two_checkouts_are_compared_each_with_its_own_package(tmp_path: Path) -> None:
    other = tmp_path / "other"
    source = tmp_path / "test.en"
    out = tmp_path / "versions.json"
    shutil.copytree(ROOT / "src" / "transduce", other / "src" / "transduce")
    with (other / "src" / "transduce" / "translate.py").open("a", encoding="utf-8") as code:
        code.write(
            "\nTranslator.translate = lambda self, lines, **_: [Translation(f'other {line}') for line in lines]\n"
        )
    source.write_text("A dog runs.\nTwo men\n", encoding="utf-8")
    model = save_to(random_model(ModelConfig(d_model=16, n_heads=2, n_layers=1, d_ff=32)), tmp_path / "model")
    argv = [
        other,
        model,
        "--src",
        source,
        "--starts",
        1,
        "--rounds",
        1,
        "--lines",
        2,
        "--alone",
        1,
        "--precisions",
        "fp32",
        "--out",
        out,
    ]
    command = [sys.executable, str(ROOT / "benchmarks" / "versions.py"), *map(str, argv)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
    for search, result in json.loads(out.read_text())["time_ratios"]["model"]["fp32"].items():
        assert result["median"] > 0 and result.get("lines_that_differ") == (None if search == "alone" else 2)


# ---- scale -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", SCALE["tables"](quick=True))
def test_the_costs_of_small_batches_can_be_measured(table: str) -> None:
    key, cells = SCALE["tables"](quick=True)[table]
    rows = [{**cell, **SCALE["measure"](cell, threads=1, seconds=0)} for cell in cells]
    for i, row in enumerate(rows):
        assert row["seconds"] > 0
        assert len(SCALE["line_of"](rows[: i + 1], key).split("|")) == 8


@pytest.mark.slow
def test_a_long_file_keeps_its_order_in_flat_memory() -> None:
    """Translate 20,000 lines through the command line, with blank and very long lines among them."""
    figures = SCALE["run_file"](20_000, threads=1)
    assert figures["in_place"] == figures["sample"] == 200
    assert figures["added_mb"] < 60


@pytest.mark.slow
def test_language_models_are_compared_on_one_text(tmp_path: Path) -> None:
    lines = ["a b c d", "b c d e", "c d e f"] * 10
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in lines))
    sizes = ["model.d_model=16", "model.d_inner=24", "data.vocab_size=280", "train.max_steps=3", "train.precision=fp32"]
    words = [
        *(f"--{name}={text}" for name in ("train", "valid", "test")),
        f"--out={tmp_path / 'runs'}",
        "--kinds",
        "lstm",
    ]
    words += [word for setting in sizes for word in ("--set", setting)]
    script = str(ROOT / "benchmarks" / "language_models.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    output = subprocess.run([sys.executable, script, *words], env=environment, capture_output=True, check=True).stdout
    assert output.startswith(b"lstm: 0.01 M parameters") and b"perplexity per word" in output


def test_classifiers_of_few_labels_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    animals = {"dogs": "dog", "cats": "cat", "birds": "bird"}
    for name, animal in animals.items():
        endings = [f"{verb} {where}." for verb in ("runs", "sleeps", "sings") for where in ("fast", "on mat", "small")]
        lines = [*(f"The {animal} {ending}" for ending in endings), f"the {animal} runs FAST", "A mat, small."]
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    script, texts = (
        runpy.run_path(str(ROOT / "benchmarks" / "labels.py")),
        [tmp_path / f"{name}.txt" for name in animals],
    )
    assert script["letters"]("It's 5 Bäume, O_K!") == "it s bäume o k"
    sentences = script["sentences_of"](texts)
    assert {name: len(lines) for name, lines in sentences.items()} == dict.fromkeys(animals, 9)
    test = script["drawn"](sentences, 6, 0)
    rest = script["without"](sentences, test)
    few, many = (script["drawn"](rest, n, 1) for n in (15, 18))
    assert few == many[:15] and not {*test} & {*many} and len({*many}) == 18
    assert [label for _, label in many] == [*animals] * 6

    command = ["labels.py", "--out", tmp_path / "runs", "--test", 6, "--corpora", *texts]
    monkeypatch.setattr(sys, "argv", [*map(str, command), "--write-text"])
    script["main"]()
    parts = [(tmp_path / "runs" / f"{name}.txt").read_text().splitlines() for name in ("valid", "train")]
    assert sorted([*parts[0], *parts[1]]) == sorted(line for lines in rest.values() for line in lines)
    assert len(parts[0]) == 2

    command += ["--bert", bert_folder(tmp_path / "bert", "pooler")]
    command += ["--labels", 15, 18, "--set", "train.max_steps=1", "--set", "data.max_tokens=20"]
    monkeypatch.setattr(sys, "argv", [*map(str, command), "--methods", "fine-tuned"])
    script["main"]()
    output, results = capsys.readouterr().out, json.loads((tmp_path / "runs" / "labels.json").read_text())
    assert [(result["labels"], result["method"]) for result in results] == [(15, "fine-tuned"), (18, "fine-tuned")]
    assert f"| labels | fine-tuned |\n|---|---|\n| 15 | {results[0]['accuracy']:.1f} |" in output
    if importlib.util.find_spec("sklearn") is None:
        monkeypatch.setattr(sys, "argv", [*map(str, command)])
        with pytest.raises(SystemExit, match="pip install scikit-learn"):
            script["main"]()


# ---- images ------------------------------------------------------------------------------------------------------


def test_a_vit_tells_two_made_digits_apart() -> None:
    digits = runpy.run_path(str(ROOT / "benchmarks" / "digits.py"))
    truth = torch.arange(50) % 2
    images = 0.3 * torch.rand(50, 8, 8, generator=torch.Generator().manual_seed(1))
    images[truth == 1, :4] += 0.5  # a bright upper half
    pixels = images.flatten(1).numpy()
    predicted = digits["vit_predictions"](pixels[:40], truth[:40].numpy(), pixels[40:], seed=1, epochs=20)
    assert predicted == truth[40:].tolist()


# ---- quality for each minute -------------------------------------------------------------------------------------


def quality_command(folder: Path, *options: str) -> list[str]:
    words = [str(ROOT / "benchmarks" / "quality_per_minute.py"), "--out", str(folder / "out"), *options]
    for name in ("train", "valid", "test"):
        words += [f"--{name}", str(folder / f"{name}.en"), str(folder / f"{name}.de")]
    return [*words, "--results", str(folder / "results.json"), "--figure", str(folder / "figure.svg")]


def write_captions(folder: Path) -> None:
    words = {"the": "der", "small": "kleine", "big": "große", "dog": "Hund", "bird": "Vogel", "runs": "läuft"}
    lines = [f"the {size} {animal} runs {count}." for size in ("small", "big") for animal in ("dog", "bird")
             for count in range(90)]  # fmt: skip
    parts = {"train": lines, "valid": lines[::20], "test": lines[5::20]}
    for name, english in parts.items():
        german = [" ".join(words.get(word, word) for word in line.split()) for line in english]
        (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in english), encoding="utf-8")
        (folder / f"{name}.de").write_text("".join(f"{line}\n" for line in german), encoding="utf-8")


def test_sides_that_are_done_are_compared_without_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_captions(tmp_path)
    truth = (tmp_path / "test.de").read_text(encoding="utf-8").splitlines()
    sides = ("transduce", "joeynmt", "transformers")
    for side, minutes, right in (("transduce", 5, 9), ("joeynmt", 5, 0), ("joeynmt", 20, 18), ("transformers", 5, 1)):
        folder = tmp_path / "out" / side / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{minutes}.json").write_text(json.dumps({"minutes": minutes * 1.1, "steps": 100 * minutes}))
        lines = [*truth[:right], *("x" for _ in truth[right:])]
        (folder / f"{minutes}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", quality_command(tmp_path, "--minutes", "5", "--sides", *sides))
    runpy.run_path(sys.argv[0], run_name="__main__")
    table = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    scores = {(point["side"], point["mark"]): point["bleu"] for point in results["points"]}
    assert scores["joeynmt", 20] == 100 > scores["transduce", 5] > scores["transformers", 5] > scores["joeynmt", 5] == 0
    needed = 1 + 3 * scores["transduce", 5] / 100  # on the line from 5 minutes to 20
    assert f"| joeynmt | {needed:.1f} |\n| transformers | > 1.0, not reached |" in table
    assert (tmp_path / "figure.svg").read_text().count("<circle") == 3 + len(scores)

    (tmp_path / "test.de").write_text("other\n" * len(truth))
    with pytest.raises(SystemExit, match="expected a folder of this text; give another one"):
        runpy.run_path(sys.argv[0], run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("side", ["transduce", "joeynmt", "transformers", "fairseq"])
def test_the_quality_of_a_side_is_measured(tmp_path: Path, side: str) -> None:
    """Train on 360 short sentences; the peers, where they are installed, for a few seconds."""
    environment = ROOT / "benchmarks" / "peers" / ("fairseq" if side == "fairseq" else "train")
    if side != "transduce" and not (environment / "installed.txt").exists():
        pytest.skip(f"{side} is not installed: python benchmarks/quality_per_minute.py installs it")
    write_captions(tmp_path)
    marks = ["1"] if side == "transduce" else ["0.05", "0.1"]
    command = [sys.executable, *quality_command(tmp_path, "--sides", side, "--threads", "1", "--minutes", *marks)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=1_500)
    assert process.returncode == 0, process.stdout + process.stderr
    points = json.loads((tmp_path / "results.json").read_text())["points"]
    assert [(point["side"], f"{point['mark']:g}") for point in points] == [(side, mark) for mark in marks]
    assert all(point["steps"] > 0 and point["minutes"] > 0 for point in points)


@pytest.mark.slow
def test_planted_faults_are_cleaned(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    pairs = list(dict.fromkeys(corpus(5, 3_500)))
    files = [write_lines(tmp_path / "a", [a for a, _ in pairs]), write_lines(tmp_path / "b", [b for _, b in pairs])]
    french = write_lines(tmp_path / "c", ["Le chien noir court dans la neige.", "Deux femmes attendent sur un banc."])
    words = [str(ROOT / "benchmarks" / "clean.py"), *map(str, files), "--foreign", str(french)]
    process = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    shares = dict(re.findall(r"^\| (.*) \| ([\d.]+)% \|$", process.stdout, re.MULTILINE))
    assert float(shares["all faults"]) >= 90, process.stdout
    assert float(shares["good pairs, lost"]) <= 1, process.stdout


@pytest.mark.slow
def test_sparse_features_share_dimensions() -> None:
    """Opposite features have half of a dimension each, those at right angles a whole one."""
    toy = runpy.run_path(str(ROOT / "benchmarks" / "superposition.py"))
    weights = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 2.0]])
    assert toy["dimensionalities"](weights).tolist() == [0.5, 0.5, 1.0]
    trained, losses, nothing = toy["train"](torch.tensor([0.0, 0.99]), steps=300)
    represented = (trained.square().sum(-2) > 0.5).sum(-1).float().mean(-1)
    assert represented[0] < 6 and represented[1] > 12
    assert (losses < nothing).all() and (losses / nothing)[1].mean() < (losses / nothing)[0].mean()


@pytest.mark.parametrize("name", ["shorter", "colourful"])
def test_the_better_continuation_is_chosen(tmp_path: Path, name: str) -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "preferences.py"))
    prompts, draws = ["a dog"] * 1_001, ([" runs."] * 1_001, [" in a red hat."] * 1_000 + [" runs."])
    train, valid, unseen = made["write_pairs"](made["RULES"][name], prompts, draws, tmp_path)
    texts = [path.read_text().splitlines() for path in (*valid, *unseen)]
    expected = ["a dog runs.", "a dog in a red hat."]
    assert [text[0] for text in texts] == 2 * (expected if name == "shorter" else expected[::-1])
    assert [len(text) for text in texts] == [500] * 4 and [path.read_text() for path in train] == ["", ""]
