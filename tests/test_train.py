"""Training: it learns, stops, resumes bit for bit, keeps what it should, and says what is wrong."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.toy_task import ROOT, CommandResult, Toy, reverse_words, toy_lines, write_lines, write_pairs
from support.trainings import train

import transduce
from transduce import train as training
from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig
from transduce.data.batches import Batch
from transduce.errors import UserError
from transduce.model.transformer import Transformer
from transduce.storage import checkpoints as checkpoint
from transduce.storage import run_folder as run
from transduce.storage.checkpoints import checkpoints, load_checkpoint
from transduce.storage.model_folder import load_model, save_model
from transduce.storage.run_log import read_log
from transduce.train import TranslationTask
from transduce.training import signals as stopping
from transduce.training import state
from transduce.training.gradients import Gradient, Gradients, dropout_seed
from transduce.training.state import move_average
from transduce.training.weights import weights

Texts = dict[str, tuple[Path, Path]]

# Everything on that a resumed run could get wrong, at steps that do not fall together.
CONFIG = Config(
    model=ModelConfig(vocab_size=None, d_model=16, n_layers=1, n_heads=2, d_ff=32, dropout=0.2, attention_dropout=0.1),
    data=DataConfig(vocab_size=290, batch_tokens=150, max_tokens=24, bpe_dropout=0.2),
    train=TrainConfig(
        max_steps=60,
        warmup_steps=20,
        accumulate=3,
        patience=50,
        log_every_steps=7,
        evaluate_every_steps=15,
        checkpoint_every_steps=8,
        keep_checkpoints=3,
        average_checkpoints=3,
    ),
    search=SearchConfig(max_extra_tokens=2),
)


def with_train(config: Config, **changes: Any) -> Config:
    return replace(config, train=replace(config.train, **changes))


USES = {"average": CONFIG, "ema": with_train(CONFIG, use="ema", ema_decay=0.9), "best": with_train(CONFIG, use="best")}


def write_texts(folder: Path) -> Texts:
    return {
        "train": write_pairs(folder, "train", toy_lines(1, 200)),
        "valid": write_pairs(folder, "valid", toy_lines(2, 4)),
    }


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, texts: Texts) -> dict[str, Path]:
    """A run of each kind that nothing disturbed."""
    folders = {use: tmp_path_factory.mktemp(use) / "run" for use in USES}
    for use, folder in folders.items():
        train(USES[use], out=folder, **texts)
    return folders


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def steps(folder: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoints(folder)]


def log_without_times(folder: Path) -> list[dict[str, Any]]:
    times = ("seconds", "tokens_per_second")
    return [{name: value for name, value in line.items() if name not in times} for line in read_log(folder)]


def assert_same(resumed: Path, whole: Path) -> None:
    """Two runs ended alike, bit for bit."""
    assert sha256(resumed / "model" / "model.safetensors") == sha256(whole / "model" / "model.safetensors")
    assert log_without_times(resumed) == log_without_times(whole)
    assert steps(resumed) == steps(whole)
    newest = [load_checkpoint(checkpoints(folder)[-1]) for folder in (resumed, whole)]
    for name, moments in newest[0].optimizer.items():
        assert moments.equal(newest[1].optimizer[name]), name


def everything(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Which file each is (a new one in its place has another number), and what it holds."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_ino, path.read_bytes()) for path in files}


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], None]) -> None:
    """Do something in the middle of a training step."""
    real = training.learning_rate

    def learning_rate(now: int, *, d_model: int, warmup_steps: int, lr_factor: float) -> float:
        if now == step:
            action()
        return real(now, d_model=d_model, warmup_steps=warmup_steps, lr_factor=lr_factor)

    monkeypatch.setattr(training, "learning_rate", learning_rate)


# ---- it learns ---------------------------------------------------------------------------------------------------


def test_the_toy_task_is_learned_through_the_command_line(toy: Toy) -> None:
    model = transduce.load(toy.model)
    outputs = [translation.text for translation in model.translate(toy.unseen)]
    right = sum(output == reverse_words(line) for output, line in zip(outputs, toy.unseen, strict=True))
    assert len(toy.unseen) > 100
    assert right / len(toy.unseen) >= 0.98


@pytest.mark.slow
def test_it_learns_in_bf16_too(toy: Toy, tmp_path: Path) -> None:
    model = transduce.fit(
        *toy.train,
        valid=toy.valid,
        out=tmp_path / "run",
        recipe=f"{toy.folder / 'recipe.py'}:reverse",
        settings=["train.precision=bf16"],
    )
    outputs = [translation.text for translation in model.translate(toy.unseen)]
    right = sum(output == reverse_words(line) for output, line in zip(outputs, toy.unseen, strict=True))
    assert right / len(toy.unseen) >= 0.98


def test_fit_trains_goes_on_and_translates(texts: Texts, tmp_path: Path) -> None:
    src, tgt = texts["train"]
    for steps_asked in (4, 4):  # the second time there is nothing left to do
        model = transduce.fit(
            src,
            str(tgt),
            valid=texts["valid"],
            out=tmp_path / "run",
            recipe=with_train(CONFIG, warmup_steps=2),
            settings=[f"train.max_steps={steps_asked}"],
        )
    assert isinstance(model.translate(["a b c"])[0].text, str)
    assert steps(tmp_path / "run") == [4]


# ---- stopped and resumed -----------------------------------------------------------------------------------------


def test_two_runs_are_the_same(uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path) -> None:
    train(CONFIG, out=tmp_path / "run", **texts)
    assert_same(tmp_path / "run", uninterrupted["average"])


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("step", [1, 29, 45, 60])
def test_stopped_by_sigterm(
    use: str, step: int, uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is finished and saved, a model is there, and going on ends as if nothing had been."""
    with monkeypatch.context() as patch:
        at_step(patch, step, lambda: os.kill(os.getpid(), signal.SIGTERM))
        model = train(USES[use], out=tmp_path / "run", **texts)
    assert steps(tmp_path / "run")[-1] == step
    assert len(transduce.load(model).translate(["a b"])) == 1
    train(USES[use], out=tmp_path / "run", resume=True, **texts)
    assert_same(tmp_path / "run", uninterrupted[use])


def test_stopped_again_and_again(
    uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (3, 9, 10, 11, 25, 44, 58):
        with monkeypatch.context() as patch:
            at_step(patch, step, lambda: os.kill(os.getpid(), signal.SIGINT))
            train(CONFIG, out=tmp_path / "run", resume=True, **texts)
        assert steps(tmp_path / "run")[-1] == step
    train(CONFIG, out=tmp_path / "run", resume=True, **texts)
    assert_same(tmp_path / "run", uninterrupted["average"])


@pytest.mark.parametrize("step", [5, 37])
def test_broken_off_by_an_exception(
    step: int, uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("the machine is on fire")

    with monkeypatch.context() as patch:
        at_step(patch, step, fail)
        with pytest.raises(RuntimeError, match="on fire"):
            train(USES["ema"], out=tmp_path / "run", **texts)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    train(USES["ema"], out=tmp_path / "run", resume=True, **texts)
    assert_same(tmp_path / "run", uninterrupted["ema"])


def test_the_command_stops_at_sigterm_and_exits_0(toy: Toy, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "transduce", "train", "--recipe", f"{toy.folder / 'recipe.py'}:reverse"]
    command += ["--train", *map(str, toy.train), "--valid", *map(str, toy.valid), "--out", str(tmp_path / "run")]
    command += ["--set", "train.max_steps=100000", "--set", "train.log_every_steps=1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until = time.monotonic() + 60
        while not read_log(tmp_path / "run") and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    assert out == b""
    assert b"continue with the same command and --resume" in err
    assert steps(tmp_path / "run")[-1] == read_log(tmp_path / "run")[-1]["step"]


def test_a_second_signal_ends_the_program_at_once() -> None:
    with stopping.StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_requested
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)


def test_resuming_a_finished_run_changes_nothing(uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path) -> None:
    """But the report, which says when it was written."""
    run = tmp_path / "run"
    shutil.copytree(uninterrupted["average"], run)
    (run / "model" / "README.md").write_text("my own card", encoding="utf-8")
    before = everything(run)
    train(CONFIG, out=run, resume=True, **texts)
    after = everything(run)
    assert before.pop(run / "report.html") and after.pop(run / "report.html") and after == before


def test_a_finished_run_without_its_model_gets_it_again(
    uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted["average"], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    train(CONFIG, out=tmp_path / "run", resume=True, **texts)
    assert_same(tmp_path / "run", uninterrupted["average"])


def test_a_damaged_newest_checkpoint_is_passed_over_and_made_anew(
    uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(uninterrupted["average"], tmp_path / "run")
    newest = checkpoints(tmp_path / "run")[-1] / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    train(CONFIG, out=tmp_path / "run", resume=True, **texts)
    assert "the run resumes from step-00000056 instead" in capfd.readouterr().err
    assert_same(tmp_path / "run", uninterrupted["average"])


# ---- what it refuses ---------------------------------------------------------------------------------------------


def refused(config: Config, out: Path, texts: Texts, **more: Any) -> str:
    """The message of a run that must not begin, and that leaves `out` as it was."""
    before = everything(out)
    with pytest.raises(UserError) as problem:
        train(config, out=out, **texts, **more)
    assert everything(out) == before
    return str(problem.value)


def test_a_run_is_not_begun_in_the_folder_of_another(uninterrupted: dict[str, Path], texts: Texts) -> None:
    message = refused(CONFIG, uninterrupted["average"], texts)
    assert "expected a new folder, not a run" in message and "--resume" in message


def test_a_changed_configuration_is_refused_by_its_keys(uninterrupted: dict[str, Path], texts: Texts) -> None:
    changed = with_train(replace(CONFIG, data=replace(CONFIG.data, batch_tokens=160)), seed=2)
    message = refused(changed, uninterrupted["average"], texts, resume=True)
    assert "data.batch_tokens: 150 then, 160 now" in message
    assert "train.seed: 1 then, 2 now" in message
    assert "max_steps" not in message


@pytest.mark.parametrize("name", ["train", "valid"])
def test_changed_text_is_refused(name: str, uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted["average"], tmp_path / "run")
    mine = write_texts(tmp_path)
    src = mine[name][0]
    src.write_bytes(src.read_bytes().replace(b"a", b"b", 1))
    with pytest.raises(UserError, match=f"{name}.src.*: expected the text that .* started with"):
        train(CONFIG, out=tmp_path / "run", resume=True, **mine)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("data", "data exists there"),
        ("model", "model exists there"),
        ("config.json", "config.json: expected"),
        ("manifest.json", "not a model"),
    ],
)
def test_a_folder_that_is_no_run_is_left_alone(name: str, says: str, texts: Texts, tmp_path: Path) -> None:
    """A run writes config.json, and removes whatever it does not know in data/train."""
    (tmp_path / "run").mkdir()
    if "." in name:
        (tmp_path / "run" / name).write_text("{}", encoding="utf-8")
    else:
        (tmp_path / "run" / name / "train").mkdir(parents=True)
        (tmp_path / "run" / name / "train" / "mine.txt").write_text("dear", encoding="utf-8")
    assert says in refused(CONFIG, tmp_path / "run", texts, resume=True)


def test_resume_begins_where_there_is_no_checkpoint_yet(
    uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted["average"], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.rmtree(tmp_path / "run" / "model")
    train(CONFIG, out=tmp_path / "run", resume=True, **texts)
    assert_same(tmp_path / "run", uninterrupted["average"])


def test_missing_files_are_all_named_at_once(texts: Texts, tmp_path: Path) -> None:
    wrong: Texts = {
        "train": (tmp_path / "no.src", texts["train"][1]),
        "valid": (texts["valid"][0], tmp_path / "no.tgt"),
    }
    message = refused(CONFIG, tmp_path / "run", wrong)
    assert "no.src" in message and "no.tgt" in message
    assert not (tmp_path / "run").exists()


def test_all_problems_of_the_configuration_come_before_any_text(tmp_path: Path) -> None:
    nowhere = {"train": (tmp_path / "a", tmp_path / "b"), "valid": (tmp_path / "c", tmp_path / "d")}
    wrong = with_train(replace(CONFIG, model=replace(CONFIG.model, n_heads=3)), warmup_steps=0)
    with pytest.raises(UserError) as problem:
        train(wrong, out=tmp_path / "run", **nowhere)
    assert "model.n_heads=3" in str(problem.value) and "train.warmup_steps=0" in str(problem.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["", "  "], "v.src: expected a line that is not blank"),
        (["a b", "a " * 9_000], "v.src:2: expected at most"),
    ],
)
def test_validation_text_that_cannot_be_judged_is_refused_first(
    lines: list[str], message: str, texts: Texts, tmp_path: Path
) -> None:
    valid = write_lines(tmp_path / "v.src", lines), write_lines(tmp_path / "v.tgt", lines)
    with pytest.raises(UserError, match=message):
        train(CONFIG, out=tmp_path / "run", train=texts["train"], valid=valid)
    assert not (tmp_path / "run").exists()


def test_pairs_with_an_empty_side_are_left_out_and_counted(
    texts: Texts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    src = write_lines(tmp_path / "t.src", [*toy_lines(1, 50), "", "a", "a " * 50])
    tgt = write_lines(tmp_path / "t.tgt", [*toy_lines(1, 50), "a", "", "a"])
    config = with_train(CONFIG, max_steps=1, warmup_steps=1)
    train(config, train=(src, tgt), valid=texts["valid"], out=tmp_path / "run")
    assert "3 of 53 pairs left out" in capfd.readouterr().err


# ---- which weights -----------------------------------------------------------------------------------------------


def mean_of(paths: list[Path]) -> dict[str, torch.Tensor]:
    each = [load_checkpoint(path).weights for path in paths]
    return {name: (sum(w[name].double() for w in each) / len(each)).float() for name in each[0]}  # type: ignore


def test_average_is_the_mean_of_the_newest_checkpoints(uninterrupted: dict[str, Path]) -> None:
    folder = uninterrupted["average"]
    used = [path for path in checkpoints(folder) if checkpoint.step_of(path) in (48, 56, 60)]
    found = weights(load_model(folder / "model").model)
    for name, expected in mean_of(used).items():
        torch.testing.assert_close(found[name], expected)
    assert "step-00000048, step-00000056, step-00000060" in (folder / "model" / "README.md").read_text("utf-8")


def test_last_ema_and_best(uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path) -> None:
    train(with_train(CONFIG, use="last"), out=tmp_path / "run", **texts)
    last = load_checkpoint(checkpoints(tmp_path / "run")[-1])
    ema = load_checkpoint(checkpoints(uninterrupted["ema"])[-1])
    best_step = load_checkpoint(checkpoints(uninterrupted["best"])[-1]).state["best_step"]
    best = load_checkpoint(checkpoint.checkpoint_path(uninterrupted["best"], best_step))
    assert ema.ema is not None
    expected = {tmp_path / "run": last.weights, uninterrupted["ema"]: ema.ema, uninterrupted["best"]: best.weights}
    for folder, values in expected.items():
        assert run.holds(folder / "model", values)
        assert sum(run.holds(folder / "model", other) for other in expected.values()) == 1 or best_step == 60


def test_a_moving_average_that_does_not_look_back_is_the_last_checkpoint(texts: Texts, tmp_path: Path) -> None:
    config = with_train(CONFIG, use="ema", ema_decay=0.0, max_steps=2)
    model = load_model(train(config, out=tmp_path / "run", **texts)).model
    last = load_checkpoint(checkpoints(tmp_path / "run")[-1])
    assert all(weights(model)[name].equal(value) for name, value in last.weights.items())


def test_ema_is_what_it_says() -> None:
    model = Transformer(ModelConfig(vocab_size=9, d_model=4, n_layers=1, n_heads=1, d_ff=4))
    ema = weights(model)
    expected = {name: value.double() for name, value in ema.items()}
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        move_average(ema, model, 0.9)
        expected = {n: 0.9 * expected[n] + 0.1 * p.detach().double() for n, p in model.named_parameters()}
    for name in ema:
        torch.testing.assert_close(ema[name].double(), expected[name], rtol=1e-5, atol=1e-6)


def judged_as(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Let evaluation find these losses, one after the other."""
    left = iter(losses)

    def scores(translator: transduce.Translator, pairs: list[tuple[str, str]]) -> dict[str, float]:
        loss = next(left, 9.0)
        return {"loss": loss, "perplexity": 1.0, "bleu": 50 - loss}

    monkeypatch.setattr(training, "validation_scores", scores)


@pytest.mark.parametrize("best_by", ["loss", "bleu"])
def test_patience_stops_early_and_the_best_checkpoint_is_spared(
    best_by: str, texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_train(
        CONFIG,
        patience=3,
        use="best",
        best_by=best_by,
        evaluate_every_steps=2,
        checkpoint_every_steps=3,
        log_every_steps=1,
    )
    config = with_train(config, keep_checkpoints=2)
    judged_as(monkeypatch, [5.0, 3.0, 4.0, 3.0, 3.5])  # the best at step 4; no better one at 6, 8, 10
    train(config, out=tmp_path / "run", **texts)
    assert steps(tmp_path / "run") == [4, 6, 9, 10]
    assert run.holds(tmp_path / "run" / "model", load_checkpoint(checkpoints(tmp_path / "run")[0]).weights)
    assert read_log(tmp_path / "run")[-1]["step"] == 10
    train(config, out=tmp_path / "run", resume=True, **texts)
    assert steps(tmp_path / "run")[-1] == 10


def test_the_newest_checkpoints_are_kept(uninterrupted: dict[str, Path]) -> None:
    """Of those every 8 steps the newest 3, the last, and the best so far at an evaluation every 15 steps."""
    state = load_checkpoint(checkpoints(uninterrupted["average"])[-1]).state
    assert steps(uninterrupted["average"]) == sorted({40, 48, 56, 60, state["best_step"]})


def test_average_run_makes_a_model_of_checkpoints(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    folder = uninterrupted["average"]
    run.average_run(folder, last=2, out=tmp_path / "model")
    assert run.holds(tmp_path / "model", weights(load_model(tmp_path / "model").model))
    found = weights(load_model(tmp_path / "model").model)
    for name, expected in mean_of(checkpoints(folder)[-2:]).items():
        torch.testing.assert_close(found[name], expected)
    for wrong, message in ((0, "expected 1 to"), (99, "expected 1 to")):
        with pytest.raises(UserError, match=message):
            run.average_run(folder, last=wrong, out=tmp_path / "other")
    with pytest.raises(UserError, match="but it exists"):
        run.average_run(folder, last=1, out=tmp_path / "model")
    with pytest.raises(UserError, match="expected a run with checkpoints"):
        run.average_run(tmp_path / "nowhere", last=1, out=tmp_path / "other")


# ---- from another model ------------------------------------------------------------------------------------------


def test_from_a_model_its_weights_tokenizer_and_architecture_are_kept(
    uninterrupted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent_folder = uninterrupted["average"] / "model"
    parent = load_model(parent_folder)
    other = {
        "train": write_pairs(tmp_path, "train", ["x y z", "x x", "y ß"] * 9),
        "valid": write_pairs(tmp_path, "valid", ["x"]),
    }
    begun_with: list[dict[str, torch.Tensor]] = []
    real = TranslationTask.loss

    def recording(model: Transformer, batch: Batch, label_smoothing: float, precision: str) -> torch.Tensor:
        begun_with.append(weights(model))
        return real(model, batch, label_smoothing, precision)

    monkeypatch.setattr(TranslationTask, "loss", staticmethod(recording))
    config = replace(CONFIG, model=replace(CONFIG.model, d_model=32, n_layers=3, dropout=0.5))
    config = with_train(config, max_steps=2, warmup_steps=1, accumulate=1)
    model = load_model(train(config, out=tmp_path / "run", start_from=parent_folder, **other))
    assert all(begun_with[0][name].equal(value) for name, value in weights(parent.model).items())
    assert model.tokenizer.sha256 == parent.tokenizer.sha256
    assert model.config.model == replace(parent.config.model, dropout=0.5)
    assert model.config.data.vocab_size == parent.config.data.vocab_size
    first = read_log(tmp_path / "run")[0]
    assert first["step"] == 2 and first["lr"] < training.learning_rate(1, d_model=16, warmup_steps=1)
    train(config, out=tmp_path / "run", start_from=parent_folder, resume=True, **other)


def test_from_a_model_that_does_not_suit_is_refused(
    uninterrupted: dict[str, Path], texts: Texts, tmp_path: Path
) -> None:
    """What the parent brings and what the recipe asks are checked together."""
    model = load_model(uninterrupted["average"] / "model")
    learned = replace(model.config.model, positions="learned", max_positions=24)
    parent = replace(model.config, model=learned)
    save_model(tmp_path / "parent", weights(Transformer(learned)), parent, model.tokenizer, "")
    config = replace(CONFIG, data=replace(CONFIG.data, max_tokens=99))
    with pytest.raises(UserError, match="model.max_positions=24: expected at least data.max_tokens=99"):
        train(config, out=tmp_path / "run", start_from=tmp_path / "parent", **texts)
    with pytest.raises(UserError, match="expected at most 23"):
        long = write_pairs(tmp_path, "long", ["a b c " * 9])
        train(CONFIG, out=tmp_path / "run", start_from=tmp_path / "parent", train=texts["train"], valid=long)


def test_a_small_vocabulary_is_told_only_by_the_call_that_learned_it(
    texts: Texts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_train(replace(CONFIG, data=replace(CONFIG.data, vocab_size=5_000)), max_steps=1)
    notice = "pieces, not 5,000: the text is too short for more"
    model = train(config, out=tmp_path / "run", **texts)
    assert notice in capsys.readouterr().err
    train(config, out=tmp_path / "run", resume=True, **texts)
    train(config, out=tmp_path / "other", start_from=model, **texts)
    assert "pieces, not" not in capsys.readouterr().err


def test_settings_that_from_would_ignore_are_refused(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    texts = ["--train", *toy.train, "--valid", *toy.valid, "--out", tmp_path / "run"]
    settings = ["--set", "model.d_model=32", "--set", "data.vocab_size=9", "--set", "model.dropout=0.3"]
    done = cli("train", "--recipe", "small", *texts, *settings, "--from", toy.model)
    assert done.code == 2
    for setting in ("model.d_model=32", "data.vocab_size=9"):
        assert f"--set {setting}: expected no value with --from {toy.model}" in done.err
    assert "dropout" not in done.err


# ---- bad numbers -------------------------------------------------------------------------------------------------


Spoiled = Callable[[Transformer], AbstractContextManager[None]]


@contextmanager
def nan_loss(model: Transformer) -> Iterator[None]:
    real = TranslationTask.loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationTask, "loss", staticmethod(lambda *given: real(*given) * float("nan")))
        yield


def one_bad_number(rng: random.Random) -> Spoiled:
    """Somewhere: in the loss, in what a layer finds for the first token, or in the gradient of a weight."""
    bad = rng.choice([float("nan"), float("inf")])  # not -inf, which ReLU makes 0

    def put(values: torch.Tensor) -> torch.Tensor:
        spoiled = values.clone()
        spoiled.view(-1)[rng.randrange(values.size(-1))] = bad
        return spoiled

    @contextmanager
    def spoiled(model: Transformer) -> Iterator[None]:
        _, *layers = (module for module in model.modules() if isinstance(module, torch.nn.Linear | torch.nn.LayerNorm))
        if rng.random() < 0.5:  # all layers but the first, `output`, which training never calls
            hook = rng.choice(layers).register_forward_hook(lambda module, given, found: put(found))
        else:
            hook = rng.choice([*model.parameters()]).register_hook(put)
        try:
            yield
        finally:
            hook.remove()

    return nan_loss if rng.random() < 0.2 else spoiled


def spoil(monkeypatch: pytest.MonkeyPatch, bad_steps: Iterable[int], spoiled: Spoiled = nan_loss) -> None:
    """Let something be bad in these steps."""
    real = Gradients.of
    bad_seeds = {dropout_seed(CONFIG.train.seed, step) for step in bad_steps}

    def of(self: Gradients, micro_batches: Sequence[Batch], *, seed: int) -> Gradient:
        with spoiled(self.model) if seed in bad_seeds else nullcontext():
            return real(self, micro_batches, seed=seed)

    monkeypatch.setattr(Gradients, "of", of)


@pytest.mark.parametrize("seed", range(3))
def test_a_bad_step_moves_nothing_whatever_is_bad(
    seed: int, texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times 36 bad steps of 60, each with one number that is not finite: weights, moments and average stay."""
    rng = random.Random(seed)
    good = {1, 6, 11, 16, 21, 26, 31, 36, 41, 46, 51, 56}  # never five bad ones in a row
    bad = set(rng.sample(sorted(set(range(1, 61)) - good), 36))
    spoil(monkeypatch, bad, lambda model: one_bad_number(rng)(model))
    config = with_train(USES["ema"], checkpoint_every_steps=1, keep_checkpoints=60, accumulate=rng.choice([1, 3]))
    train(config, out=tmp_path / "run", **texts)
    before = load_checkpoint(checkpoint.checkpoint_path(tmp_path / "run", 1))
    for step in range(2, 61):
        now = load_checkpoint(checkpoint.checkpoint_path(tmp_path / "run", step))
        for old, new in ((before.weights, now.weights), (before.optimizer, now.optimizer), (before.ema, now.ema)):
            assert old is not None and new is not None
            same = [values.equal(new[name]) for name, values in old.items()]
            assert all(same) if step in bad else not any(same), step
        before = now
    assert {line["step"] for line in read_log(tmp_path / "run") if "skipped" in line} == bad
    assert before.state["skipped"] == 36


@pytest.mark.parametrize("every", [{"log_every_steps": 1}, {"log_every_steps": 100, "evaluate_every_steps": 100}])
def test_five_bad_steps_in_a_row_end_a_run_and_nothing_bad_is_saved(
    every: dict[str, int], texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is saved in the midst of them, as good as the one before; and after resuming they are counted on."""
    out = tmp_path / "run"
    config = with_train(USES["ema"], **every)
    with monkeypatch.context() as patch:
        spoil(patch, [4, 13, 14, 15, 16, 17])
        with pytest.raises(UserError) as problem:
            train(config, out=out, **texts)
    assert "5 steps in a row were skipped, the last for loss nan, gradient norm nan, on " in str(problem.value)
    assert f"at step 17: the training diverged after its last good checkpoint, {out}/checkpoints/step-00000016" in str(
        problem.value
    )
    assert steps(out)[-2:] == [8, 16] if every["log_every_steps"] > 1 else steps(out)[-1] == 16
    for path in checkpoints(out):
        saved = load_checkpoint(path)
        for tensors in (saved.weights, saved.optimizer, saved.ema or {}):
            assert all(bool(values.isfinite().all()) for values in tensors.values())
    skips = [line["step"] for line in read_log(out) if "skipped" in line]
    assert skips == [4, 13, 14, 15, 16, 17]
    with monkeypatch.context() as patch:
        spoil(patch, [17])
        with pytest.raises(UserError, match="5 steps in a row"):
            train(config, out=out, resume=True, **texts)
    train(config, out=out, resume=True, **texts)  # the machine was at fault
    assert steps(out)[-1] == CONFIG.train.max_steps


def test_a_skipped_step_moves_nothing_and_is_logged_with_its_lines(
    texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_train(USES["ema"], checkpoint_every_steps=1, keep_checkpoints=60, max_steps=12, log_every_steps=1)
    with monkeypatch.context() as patch:
        spoil(patch, [1, 2, 9])
        train(config, out=tmp_path / "run", **texts)
    saved = {step: load_checkpoint(checkpoint.checkpoint_path(tmp_path / "run", step)) for step in range(1, 13)}
    for name in saved[8].weights:
        assert saved[9].weights[name].equal(saved[8].weights[name])
        assert not saved[10].weights[name].equal(saved[9].weights[name])
    for name, moments in saved[8].optimizer.items():
        assert saved[9].optimizer[name].equal(moments)
    for name, average in (saved[8].ema or {}).items():
        assert (saved[9].ema or {})[name].equal(average)
    assert saved[9].state["data"]["index"] == saved[8].state["data"]["index"] + 1
    assert saved[9].state["skipped"] == 3 and saved[12].state["skipped"] == 3
    lines = {line["step"]: line for line in read_log(tmp_path / "run") if "skipped" in line}
    assert lines.keys() == {1, 2, 9}
    assert lines[9]["skipped"] == "loss nan, gradient norm nan"
    assert "train.src" in lines[9]["lines"] and "lines " in lines[9]["lines"]
    reported = [line["step"] for line in read_log(tmp_path / "run") if "loss" in line]
    assert reported == [3, 4, 5, 6, 7, 8, 10, 11, 12]


def test_a_run_with_skipped_steps_resumes_bit_for_bit(
    texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam counts updates, not steps; also when memory runs out in every other one."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    spoil(monkeypatch, [2, 3, 5, 21])
    config = with_train(USES["ema"], max_steps=24)
    train(config, out=whole, **texts)
    real, calls = torch._fused_adam_, [0]

    def fused_adam(*given: Any, **more: Any) -> None:
        calls[0] += 1
        if calls[0] % 3 == 2:
            raise torch.OutOfMemoryError
        real(*given, **more)

    monkeypatch.setattr(torch, "_fused_adam_", fused_adam)
    for step in (4, 21):
        with monkeypatch.context() as patch:
            at_step(patch, step, lambda: os.kill(os.getpid(), signal.SIGTERM))
            train(config, out=resumed, resume=True, **texts)
    train(config, out=resumed, resume=True, **texts)
    assert_same(resumed, whole)


def test_weights_gone_bad_are_not_saved(texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a fault of the memory, after an update: the next loss shows it, and nothing is saved from then on."""
    real = state.update

    def failing(optimizer: torch.optim.Adam, count: int) -> None:
        real(optimizer, count)
        if count == 11:
            optimizer.param_groups[0]["params"][3].data.view(-1)[0] = float("inf")

    monkeypatch.setattr(state, "update", failing)
    with pytest.raises(UserError, match="the training diverged after its last good checkpoint, .*step-00000008"):
        train(CONFIG, out=tmp_path / "run", **texts)
    assert steps(tmp_path / "run") == [8]
    monkeypatch.undo()
    train(CONFIG, out=tmp_path / "run", resume=True, **texts)


# ---- the record --------------------------------------------------------------------------------------------------


def test_the_log_and_the_run_folder_hold_what_is_promised(uninterrupted: dict[str, Path]) -> None:
    folder = uninterrupted["average"]
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    reports = [line for line in lines if "loss" in line]
    evaluations = [line for line in lines if "valid_loss" in line]
    assert [line["step"] for line in reports] == [7, 14, 21, 28, 35, 42, 49, 56, 60]
    assert {"step", "epoch", "loss", "lr", "gradient_norm", "tokens_per_second", "seconds"} == reports[0].keys()
    assert [line["step"] for line in evaluations] == [15, 30, 45, 60]
    assert {"step", "valid_loss", "valid_perplexity", "valid_bleu"} == evaluations[0].keys()
    assert evaluations[-1]["valid_loss"] < evaluations[0]["valid_loss"]
    assert {path.name for path in folder.iterdir()} == {
        "checkpoints",
        "config.json",
        "data",
        "log.jsonl",
        "model",
        "report.html",
        "tokenizer.json",
    }


def test_tensorboard_events_are_written_when_asked(texts: Texts, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = with_train(CONFIG, max_steps=2, warmup_steps=1)
    train(config, out=tmp_path / "run", tensorboard=True, **texts)
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
