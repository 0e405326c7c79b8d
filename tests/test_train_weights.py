"""The weights of the model that a training leaves: the last, a mean, or the best."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.trainings import CONFIG, EARLY, Texts, checkpoint_steps, replace_scores, train, with_train

from transduce import train as training
from transduce.errors import UserError
from transduce.storage.checkpoints import (
    checkpoint_path,
    checkpoints,
    load_checkpoint,
    step_of,
)
from transduce.storage.model_folder import load_model
from transduce.storage.run_folder import average_run, final_weights, holds
from transduce.storage.run_log import reports
from transduce.training.weights import weights


def mean_of(paths: list[Path]) -> dict[str, torch.Tensor]:
    """Return the mean weights of some checkpoints, computed in fp64."""
    members = [load_checkpoint(path).weights for path in paths]
    return {name: (sum(w[name].double() for w in members) / len(members)).float() for name in members[0]}  # type: ignore


def test_average_is_the_mean_of_the_newest_checkpoints(finished_runs: dict[str, Path]) -> None:
    folder = finished_runs["average"]
    origin = "step-00000048, step-00000056, step-00000060"
    newest = [checkpoint_path(folder, step) for step in (48, 56, 60)]
    actual, origin_in_words = final_weights(CONFIG.train, folder, None)
    assert origin_in_words == f"the mean of the checkpoints {origin}"
    for name, expected in mean_of(newest).items():
        torch.testing.assert_close(actual[name], expected)
    assert origin in (folder / "model" / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("use", "losses", "step"),
    [
        ("average", [5.0, 3.0, 4.0, 3.1], 4),  # the last loss is that of the mean
        ("average", [5.0, 3.0, 4.0, 3.0], None),
        ("best", [5.0, 4.0, 3.0, 4.0], 5),  # step 5 is between two evaluations, so it cannot be the best so far
        ("best", [5.0, 4.0, 4.5, 4.0], 4),
    ],
)
def test_the_final_model_is_the_best_of_its_checkpoints(
    use: str, losses: list[float], step: int | None, run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_train(CONFIG, **{**EARLY, "patience": None, "max_steps": 5, "use": use})
    replace_scores(monkeypatch, losses)
    train(config, out=tmp_path / "run", **run_texts)
    paths = checkpoints(tmp_path / "run")
    assert [step_of(path) for path in paths] == [2, 4, 5]
    expected = load_checkpoint(checkpoint_path(tmp_path / "run", step)).weights if step else mean_of(paths)
    actual = weights(load_model(tmp_path / "run" / "model").model)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value)


def test_a_finished_run_can_take_other_weights(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path
) -> None:
    shutil.copytree(finished_runs["average"], tmp_path / "run")
    changes = {"use": "last", "evaluate_every_steps": 20, "checkpoint_every_steps": 30, "average_checkpoints": 1}
    config = replace(with_train(CONFIG, **changes), search=replace(CONFIG.search, beam_size=7))
    names = [*(f"train.{key}" for key in changes), "search.beam_size"]
    train(config, out=tmp_path / "run", resume=True, allow_change=names, **run_texts)
    assert holds(tmp_path / "run" / "model", load_checkpoint(checkpoint_path(tmp_path / "run", 60)).weights)
    assert load_model(tmp_path / "run" / "model").config.search.beam_size == 7
    average_run(tmp_path / "run", last=1, out=tmp_path / "mean")


def test_use_selects_the_last_the_average_or_the_best_weights(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path
) -> None:
    train(with_train(CONFIG, use="last"), out=tmp_path / "run", **run_texts)
    last = load_checkpoint(checkpoints(tmp_path / "run")[-1])
    ema = load_checkpoint(checkpoints(finished_runs["ema"])[-1])
    best_step = load_checkpoint(checkpoints(finished_runs["best"])[-1]).state["best_step"]
    best = load_checkpoint(checkpoint_path(finished_runs["best"], best_step))
    assert ema.ema is not None
    expected = {tmp_path / "run": last.weights, finished_runs["ema"]: ema.ema, finished_runs["best"]: best.weights}
    for folder, values in expected.items():
        assert holds(folder / "model", values)
        assert sum(holds(folder / "model", other) for other in expected.values()) == 1 or best_step == 60


def test_a_moving_average_with_decay_0_is_the_last_checkpoint(run_texts: Texts, tmp_path: Path) -> None:
    config = with_train(CONFIG, use="ema", ema_decay=0.0, max_steps=2)
    model = load_model(train(config, out=tmp_path / "run", **run_texts)).model
    last = load_checkpoint(checkpoints(tmp_path / "run")[-1])
    assert all(weights(model)[name].equal(value) for name, value in last.weights.items())


@pytest.mark.parametrize("best_by", ["loss", "bleu"])
def test_patience_stops_early_and_keeps_the_best_checkpoint(
    best_by: str,
    run_texts: Texts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
    replace_scores(monkeypatch, [5.0, 3.0, 4.0, 3.0, 3.5, 3.0])  # the best at step 4; no better one at 6, 8, 10
    train(config, out=tmp_path / "run", **run_texts)
    assert checkpoint_steps(tmp_path / "run") == [4, 6, 9, 10]
    assert holds(tmp_path / "run" / "model", load_checkpoint(checkpoints(tmp_path / "run")[0]).weights)
    assert [*reports(tmp_path / "run")][-1]["step"] == 10
    replace_scores(monkeypatch, [3.0])
    capsys.readouterr()
    train(config, out=tmp_path / "run", resume=True, **run_texts)
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"stopped early at step 10 of 60; {tmp_path / 'run' / 'model'} is up to date",
        "the last 3 evaluations were not better than the one of step 4, and train.patience is 3; the same training "
        "with --resume --set train.patience=6 --allow-change train.patience continues",
    ]
    assert checkpoint_steps(tmp_path / "run")[-1] == 10


@pytest.mark.parametrize(
    ("best_by", "mean_loss", "winner"), [("loss", 3.1, "best"), ("loss", 3.0, "mean"), ("bleu", 3.1, "best")]
)
def test_early_stopping_never_gives_a_mean_that_is_worse_than_the_best_checkpoint(
    best_by: str,
    mean_loss: float,
    winner: str,
    run_texts: Texts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The mean has the checkpoints of steps 6, 8 and 10, all after the best one."""
    config, out = with_train(CONFIG, best_by=best_by, **EARLY), tmp_path / "run"
    replace_scores(monkeypatch, [5.0, 3.0, 4.0, 4.0, 4.0, mean_loss])
    train(config, out=out, **run_texts)
    assert checkpoint_steps(out) == [4, 6, 8, 10]
    paths = checkpoints(out)
    expected = load_checkpoint(paths[0]).weights if winner == "best" else mean_of(paths[1:])
    actual = weights(load_model(out / "model").model)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value)
    messages = capsys.readouterr().err
    assert (f"step-00000004, which is better by validation {best_by} than the mean of" in messages) == (
        winner == "best"
    )
    assert "is worse" not in messages
    replace_scores(monkeypatch, [mean_loss])
    train(config, out=out, resume=True, **run_texts)
    assert "is up to date" in capsys.readouterr().err


@pytest.mark.parametrize("use", ["average", "last"])
def test_without_patience_a_model_worse_than_the_best_checkpoint_is_reported(
    use: str, run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_train(CONFIG, **{**EARLY, "patience": None, "max_steps": 4, "use": use, "checkpoint_every_steps": 4})
    for losses, is_worse in (([3.0, 4.0, 3.1], True), ([3.0, 4.0, 3.0], False)):
        replace_scores(monkeypatch, losses)
        train(config, out=tmp_path / str(is_worse), **run_texts)
        line = "the model is worse by validation loss than the best checkpoint, of step 2; the same training with "
        line += "--resume --set train.use=best --allow-change train.use takes that one"
        assert (line in capsys.readouterr().err) == is_worse


def test_a_loss_that_rises_with_the_bleu_is_no_reason_for_the_best_checkpoint(
    run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_train(
        CONFIG, **{**EARLY, "patience": None, "max_steps": 4, "use": "ema", "ema_decay": 0.5}, average_checkpoints=5
    )
    first, later = ({"loss": loss, "perplexity": 1.0, "bleu": bleu} for loss, bleu in ((3.0, 20.0), (4.0, 30.0)))
    scores = iter([first, later, later])
    monkeypatch.setattr(training, "validation_scores", lambda *_: next(scores))
    train(config, out=tmp_path / "run", **run_texts)
    assert "best checkpoint, of step 2, and better by BLEU 30.0, not 20.0\n" in capsys.readouterr().err


def test_the_newest_checkpoints_are_kept(finished_runs: dict[str, Path]) -> None:
    """These are the newest 3 at multiples of 8 steps, the last one, and the best by evaluations every 15 steps."""
    state = load_checkpoint(checkpoints(finished_runs["average"])[-1]).state
    assert checkpoint_steps(finished_runs["average"]) == sorted({40, 48, 56, 60, state["best_step"]})


def test_average_run_writes_the_mean_of_the_newest_checkpoints(finished_runs: dict[str, Path], tmp_path: Path) -> None:
    folder = finished_runs["average"]
    average_run(folder, last=2, out=tmp_path / "model")
    assert holds(tmp_path / "model", weights(load_model(tmp_path / "model").model))
    actual = weights(load_model(tmp_path / "model").model)
    for name, expected in mean_of(checkpoints(folder)[-2:]).items():
        torch.testing.assert_close(actual[name], expected)


def test_average_run_refuses_impossible_arguments(finished_runs: dict[str, Path], tmp_path: Path) -> None:
    folder = finished_runs["average"]
    for count in (0, 99):
        with pytest.raises(UserError, match=f"--last={count}: expected 1 to "):
            average_run(folder, last=count, out=tmp_path / "other")
    with pytest.raises(UserError, match="but it exists"):
        average_run(folder, last=1, out=folder / "model")
    with pytest.raises(UserError, match="expected a run with checkpoints"):
        average_run(tmp_path / "nowhere", last=1, out=tmp_path / "other")
