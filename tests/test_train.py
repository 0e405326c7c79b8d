"""Training: what it learns, which weights the model gets, and which files a run writes."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.toy_task import CommandResult, Toy, reverse_words, toy_lines, write_lines, write_pairs
from support.trainings import CONFIG, Texts, checkpoint_steps, train, with_train

import transduce
from transduce import train as training
from transduce.data.batches import Batch
from transduce.data.corpora import Corpus
from transduce.data.text import read_pairs
from transduce.errors import UserError
from transduce.model.transformer import Transformer
from transduce.storage.checkpoints import (
    checkpoint_path,
    checkpoints,
    load_checkpoint,
    regular_checkpoints,
    step_of,
)
from transduce.storage.model_folder import load_model, save_model
from transduce.storage.run_folder import average_run, final_weights, holds
from transduce.storage.run_log import read_log
from transduce.train import TranslationTask
from transduce.training.run import Run
from transduce.training.state import TrainingState
from transduce.training.weights import weights


def accuracy(model: transduce.Translator, toy: Toy) -> float:
    """Return the fraction of the unseen lines that `model` reverses exactly."""
    outputs = [translation.text for translation in model.translate(toy.unseen)]
    return sum(output == reverse_words(line) for output, line in zip(outputs, toy.unseen, strict=True)) / len(outputs)


def test_the_toy_task_is_learned_through_the_command_line(toy: Toy) -> None:
    assert len(toy.unseen) > 100
    assert accuracy(transduce.load(toy.model), toy) >= 0.98


@pytest.mark.slow
def test_the_toy_task_is_learned_in_bf16(toy: Toy, tmp_path: Path) -> None:
    model = transduce.fit(
        *toy.train,
        valid=toy.valid,
        out=tmp_path / "run",
        recipe=f"{toy.folder / 'recipe.py'}:reverse",
        settings=["train.precision=bf16"],
    )
    assert accuracy(model, toy) >= 0.98


def test_fit_trains_resumes_and_translates(run_texts: Texts, tmp_path: Path) -> None:
    src, tgt = run_texts["train"]
    for _ in range(2):  # the second call has no step to train
        model = transduce.fit(
            src,
            str(tgt),
            valid=run_texts["valid"],
            out=tmp_path / "run",
            recipe=with_train(CONFIG, warmup_steps=2),
            settings=["train.max_steps=4"],
        )
    assert isinstance(model.translate(["a b c"])[0].text, str)
    assert checkpoint_steps(tmp_path / "run") == [4]


def test_pairs_with_an_empty_side_are_skipped_and_counted(
    run_texts: Texts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    src = write_lines(tmp_path / "t.src", [*toy_lines(1, 50), "", "a", "a " * 50])
    tgt = write_lines(tmp_path / "t.tgt", [*toy_lines(1, 50), "a", "", "a"])
    config = with_train(CONFIG, max_steps=1, warmup_steps=1)
    train(config, train=(src, tgt), valid=run_texts["valid"], out=tmp_path / "run")
    assert "of 53 pairs, training leaves out 2 with an emp" in capfd.readouterr().err


def test_a_small_vocabulary_is_reported_only_when_it_is_learned(
    run_texts: Texts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_train(replace(CONFIG, data=replace(CONFIG.data, vocab_size=5_000)), max_steps=1)
    notice = "pieces, not 5,000: the text is too short for more"
    model = train(config, out=tmp_path / "run", **run_texts)
    assert notice in capsys.readouterr().err
    train(config, out=tmp_path / "run", resume=True, **run_texts)
    train(config, out=tmp_path / "other", start_from=model, **run_texts)
    assert "pieces, not" not in capsys.readouterr().err


# ---- the weights of the model --------------------------------------------------------------------------------------


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


def replace_scores(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Let successive evaluations return these losses, then 9.0."""
    remaining = iter(losses)

    def scores(translator: transduce.Translator, pairs: list[tuple[str, str]]) -> dict[str, float]:
        loss = next(remaining, 9.0)
        return {"loss": loss, "perplexity": 1.0, "bleu": 50 - loss}

    monkeypatch.setattr(training, "validation_scores", scores)


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
    assert read_log(tmp_path / "run")[-1]["step"] == 10
    replace_scores(monkeypatch, [3.0])
    capsys.readouterr()
    train(config, out=tmp_path / "run", resume=True, **run_texts)
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"stopped early at step 10 of 60; {tmp_path / 'run' / 'model'} is up to date",
        "the last 3 evaluations were not better than the one of step 4, and train.patience is 3; the same command with "
        "--resume --set train.patience=6 --allow-change train.patience goes on",
    ]
    assert checkpoint_steps(tmp_path / "run")[-1] == 10


EARLY = {"patience": 3, "evaluate_every_steps": 2, "checkpoint_every_steps": 2, "keep_checkpoints": 3}


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
        line = "the model is worse by validation loss than the best checkpoint, of step 2; the same command with "
        line += "--resume --set train.use=best --allow-change train.use takes that one"
        assert (line in capsys.readouterr().err) == is_worse


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


# ---- from another model --------------------------------------------------------------------------------------------


def test_start_from_keeps_weights_tokenizer_and_architecture(
    finished_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent_folder = finished_runs["average"] / "model"
    parent = load_model(parent_folder)
    other = {
        "train": write_pairs(tmp_path, "train", ["x y z", "x x", "y ß"] * 9),
        "valid": write_pairs(tmp_path, "valid", ["x"]),
    }
    weights_per_step: list[dict[str, torch.Tensor]] = []
    original = TranslationTask.loss

    def recording_loss(model: Transformer, batch: Batch, *settings: Any) -> torch.Tensor:
        weights_per_step.append(weights(model))
        return original(model, batch, *settings)

    monkeypatch.setattr(TranslationTask, "loss", staticmethod(recording_loss))
    config = replace(CONFIG, model=replace(CONFIG.model, d_model=32, n_layers=3, dropout=0.5))
    config = with_train(config, max_steps=2, warmup_steps=1, accumulate=1)
    model = load_model(train(config, out=tmp_path / "run", start_from=parent_folder, **other))
    assert all(weights_per_step[0][name].equal(value) for name, value in weights(parent.model).items())
    assert model.tokenizer.sha256 == parent.tokenizer.sha256
    assert model.config.model == replace(parent.config.model, dropout=0.5)
    assert model.config.data.vocab_size == parent.config.data.vocab_size
    start, first = read_log(tmp_path / "run")[:2]
    assert start["step"] == 0 and "valid_bleu" in start and first["step"] == 2
    assert first["lr"] < training.learning_rate(1, d_model=16, warmup_steps=1)
    train(config, out=tmp_path / "run", start_from=parent_folder, resume=True, **other)


TUNED = with_train(CONFIG, **EARLY, max_steps=8, use="best")


def test_the_model_to_start_from_can_be_the_best(
    finished_runs: dict[str, Path],
    run_texts: Texts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Step 0 is a checkpoint, but not a member of a mean. The text in one table has the same pairs as in two files."""
    parent = finished_runs["average"] / "model"
    table = tmp_path / "valid.tsv"
    table.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in read_pairs(*run_texts["valid"])), encoding="utf-8")
    request = {"start_from": parent, "train": run_texts["train"], "valid": [table], "old_valid": run_texts["valid"]}
    replace_scores(monkeypatch, [3.0, 2.0, 4.0, 2.0, 5.0, 2.5, 6.0, 2.5, 3.0])  # in turn of the new and the old text
    config = with_train(TUNED, average_checkpoints=2)
    model = load_model(train(config, out=tmp_path / "run", **request)).model
    assert all(weights(model)[name].equal(value) for name, value in weights(load_model(parent).model).items())
    lines = capsys.readouterr().err
    assert "step 0: validation loss 3.000, perplexity 1.00, BLEU 47.0; old text: loss 2.000" in lines
    assert lines.count("(best so far)") == 1
    assert lines.count("the model is worse on the old text than at step 0: loss 2.000") == 2
    assert [line["step"] for line in read_log(tmp_path / "run") if "valid_loss" in line] == [0, 2, 4, 6]
    assert regular_checkpoints(tmp_path / "run", 2) == checkpoints(tmp_path / "run")[1:]
    replace_scores(monkeypatch, [3.0])
    train(config, out=tmp_path / "run", resume=True, **request)


def test_the_evaluation_of_step_0_changes_no_weight(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed between this evaluation and its checkpoint starts again, and logs it once."""
    request = {"start_from": finished_runs["average"] / "model", **run_texts}
    train(TUNED, out=tmp_path / "run", **request)
    original = training.evaluate_step

    def without_start(run: Run, state: TrainingState, *others: Any) -> None:
        if state.counters.step:
            original(run, state, *others)

    (tmp_path / "other").mkdir()
    shutil.copyfile(tmp_path / "run" / "config.json", tmp_path / "other" / "config.json")
    (tmp_path / "other" / "log.jsonl").write_text('{"step":0,"valid_loss":1.0}\n', encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(training, "evaluate_step", without_start)
        train(TUNED, out=tmp_path / "other", **request)
    assert read_log(tmp_path / "other")[0]["step"] > 0
    last = [load_checkpoint(checkpoint_path(tmp_path / name, 8)).weights for name in ("run", "other")]
    assert all(last[0][name].equal(value) for name, value in last[1].items())


def test_pairs_that_are_left_out_and_a_foreign_script_are_reported(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_train(replace(CONFIG, data=replace(CONFIG.data, max_tokens=9)), max_steps=1, patience=None)
    parent = finished_runs["average"] / "model"
    text = tmp_path / "train.tsv"
    text.write_text("a\tда\na b\tнет\n\tx\na\tпривет мир\n", encoding="utf-8")
    train(config, out=tmp_path / "run", start_from=parent, train=[Corpus(text)], valid=run_texts["valid"])
    lines = capsys.readouterr().err.splitlines()
    causes = "1 with an empty side and 1 of more than data.max_tokens=9 tokens on one side"
    assert lines[0] == f"of 4 pairs, training leaves out {causes}"
    assert lines[2] == (
        "target text: expected characters that the tokenizer has pieces for, but 82% of the tokens are bytes of "
        "others; train without --from"
    )


def test_fit_starts_from_a_model(finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path) -> None:
    config = with_train(CONFIG, max_steps=1, patience=None)
    parent = finished_runs["average"] / "model"
    transduce.fit(
        *run_texts["train"],
        valid=run_texts["valid"],
        out=tmp_path / "run",
        recipe=config,
        start_from=parent,
        old_valid=run_texts["valid"],
    )
    start = read_log(tmp_path / "run")[0]
    assert start["step"] == 0 and start["valid_bleu"] == start["valid_old_bleu"]


def test_an_old_text_needs_a_model_to_start_from(run_texts: Texts, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--old-valid=.*: must not be set without --from; add --from MODEL"):
        train(CONFIG, out=tmp_path / "run", old_valid=run_texts["valid"], **run_texts)


def test_start_from_checks_parent_and_recipe_together(
    finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path
) -> None:
    """The parent sets the positions, the recipe the length of the pairs."""
    model = load_model(finished_runs["average"] / "model")
    model_config = replace(model.config.model, positions="learned", max_positions=24)
    parent = replace(model.config, model=model_config)
    save_model(tmp_path / "parent", weights(Transformer(model_config)), parent, model.tokenizer, "")
    config = replace(CONFIG, data=replace(CONFIG.data, max_tokens=99))
    with pytest.raises(UserError, match="model.max_positions=24: expected at least data.max_tokens=99"):
        train(config, out=tmp_path / "run", start_from=tmp_path / "parent", **run_texts)
    with pytest.raises(UserError, match="expected at most 23"):
        long = write_pairs(tmp_path, "long", ["a b c " * 9])
        train(CONFIG, out=tmp_path / "run", start_from=tmp_path / "parent", train=run_texts["train"], valid=long)


def test_start_from_refuses_settings_without_effect(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    files = ["--train", *toy.train, "--valid", *toy.valid, "--out", tmp_path / "run"]
    settings = ["--set", "model.d_model=32", "--set", "data.vocab_size=9", "--set", "model.dropout=0.3"]
    result = cli("train", "--recipe", "small", *files, *settings, "--from", toy.model)
    assert result.code == 2
    for setting in ("model.d_model=32", "data.vocab_size=9"):
        assert f"--set {setting}: must not be set with --from {toy.model}" in result.err
    assert "dropout" not in result.err


# ---- the folder of a run -------------------------------------------------------------------------------------------


def test_the_log_has_its_keys_and_the_run_folder_its_files(finished_runs: dict[str, Path]) -> None:
    folder = finished_runs["average"]
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    reports = [line for line in lines if "loss" in line]
    evaluations = [line for line in lines if "valid_loss" in line]
    assert [line["step"] for line in reports] == [7, 14, 21, 28, 35, 42, 49, 56, 60]
    assert {
        "step",
        "epoch",
        "loss",
        "lr",
        "gradient_norm",
        "tokens_per_second",
        "seconds",
        "processor_share",
    } == reports[0].keys()
    assert [line["step"] for line in evaluations] == [15, 30, 45, 60]
    assert {"step", "valid_loss", "valid_perplexity", "valid_bleu", "valid_chrf"} == evaluations[0].keys()
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


def test_tensorboard_writes_events(run_texts: Texts, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = with_train(CONFIG, max_steps=2, warmup_steps=1)
    train(config, out=tmp_path / "run", tensorboard=True, **run_texts)
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
