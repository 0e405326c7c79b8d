"""A training that chooses for its user: validation text, configuration, number of steps, and more steps later."""

import os
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.toy_task import toy_lines, write_pairs
from support.trainings import (
    CONFIG,
    act_at_step,
    assert_same,
    checkpoint_steps,
    everything,
    replace_scores,
    train,
    with_train,
)

import transduce
from transduce.config.recipes import RECIPES, auto
from transduce.config.recipes.schedule import highest_rate
from transduce.config.schema import Config
from transduce.data.corpora import Corpus, read_pairs
from transduce.errors import UserError
from transduce.evaluation.run_report import refresh_report
from transduce.storage import run_choices, run_folder, run_request
from transduce.storage.checkpoints import checkpoints, load_state
from transduce.storage.model_folder import load_model, save_model
from transduce.storage.run_log import reports
from transduce.training import trial
from transduce.training.weights import weights

TINY = auto.Size(d_model=16, n_layers=1, n_heads=2, d_ff=32, batch_tokens=256)
SHORT = with_train(CONFIG, max_steps=32, decay_steps=16, checkpoint_every_steps=4, evaluate_every_steps=8)


@pytest.fixture(autouse=True)
def tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SIZES", ((float("inf"), TINY),))
    monkeypatch.setattr(auto, "PIECES", ((float("inf"), 290),))
    monkeypatch.setattr(auto, "SECONDS_TO_START", 0.0)
    monkeypatch.setattr(trial, "SECONDS", 0.01)


@pytest.fixture
def text(tmp_path: Path) -> tuple[Path, Path]:
    return write_pairs(tmp_path, "train", list(dict.fromkeys(toy_lines(1, 300)))[:200])


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each trial end with the same speed: on a busy machine a few seconds can be too short for any training."""
    original = run_choices.run_trial

    def run_trial(*arguments: Any) -> auto.Trial:
        measured = original(*arguments)
        assert measured.step > 0 and measured.evaluation > 0
        return replace(measured, step=0.08, evaluation=0.01)

    monkeypatch.setattr(run_choices, "run_trial", run_trial)


@pytest.mark.usefixtures("speed")
def test_two_files_and_minutes_are_enough(
    text: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    model = transduce.fit(*text, out=run, minutes=0.05, settings=["train.seed=3"])
    assert model.translate(["a b"])
    lines = capsys.readouterr().err
    assert "4 pairs of the training text are held out" in lines and "about 0.0 minutes" in lines
    valid = list(read_pairs(Corpus(run / "held-out" / "valid.src", run / "held-out" / "valid.tgt")))
    assert len(valid) == 4 and {*valid} <= {*read_pairs(Corpus(*text))}
    card = (run / "model" / "README.md").read_text()
    assert "| recipe | auto --set train.seed=3 |" in card
    assert "| training text | train.src and train.tgt |" in card
    assert "4 pairs of the training text, which were held out" in card
    config = run_folder.run_config(run)
    assert config.train.seed == 3 and config.model.d_model == 16
    assert {"valid_bleu", "valid_chrf"} <= {name for line in reports(run) for name in line}
    assert refresh_report(run) == [] and "held out" in (run / "report.html").read_text()


@pytest.mark.usefixtures("speed")
def test_a_resumed_run_chooses_nothing_again_and_ends_the_same(
    text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices: list[auto.ExplainedConfig] = []
    choose = run_choices.choose_for

    def first_choice(*arguments: Any) -> auto.ExplainedConfig:
        choices.append(choices[0] if choices else choose(*arguments))
        return choices[-1]

    monkeypatch.setattr(run_choices, "choose_for", first_choice)
    request: dict[str, Any] = {"train": text, "valid": [], "minutes": 0.05}
    train("auto", out=tmp_path / "whole", **request)
    with monkeypatch.context() as patch:
        act_at_step(patch, 10, lambda: os.kill(os.getpid(), signal.SIGTERM))
        train("auto", out=tmp_path / "run", **request)
    monkeypatch.setattr(run_choices, "choose_for", None)
    monkeypatch.setattr(trial, "SECONDS", 5.0)
    train("auto", out=tmp_path / "run", resume=True, **request)
    assert_same(tmp_path / "run", tmp_path / "whole")


def other_text(folder: Path) -> tuple[Path, Path]:
    """Write a text whose targets, unlike those of the other texts, are the sources with a word before them."""
    lines = [" ".join(line) for line in product("abcd", repeat=4)]
    src, tgt = write_pairs(folder, "new", lines)
    tgt.write_text("".join(f"c c {line}\n" for line in lines), encoding="utf-8")
    return src, tgt


@pytest.mark.parametrize("recipe", ["auto", CONFIG])
def test_a_model_learns_other_text_in_the_given_time(
    recipe: Any,
    text: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A resumed run needs neither the model nor a choice, and takes more time."""
    monkeypatch.setattr(run_choices, "run_trial", lambda *arguments: auto.Trial(0.045, 0.01, 1_000))
    valid = write_pairs(tmp_path, "valid", ["a b c", "d a b"])
    small = replace(CONFIG, model=replace(CONFIG.model, d_model=32, n_heads=4))
    old = train(with_train(small, max_steps=8), train=text, valid=list(valid), out=tmp_path / "old")
    new = other_text(tmp_path)
    run = tmp_path / "run"
    tuned = transduce.fit(*new, out=run, recipe=recipe, minutes=0.03, start_from=old, old_valid=valid)
    assert tuned.translate(["a b"])
    evaluations = [line for line in reports(run) if "valid_loss" in line]
    assert evaluations[0]["step"] == 0 and "valid_old_loss" in evaluations[0]
    assert evaluations[-1]["valid_loss"] < evaluations[0]["valid_loss"] - 0.1
    parent, config = load_model(old), run_folder.run_config(run)
    assert config.model.d_model == 32 and load_model(run / "model").tokenizer.sha256 == parent.tokenizer.sha256
    if recipe == "auto":
        assert config.model == parent.config.model and config.train.use == "best"
        assert "the model keeps 1 + 1 layers, d_model 32" in capsys.readouterr().err
    steps = config.train.max_steps
    train("auto", train=new, valid=[], out=run, resume=True, more_minutes=minutes_for(run, 0.8 * steps))
    assert checkpoint_steps(run)[-1] > steps


def test_auto_starts_only_from_models_that_translate(text: tuple[Path, Path], tmp_path: Path) -> None:
    valid = write_pairs(tmp_path, "valid", ["a"])
    old = train(with_train(CONFIG, max_steps=1), train=text, valid=list(valid), out=tmp_path / "old")
    parser = load_model(old)
    save_model(old, weights(parser.model), RECIPES["craft-parse"](), parser.tokenizer, "")
    with pytest.raises(UserError, match="--from=.*: expected a model of train.task='translation', not 'parsing'; give"):
        train("auto", train=text, valid=[], out=tmp_path / "run", start_from=old)
    with pytest.raises(UserError, match="step-00000001: expected a model folder, not a checkpoint; use transduce aver"):
        train("auto", train=text, valid=[], out=tmp_path / "run", start_from=checkpoints(tmp_path / "old")[-1])
    assert not (tmp_path / "run").exists()


def test_the_best_step_of_a_longer_run_has_a_checkpoint(
    text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 8 was the best before the fall, but later ones were better, and its checkpoint went."""
    request: dict[str, Any] = {"train": text, "valid": list(text), "out": tmp_path / "run"}
    replace_scores(monkeypatch, [2.0, 3.0, 1.0, 1.5])
    train(with_train(SHORT, use="best", keep_checkpoints=1), **request)
    assert 8 not in checkpoint_steps(tmp_path / "run")
    replace_scores(monkeypatch, [5.0, 4.0, 4.5, 6.0, 7.0, 8.0])
    train("auto", **request, resume=True, more_minutes=minutes_for(tmp_path / "run", 40.5))
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "the best checkpoint by validation loss, step-00000016" in card


@pytest.mark.parametrize(("recipe", "minutes"), [("auto", None), (CONFIG, 1.0)])
def test_several_ranks_are_refused_because_the_trial_has_one(
    recipe: Any, minutes: float | None, text: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_request, "world_size", lambda: 2)
    request = run_request.TrainRequest(recipe, text, list(text), tmp_path / "run", minutes=minutes)
    (line,) = request.problems()
    assert "expected one rank, for the trial; give a recipe without --minutes" in line


@pytest.mark.usefixtures("speed")
def test_a_recipe_ends_after_the_minutes(text: tuple[Path, Path], tmp_path: Path) -> None:
    train(CONFIG, train=text, valid=list(text), out=tmp_path / "run", minutes=0.05)
    config = run_folder.run_config(tmp_path / "run")
    steps = config.train.max_steps
    assert steps != CONFIG.train.max_steps and config.train.decay_steps == steps // 2
    assert replace(config.model, vocab_size=None) == CONFIG.model
    assert load_state(checkpoints(tmp_path / "run")[-1])["step"] == steps


@pytest.mark.usefixtures("speed")
def test_settings_of_the_rate_change_a_recipe_before_it_is_shortened(text: tuple[Path, Path], tmp_path: Path) -> None:
    def choice(*settings: str) -> Config:
        request = run_request.TrainRequest(CONFIG, text, list(text), tmp_path / "run", settings, minutes=0.05)
        request.check()
        return run_choices.complete(request, lambda lines: None).config

    config = choice()
    rate = highest_rate(config)
    assert config.train.warmup_steps < CONFIG.train.warmup_steps and config.train.use == "ema"
    assert highest_rate(choice("train.lr_factor=0.5")) == pytest.approx(rate / 2, rel=1e-3)
    assert highest_rate(choice("train.warmup_steps=80")) == pytest.approx(rate / 2, rel=1e-3)
    assert choice("train.warmup_steps=2").train.warmup_steps == 2
    assert choice("train.log_every_steps=3", "train.patience=2").train == replace(
        config.train, log_every_steps=3, patience=2
    )
    assert choice("train.use=last").train == replace(config.train, use="last", ema_decay=None)
    mean = ("train.average_checkpoints=2", "train.use=average")
    assert choice(*mean).train == replace(config.train, average_checkpoints=2, use="average", ema_decay=None)
    with pytest.raises(UserError, match="average_checkpoints: must not be set with --minutes.*; add --set train.use="):
        choice("train.average_checkpoints=2")


@pytest.mark.usefixtures("speed")
def test_auto_makes_a_schedule_for_the_steps_that_the_user_sets(text: tuple[Path, Path], tmp_path: Path) -> None:
    train("auto", train=text, valid=[], out=tmp_path / "run", settings=["train.max_steps=43"])
    config = run_folder.run_config(tmp_path / "run")
    assert checkpoint_steps(tmp_path / "run")[-1] == 43 and 16 <= config.train.decay_steps <= 22
    longer_fall = run_request.TrainRequest("auto", text, [], tmp_path / "other", ["train.decay_steps=100000"])
    assert longer_fall.problems() == []


@pytest.mark.parametrize("recipe", ["auto", CONFIG])
@pytest.mark.usefixtures("speed")
def test_a_setting_that_does_not_fit_the_choice_is_refused_before_the_tokenizer_learns(
    recipe: Any, text: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = ["train.decay_steps=50"]
    with pytest.raises(UserError, match=r"train.decay_steps=50: expected at most train.max_steps=\d+; set fewer"):
        train(recipe, train=text, valid=list(text), out=tmp_path / "run", minutes=0.05, settings=settings)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def finished(text: tuple[Path, Path], tmp_path: Path) -> Path:
    train(SHORT, train=text, valid=list(text), out=tmp_path / "run")
    return tmp_path / "run"


def minutes_for(run: Path, steps: float) -> float:
    """Return the time that so many steps of a run took."""
    state = load_state(checkpoints(run)[-1])
    return steps * state["seconds"] / state["step"] / 60


def test_a_finished_run_continues_from_before_the_fall(finished: Path, text: tuple[Path, Path], tmp_path: Path) -> None:
    """It ends as a run that had more steps from its beginning, with the same fall."""
    assert 16 in checkpoint_steps(finished)
    train(
        "auto",
        train=text,
        valid=list(text),
        out=finished,
        resume=True,
        more_minutes=minutes_for(finished, 40.5),
    )
    longer = with_train(SHORT, max_steps=56, decay_steps=28)
    train(longer, train=text, valid=list(text), out=tmp_path / "longer")
    assert_same(finished, tmp_path / "longer")


def test_more_time_counts_more_than_the_steps_of_the_first_command(
    finished: Path, text: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """This also holds when the longer training is interrupted, and the command repeated."""
    request: dict[str, Any] = {"train": text, "valid": list(text), "out": finished, "resume": True}
    request |= {"minutes": 1.0, "settings": ["train.max_steps=32", "train.decay_steps=16"]}
    act_at_step(monkeypatch, 40, lambda: os.kill(os.getpid(), signal.SIGTERM))
    train(CONFIG, **request, more_minutes=minutes_for(finished, 40.5))
    assert "no effect of --set train.max_steps=32 --set train.decay_steps=16" in capsys.readouterr().err
    monkeypatch.undo()
    request["settings"] = ["train.max_steps=20"]  # fewer than the steps of the fall
    train(CONFIG, **request, more_minutes=1.0)
    assert "the run is not finished, and keeps its 56 steps" in capsys.readouterr().err
    config = run_folder.run_config(finished)
    assert (checkpoint_steps(finished)[-1], config.train.decay_steps) == (56, 28)


def test_an_interrupted_longer_training_keeps_the_finished_model(
    finished: Path, text: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = (finished / "model" / "model.safetensors").read_bytes()
    request: dict[str, Any] = {"train": text, "valid": list(text), "out": finished, "resume": True}
    act_at_step(monkeypatch, 20, lambda: os.kill(os.getpid(), signal.SIGTERM))
    train("auto", **request, more_minutes=minutes_for(finished, 40.5))
    assert "is still the model of the shorter training" in capsys.readouterr().err
    assert (finished / "model" / "model.safetensors").read_bytes() == weights
    monkeypatch.undo()
    train("auto", **request)
    assert checkpoint_steps(finished)[-1] == 56
    assert (finished / "model" / "model.safetensors").read_bytes() != weights


def test_a_refused_request_for_more_time_removes_nothing(finished: Path, text: tuple[Path, Path]) -> None:
    """The same request without the mistake then has its time."""
    request: dict[str, Any] = {"train": text, "valid": list(text), "out": finished, "resume": True}
    request["more_minutes"] = minutes_for(finished, 40.5)
    names = ["config.json", "log.jsonl", "checkpoints", "model"]
    before = [everything(finished / name) for name in names]
    with pytest.raises(UserError, match=r"expected the configuration that the run started with:\n  model.dropout"):
        train("auto", **request, settings=["model.dropout=0.3"])
    original = text[1].read_text(encoding="utf-8")
    text[1].write_text(original.replace("a", "b"), encoding="utf-8")
    with pytest.raises(UserError, match="expected the text and the weight that .* started with"):
        train("auto", **request)
    assert [everything(finished / name) for name in names] == before
    text[1].write_text(original, encoding="utf-8")
    train("auto", **request)
    assert checkpoint_steps(finished)[-1] == 56


@pytest.mark.parametrize("name", ["state.json", "model.safetensors"])
def test_a_damaged_last_checkpoint_does_not_hinder_more_time(
    name: str, finished: Path, text: tuple[Path, Path]
) -> None:
    """The run goes back to an earlier one."""
    minutes = minutes_for(finished, 40.5)
    (checkpoints(finished)[-1] / name).write_bytes(b"")
    train("auto", train=text, valid=list(text), out=finished, resume=True, more_minutes=minutes)
    assert checkpoint_steps(finished)[-1] > 32


def test_no_later_checkpoint_goes_if_the_one_before_the_fall_is_damaged(
    finished: Path, text: tuple[Path, Path]
) -> None:
    steps = checkpoint_steps(finished)
    for path in checkpoints(finished)[: steps.index(16) + 1]:
        (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="expected an undamaged checkpoint up to step 16; start a new run"):
        train("auto", train=text, valid=list(text), out=finished, resume=True, more_minutes=minutes_for(finished, 40.5))
    assert checkpoint_steps(finished) == steps


def test_less_time_than_the_fall_took_is_refused(finished: Path, text: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match=r"expected at least \d+, since the run goes back to step 16"):
        train("auto", train=text, valid=list(text), out=finished, resume=True, more_minutes=minutes_for(finished, 8.5))
    assert checkpoint_steps(finished)[-1] == 32


def test_a_run_without_a_fall_names_the_way_to_more_steps(text: tuple[Path, Path], tmp_path: Path) -> None:
    request: dict[str, Any] = {"train": text, "valid": list(text), "out": tmp_path / "run"}
    train(with_train(CONFIG, max_steps=4), **request)
    with pytest.raises(UserError, match=r"--set train.max_steps=N --allow-change train.max_steps"):
        train("auto", **request, resume=True, more_minutes=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"minutes": 0}, "--minutes=0: expected a number over 0"),
        ({"minutes": 1, "settings": ["train.max_steps=5"]}, "train.max_steps=5: must not be set with --minutes"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(
    arguments: dict[str, Any], message: str, text: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        train("auto", train=text, valid=[], out=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()
