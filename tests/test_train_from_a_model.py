"""Trainings from another model: what they keep, what they evaluate, and what they refuse."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.toy_task import CommandResult, Toy, write_pairs
from support.trainings import CONFIG, EARLY, Texts, replace_scores, train, with_train

import transduce
from transduce import train as training
from transduce.config.overrides import inherit
from transduce.config.recipes.schedule import highest_rate
from transduce.data.batches import Batch
from transduce.data.corpora import Corpus
from transduce.data.text import read_pairs
from transduce.errors import UserError
from transduce.model.transformer import Transformer
from transduce.storage import run_choices
from transduce.storage.checkpoints import (
    checkpoint_path,
    checkpoints,
    load_checkpoint,
    regular_checkpoints,
)
from transduce.storage.model_folder import load_model, save_model
from transduce.storage.run_log import reports
from transduce.storage.run_request import TrainRequest
from transduce.train import TranslationTask
from transduce.training.run import Run
from transduce.training.state import TrainingState
from transduce.training.weights import weights


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
    start, first = [*reports(tmp_path / "run")][:2]
    assert start["step"] == 0 and "valid_bleu" in start and first["step"] == 2
    assert first["lr"] < training.learning_rate(1, d_model=16, warmup_steps=1)
    train(config, out=tmp_path / "run", start_from=parent_folder, resume=True, **other)


@pytest.mark.slow
def test_start_from_takes_layers_of_the_model_for_other_depths(toy: Toy, tmp_path: Path) -> None:
    """It then learns as in a first training. Another kind of model has other layers."""
    parent = load_model(toy.model)
    assert isinstance(parent.model, Transformer)
    old = parent.model.config.depths
    config = with_train(CONFIG, max_steps=1)
    settings = [f"model.n_encoder_layers={old[0] + 1}", "model.n_decoder_layers=1", "train.lr_factor=1e-30"]
    request = TrainRequest(config, toy.train, toy.valid, tmp_path / "run", settings, start_from=toy.model)
    assert request.problems() == []
    student = load_model(training.train(request))
    assert student.config.model.depths == (old[0] + 1, 1)
    new, old_weights = weights(student.model), weights(parent.model)
    for layer, origin in (("encoder.0", "encoder.0"), (f"encoder.{old[0]}", f"encoder.{old[0] - 1}")):
        assert new[f"{layer}.feed_forward.w_1.weight"].equal(old_weights[f"{origin}.feed_forward.w_1.weight"])
    assert new["decoder.0.feed_forward.w_1.bias"].equal(old_weights[f"decoder.{old[1] - 1}.feed_forward.w_1.bias"])
    settings = [*settings[:2], "model.dropout=0.25"]
    choice = run_choices.choose_for(request.corpora, None, settings, 4, parent.config)
    assert highest_rate(choice.config) > 0.99 * highest_rate(parent.config)
    assert f"{old[0] + 1} + 1 layers" in choice.lines[0] and "dropout 0.25" in choice.lines[0]
    assert "as in a first training" in choice.lines[1]
    settings += ["train.optimizer=adam", "train.lr_factor=1.25", "train.max_steps=40"]
    choice = run_choices.choose_for(request.corpora, None, settings, 4, parent.config)
    rate = highest_rate(choice.config)
    assert choice.lines[1] == f"highest learning rate {rate:.1e}, by your settings" and "40 steps" in choice.lines[-1]
    rival = replace(CONFIG, model=replace(CONFIG.model, kind="recurrent"))
    with pytest.raises(UserError, match="n_layers=2: must not be set with --from and a model of model.kind="):
        inherit(CONFIG, rival, ["model.n_layers=2"])


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
    assert [line["step"] for line in reports(tmp_path / "run") if "valid_loss" in line] == [0, 2, 4, 6]
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
    assert [*reports(tmp_path / "other")][0]["step"] > 0
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
    start = [*reports(tmp_path / "run")][0]
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
    result = cli("train", "--recipe", "mixture", *files, *settings, "--from", toy.model)
    assert result.code == 2
    for setting in ("model.d_model=32", "data.vocab_size=9"):
        assert f"--set {setting}: must not be set with --from {toy.model}" in result.err
    assert "dropout" not in result.err
