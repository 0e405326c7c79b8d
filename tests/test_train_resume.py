"""Stopped and resumed trainings: they end with the same bits as an uninterrupted one."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.toy_task import ROOT, Toy
from support.trainings import (
    CONFIG,
    USES,
    Texts,
    act_at_step,
    assert_same,
    checkpoint_steps,
    everything,
    train,
    with_train,
)

import transduce
from transduce import train as training
from transduce.errors import UserError
from transduce.model import devices
from transduce.storage import run_folder
from transduce.storage.checkpoints import checkpoint_path, checkpoints, load_checkpoint
from transduce.storage.model_folder import load_config
from transduce.storage.run_log import reports
from transduce.training.signals import StopSignal


def test_two_runs_are_identical(finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path) -> None:
    train(CONFIG, out=tmp_path / "run", **run_texts)
    assert_same(tmp_path / "run", finished_runs["average"])


FAST = {("average", 1)}


@pytest.mark.parametrize(
    ("use", "step"),
    [
        pytest.param(use, step, marks=[] if (use, step) in FAST else pytest.mark.slow)
        for use in USES
        for step in (1, 29, 45, 60)
    ],
)
def test_a_run_stopped_by_sigterm_resumes_to_the_same_end(
    use: str,
    step: int,
    finished_runs: dict[str, Path],
    run_texts: Texts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run finishes and saves the step, and writes a model; the resumed run ends like an uninterrupted one."""
    with monkeypatch.context() as patch:
        act_at_step(patch, step, lambda: os.kill(os.getpid(), signal.SIGTERM))
        model = train(USES[use], out=tmp_path / "run", **run_texts)
    assert checkpoint_steps(tmp_path / "run")[-1] == step
    assert len(transduce.load(model).translate(["a b"])) == 1
    train(USES[use], out=tmp_path / "run", resume=True, **run_texts)
    assert_same(tmp_path / "run", finished_runs[use])


def test_a_run_with_muon_resumes_to_the_same_end(
    run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_train(CONFIG, optimizer="muon", max_steps=20, patience=None)
    train(config, out=tmp_path / "whole", **run_texts)
    with monkeypatch.context() as patch:
        act_at_step(patch, 9, lambda: os.kill(os.getpid(), signal.SIGTERM))
        train(config, out=tmp_path / "run", **run_texts)
    train(config, out=tmp_path / "run", resume=True, **run_texts)
    assert_same(tmp_path / "run", tmp_path / "whole")
    adam = with_train(config, optimizer="adam")
    with pytest.raises(UserError, match="train.optimizer: 'muon' then, 'adam' now"):
        train(adam, out=tmp_path / "run", resume=True, **run_texts)


def test_a_run_keeps_the_precision_that_its_device_chose(
    run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "training_precision", lambda: "bf16")
    config = with_train(CONFIG, max_steps=2, patience=None)
    train(config, out=tmp_path / "run", **run_texts)
    assert "precision: bf16 (chosen" in capfd.readouterr().err
    fp32 = with_train(config, precision="fp32")
    train(fp32, out=tmp_path / "fp32", **run_texts)
    monkeypatch.setattr(devices, "training_precision", lambda: "fp32")
    more = with_train(config, max_steps=3)
    train(more, out=tmp_path / "run", resume=True, allow_change=["train.max_steps"], **run_texts)
    assert "chosen" not in capfd.readouterr().err
    for name, precision in (("run", "bf16"), ("fp32", "fp32")):
        assert run_folder.run_config(tmp_path / name).train.precision == precision
        assert load_config(tmp_path / name / "model").train.precision == precision
    with pytest.raises(UserError, match="train.precision: 'bf16' then, 'fp32' now"):
        train(fp32, out=tmp_path / "run", resume=True, **run_texts)


def test_a_run_stopped_seven_times_ends_the_same(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (3, 9, 10, 11, 25, 44, 58):
        with monkeypatch.context() as patch:
            act_at_step(patch, step, lambda: os.kill(os.getpid(), signal.SIGINT))
            train(CONFIG, out=tmp_path / "run", resume=True, **run_texts)
        assert checkpoint_steps(tmp_path / "run")[-1] == step
        card = (tmp_path / "run" / "model" / "README.md").read_text("utf-8")
        assert f"the last checkpoint, step-{step:08}" in card  # a mean could be worse, and nothing has evaluated it
    train(CONFIG, out=tmp_path / "run", resume=True, **run_texts)
    assert_same(tmp_path / "run", finished_runs["average"])


@pytest.mark.parametrize("step", [pytest.param(5, marks=pytest.mark.slow), 37])
def test_a_run_ended_by_an_exception_resumes_to_the_same_end(
    step: int, finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("the machine is on fire")

    with monkeypatch.context() as patch:
        act_at_step(patch, step, fail)
        with pytest.raises(RuntimeError, match="on fire"):
            train(USES["ema"], out=tmp_path / "run", **run_texts)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    train(USES["ema"], out=tmp_path / "run", resume=True, **run_texts)
    assert_same(tmp_path / "run", finished_runs["ema"])


def test_the_command_stops_at_sigterm_and_exits_0(toy: Toy, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "transduce", "train", "--recipe", f"{toy.folder / 'recipe.py'}:reverse"]
    command += ["--train", *map(str, toy.train), "--valid", *map(str, toy.valid), "--out", str(tmp_path / "run")]
    command += ["--set", "train.max_steps=100000", "--set", "train.log_every_steps=1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not [*reports(tmp_path / "run")] and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    assert out == b""
    assert b"continue with the same command and --resume" in err
    assert checkpoint_steps(tmp_path / "run")[-1] == [*reports(tmp_path / "run")][-1]["step"]


def test_a_second_signal_ends_the_program_at_once() -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_requested
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)


def test_resuming_a_finished_run_changes_nothing(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path
) -> None:
    """Only the report changes: it has the time when it was written."""
    run = tmp_path / "run"
    shutil.copytree(finished_runs["average"], run)
    (run / "model" / "README.md").write_text("my own card", encoding="utf-8")
    before = everything(run)
    train(CONFIG, out=run, resume=True, **run_texts)
    after = everything(run)
    assert before.pop(run / "report.html") and after.pop(run / "report.html") and after == before


def test_a_resume_on_another_device_is_reported(
    finished_runs: dict[str, Path],
    run_texts: Texts,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(finished_runs["average"], tmp_path / "run")
    train(CONFIG, out=tmp_path / "run", resume=True, **run_texts)
    assert "rounding may differ" not in capfd.readouterr().err
    monkeypatch.setattr(run_folder, "_device_name", lambda: "NVIDIA H100")
    train(CONFIG, out=tmp_path / "run", resume=True, **run_texts)
    lines = capfd.readouterr().err
    assert re.search(r"threads on cpu, this is torch .* on NVIDIA H100: rounding may differ", lines), lines


def test_with_another_score_the_best_of_the_checkpoints_is_chosen_again(
    run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = iter([(2.0, 40.0), (1.0, 10.0), (3.0, 30.0)])  # of steps 2, 4 and 6

    def scores(*_: object) -> dict[str, float]:
        loss, bleu = next(first, (4.0, 20.0))
        return {"loss": loss, "perplexity": 1.0, "bleu": bleu}

    monkeypatch.setattr(training, "validation_scores", scores)
    rules = {"evaluate_every_steps": 2, "checkpoint_every_steps": 2, "keep_checkpoints": 2, "use": "best"}
    config, out = with_train(CONFIG, max_steps=8, **rules), tmp_path / "run"
    train(config, out=out, **run_texts)
    assert checkpoint_steps(out) == [4, 6, 8]
    by_bleu = with_train(config, best_by="bleu")
    train(by_bleu, out=out, resume=True, allow_change=["train.best_by"], **run_texts)
    assert "the best by validation bleu is step 6, of the checkpoints that are left" in capsys.readouterr().err
    assert run_folder.holds(out / "model", load_checkpoint(checkpoint_path(out, 6)).weights)
    longer = with_train(by_bleu, max_steps=10)
    train(longer, out=out, resume=True, allow_change=["train.max_steps"], **run_texts)
    assert checkpoint_steps(out) == [6, 8, 10]
    assert load_checkpoint(checkpoint_path(out, 10)).state["best_score"] == -30.0
    capsys.readouterr()
    train(longer, out=out, resume=True, **run_texts)
    assert "is up to date" in (messages := capsys.readouterr().err) and "are left" not in messages


def test_resuming_a_finished_run_without_a_model_writes_it_again(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path
) -> None:
    shutil.copytree(finished_runs["average"], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    train(CONFIG, out=tmp_path / "run", resume=True, **run_texts)
    assert_same(tmp_path / "run", finished_runs["average"])


def test_resume_skips_a_damaged_newest_checkpoint_and_writes_it_again(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished_runs["average"], tmp_path / "run")
    newest = checkpoints(tmp_path / "run")[-1] / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    train(CONFIG, out=tmp_path / "run", resume=True, **run_texts)
    assert "the run resumes from step-00000056 instead" in capfd.readouterr().err
    assert_same(tmp_path / "run", finished_runs["average"])


def test_resume_starts_a_run_without_checkpoints(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path
) -> None:
    shutil.copytree(finished_runs["average"], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.rmtree(tmp_path / "run" / "model")
    train(CONFIG, out=tmp_path / "run", resume=True, **run_texts)
    assert_same(tmp_path / "run", finished_runs["average"])


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{}", encoding="utf-8")])
def test_a_lost_tokenizer_is_restored_by_the_command_in_the_message(
    damage: Callable[[Path], object], finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path
) -> None:
    run = tmp_path / "a run"
    shutil.copytree(finished_runs["average"], run)
    damage(run / "tokenizer.json")
    with pytest.raises(UserError, match="tokenizer.json: expected the file that .* was trained with") as problem:
        train(CONFIG, out=run, resume=True, **run_texts)
    subprocess.run(str(problem.value).partition("restore it: ")[2], shell=True, check=True)
    train(CONFIG, out=run, resume=True, **run_texts)
    assert_same(run, finished_runs["average"])
    (run / "tokenizer.json").unlink()
    (run / "model" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="it is missing; use another copy, or start a new run"):
        train(CONFIG, out=run, resume=True, **run_texts)


def test_a_forgotten_validation_text_is_named(finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path) -> None:
    shutil.copytree(finished_runs["average"], tmp_path / "run")
    before = everything(tmp_path / "run")
    src, tgt = run_texts["valid"]
    with pytest.raises(UserError) as problem:
        train(CONFIG, out=tmp_path / "run", resume=True, train=run_texts["train"], valid=())
    message = str(problem.value)
    assert f"add --valid {src} {tgt}, in Python valid={(str(src), str(tgt))!r}" in message
    assert everything(tmp_path / "run") == before


def test_a_validation_text_beside_the_one_that_was_held_out_is_refused(run_texts: Texts, tmp_path: Path) -> None:
    config = with_train(CONFIG, max_steps=1, warmup_steps=1, decay_steps=0)
    texts = {"train": run_texts["train"], "out": tmp_path / "run"}
    train(config, valid=(), **texts)
    with pytest.raises(UserError, match=r"--valid=.*: must not be set, because .* it held out .*; leave it out"):
        train(config, valid=run_texts["valid"], resume=True, **texts)
    train(config, valid=(), resume=True, **texts)
