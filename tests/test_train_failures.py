"""Refused trainings, and trainings with numbers that are not finite."""

import itertools
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.toy_task import write_lines
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
    write_texts,
)

from transduce.config.schema import Config
from transduce.data.batches import Batch
from transduce.errors import UserError
from transduce.model.transformer import Transformer
from transduce.storage.checkpoints import checkpoint_path, checkpoints, load_checkpoint
from transduce.storage.run_log import reports
from transduce.train import TranslationTask
from transduce.training import state
from transduce.training.gradients import Gradient, Gradients, dropout_seed

# ---- refusals ------------------------------------------------------------------------------------------------------


def refusal(config: Config, out: Path, run_texts: Texts, **more: Any) -> str:
    """Return the message of a training that is refused, and check that it changes no file in `out`."""
    before = everything(out)
    with pytest.raises(UserError) as problem:
        train(config, out=out, **run_texts, **more)
    assert everything(out) == before
    return str(problem.value)


def test_the_folder_of_a_run_is_refused_without_resume(finished_runs: dict[str, Path], run_texts: Texts) -> None:
    message = refusal(CONFIG, finished_runs["average"], run_texts)
    assert "expected a new folder, not a run" in message and "--resume" in message


def test_a_changed_configuration_is_refused_with_its_keys(finished_runs: dict[str, Path], run_texts: Texts) -> None:
    config = with_train(replace(CONFIG, data=replace(CONFIG.data, batch_tokens=160)), seed=2)
    message = refusal(config, finished_runs["average"], run_texts, resume=True)
    assert "data.batch_tokens: 150 then, 160 now" in message
    assert "train.seed: 1 then, 2 now" in message
    assert "max_steps" not in message


@pytest.mark.parametrize("name", ["train", "valid"])
def test_changed_text_is_refused(name: str, finished_runs: dict[str, Path], run_texts: Texts, tmp_path: Path) -> None:
    shutil.copytree(finished_runs["average"], tmp_path / "run")
    other_texts = write_texts(tmp_path)
    src = other_texts[name][0]
    src.write_bytes(src.read_bytes().replace(b"a", b"b", 1))
    with pytest.raises(UserError, match=f"{name}.src.*: expected the text.* that .* started with"):
        train(CONFIG, out=tmp_path / "run", resume=True, **other_texts)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("data", "data exists there"),
        ("model", "model exists there"),
        ("config.json", "config.json: expected"),
        ("manifest.json", "not a model"),
    ],
)
def test_a_folder_with_other_files_is_refused_and_unchanged(
    name: str, message: str, run_texts: Texts, tmp_path: Path
) -> None:
    """A run would overwrite config.json, and remove unknown files in data/train."""
    (tmp_path / "run").mkdir()
    if "." in name:
        (tmp_path / "run" / name).write_text("{}", encoding="utf-8")
    else:
        (tmp_path / "run" / name / "train").mkdir(parents=True)
        (tmp_path / "run" / name / "train" / "mine.txt").write_text("dear", encoding="utf-8")
    assert message in refusal(CONFIG, tmp_path / "run", run_texts, resume=True)


def test_all_missing_files_are_reported_together(run_texts: Texts, tmp_path: Path) -> None:
    missing: Texts = {
        "train": (tmp_path / "no.src", run_texts["train"][1]),
        "valid": (run_texts["valid"][0], tmp_path / "no.tgt"),
    }
    message = refusal(CONFIG, tmp_path / "run", missing)
    assert "no.src" in message and "no.tgt" in message
    assert not (tmp_path / "run").exists()


def test_the_configuration_is_checked_before_texts_are_read(tmp_path: Path) -> None:
    nowhere = {"train": (tmp_path / "a", tmp_path / "b"), "valid": (tmp_path / "c", tmp_path / "d")}
    config = with_train(replace(CONFIG, model=replace(CONFIG.model, n_heads=3)), warmup_steps=0)
    with pytest.raises(UserError) as problem:
        train(config, out=tmp_path / "run", **nowhere)
    assert "model.n_heads=3" in str(problem.value) and "train.warmup_steps=0" in str(problem.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["", "  "], "v.src: expected a line that is not blank"),
        (["a b", "a " * 9_000], "v.src:2: expected at most"),
    ],
)
def test_unusable_validation_text_is_refused_before_training(
    lines: list[str], message: str, run_texts: Texts, tmp_path: Path
) -> None:
    valid = write_lines(tmp_path / "v.src", lines), write_lines(tmp_path / "v.tgt", lines)
    with pytest.raises(UserError, match=message):
        train(CONFIG, out=tmp_path / "run", train=run_texts["train"], valid=valid)
    assert not (tmp_path / "run").exists()


# ---- numbers that are not finite -----------------------------------------------------------------------------------


Fault = Callable[[Transformer], AbstractContextManager[None]]  # active in its context


@contextmanager
def nan_loss(model: Transformer) -> Iterator[None]:
    """Make the loss NaN."""
    original = TranslationTask.loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationTask, "loss", staticmethod(lambda *arguments: original(*arguments) * float("nan")))
        yield


def random_fault(rng: random.Random) -> Fault:
    """Return a fault that sets one number to NaN or infinity.

    The number is in the loss, in the output of a layer for the first token, or in the gradient of a parameter.
    """
    value = rng.choice([float("nan"), float("inf")])  # not -inf, which ReLU makes 0

    def with_value(values: torch.Tensor) -> torch.Tensor:
        copy = values.clone()
        copy.view(-1)[rng.randrange(values.size(-1))] = value
        return copy

    @contextmanager
    def fault(model: Transformer) -> Iterator[None]:
        _, *layers = (module for module in model.modules() if isinstance(module, torch.nn.Linear | torch.nn.LayerNorm))
        if rng.random() < 0.5:  # all layers but the first, `output`, which training never calls
            hook = rng.choice(layers).register_forward_hook(lambda module, inputs, output: with_value(output))
        else:
            hook = rng.choice([*model.parameters()]).register_hook(with_value)
        try:
            yield
        finally:
            hook.remove()

    return nan_loss if rng.random() < 0.2 else fault


def inject(monkeypatch: pytest.MonkeyPatch, steps: Iterable[int], fault: Fault = nan_loss) -> None:
    """Activate a fault in these steps."""
    original = Gradients.of
    seeds = {dropout_seed(CONFIG.train.seed, step) for step in steps}

    def of(self: Gradients, micro_batches: Sequence[Batch], *, seed: int) -> Gradient:
        with fault(self.model) if seed in seeds else nullcontext():
            return original(self, micro_batches, seed=seed)

    monkeypatch.setattr(Gradients, "of", of)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_step_with_a_nonfinite_number_changes_no_weights(
    seed: int, run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 3 runs has 36 faulty steps of 60. Weights, moments and moving average do not change in them."""
    rng = random.Random(seed)
    good = {1, 6, 11, 16, 21, 26, 31, 36, 41, 46, 51, 56}  # never five faulty steps in a row
    faulty = set(rng.sample(sorted(set(range(1, 61)) - good), 36))
    inject(monkeypatch, faulty, lambda model: random_fault(rng)(model))
    config = with_train(USES["ema"], checkpoint_every_steps=1, keep_checkpoints=60, accumulate=rng.choice([1, 3]))
    train(config, out=tmp_path / "run", **run_texts)
    before = load_checkpoint(checkpoint_path(tmp_path / "run", 1))
    for step in range(2, 61):
        after = load_checkpoint(checkpoint_path(tmp_path / "run", step))
        pairs = (before.weights, after.weights), (before.optimizer, after.optimizer), (before.ema, after.ema)
        for old, new in pairs:
            assert old is not None and new is not None
            equal = [values.equal(new[name]) for name, values in old.items()]
            assert all(equal) if step in faulty else not any(equal), step
        before = after
    assert {line["step"] for line in reports(tmp_path / "run") if "skipped" in line} == faulty
    assert before.state["skipped"] == 36


@pytest.mark.parametrize(
    "every",
    [
        pytest.param({"log_every_steps": 1}, marks=pytest.mark.slow),
        {"log_every_steps": 100, "evaluate_every_steps": 100},
    ],
)
def test_five_nonfinite_steps_in_a_row_end_a_run_with_good_checkpoints(
    every: dict[str, int], run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint among the faulty steps is good, and a resumed run continues their count."""
    out = tmp_path / "run"
    config = with_train(USES["ema"], **every)
    with monkeypatch.context() as patch:
        inject(patch, [4, 13, 14, 15, 16, 17])
        with pytest.raises(UserError) as problem:
            train(config, out=out, **run_texts)
    assert "5 steps in a row were skipped, the last for loss nan, gradient norm nan, on " in str(problem.value)
    assert f"at step 17: the training diverged after its last good checkpoint, {out}/checkpoints/step-00000016" in str(
        problem.value
    )
    assert checkpoint_steps(out)[-2:] == [8, 16] if every["log_every_steps"] > 1 else checkpoint_steps(out)[-1] == 16
    for path in checkpoints(out):
        checkpoint = load_checkpoint(path)
        for tensors in (checkpoint.weights, checkpoint.optimizer, checkpoint.ema or {}):
            assert all(bool(values.isfinite().all()) for values in tensors.values())
    skips = [line["step"] for line in reports(out) if "skipped" in line]
    assert skips == [4, 13, 14, 15, 16, 17]
    with monkeypatch.context() as patch:
        inject(patch, [17])
        with pytest.raises(UserError, match="5 steps in a row"):
            train(config, out=out, resume=True, **run_texts)
    train(config, out=out, resume=True, **run_texts)  # as after a fault of the machine
    assert checkpoint_steps(out)[-1] == CONFIG.train.max_steps


def test_a_skipped_step_is_logged_with_its_lines(
    run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_train(USES["ema"], checkpoint_every_steps=1, keep_checkpoints=60, max_steps=12, log_every_steps=1)
    with monkeypatch.context() as patch:
        inject(patch, [1, 2, 9])
        train(config, out=tmp_path / "run", **run_texts)
    states = {step: load_checkpoint(checkpoint_path(tmp_path / "run", step)) for step in range(1, 13)}
    for name in states[8].weights:
        assert states[9].weights[name].equal(states[8].weights[name])
        assert not states[10].weights[name].equal(states[9].weights[name])
    for name, moments in states[8].optimizer.items():
        assert states[9].optimizer[name].equal(moments)
    for name, average in (states[8].ema or {}).items():
        assert (states[9].ema or {})[name].equal(average)
    assert states[9].state["data"]["index"] == states[8].state["data"]["index"] + 1
    assert states[9].state["skipped"] == 3 and states[12].state["skipped"] == 3
    lines = {line["step"]: line for line in reports(tmp_path / "run") if "skipped" in line}
    assert lines.keys() == {1, 2, 9}
    assert lines[9]["skipped"] == "loss nan, gradient norm nan"
    assert "train.src" in lines[9]["lines"] and "lines " in lines[9]["lines"]
    steps = [line["step"] for line in reports(tmp_path / "run") if "loss" in line]
    assert steps == [3, 4, 5, 6, 7, 8, 10, 11, 12]


def test_a_run_with_skipped_steps_resumes_bit_for_bit(
    run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam counts updates, not steps, and an update may run out of memory at its first try."""
    inject(monkeypatch, [2, 3, 5, 21])
    config = with_train(USES["ema"], max_steps=24)
    train(config, out=tmp_path / "whole", **run_texts)
    original = torch._fused_adam_
    calls = itertools.count(1)

    def fused_adam(*arguments: Any, **options: Any) -> None:
        if next(calls) % 3 == 2:
            raise torch.OutOfMemoryError
        original(*arguments, **options)

    monkeypatch.setattr(torch, "_fused_adam_", fused_adam)
    for step in (4, 21):
        with monkeypatch.context() as patch:
            act_at_step(patch, step, lambda: os.kill(os.getpid(), signal.SIGTERM))
            train(config, out=tmp_path / "resumed", resume=True, **run_texts)
    train(config, out=tmp_path / "resumed", resume=True, **run_texts)
    assert_same(tmp_path / "resumed", tmp_path / "whole")


def test_nonfinite_weights_are_not_saved(run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the memory after an update shows in the next loss, and no checkpoint is saved from then on."""
    original = state.update

    def faulty_update(optimizer: torch.optim.Adam, count: int) -> None:
        original(optimizer, count)
        if count == 11:
            optimizer.param_groups[0]["params"][3].data.view(-1)[0] = float("inf")

    monkeypatch.setattr(state, "update", faulty_update)
    with pytest.raises(UserError, match="the training diverged after its last good checkpoint, .*step-00000008"):
        train(CONFIG, out=tmp_path / "run", **run_texts)
    assert checkpoint_steps(tmp_path / "run") == [8]
    monkeypatch.undo()
    train(CONFIG, out=tmp_path / "run", resume=True, **run_texts)


@pytest.mark.parametrize("evaluate_every", [2, 3])
def test_a_training_that_has_diverged_by_an_evaluation_says_so(
    tmp_path: Path, run_texts: Texts, evaluate_every: int
) -> None:
    """The weights are finite numbers, but so large that the outputs are not."""
    steps = {"max_steps": 3, "evaluate_every_steps": evaluate_every, "checkpoint_every_steps": 1}
    with pytest.raises(UserError, match=r"not finite numbers at step \d: the training diverged after its last good"):
        train(with_train(CONFIG, lr_factor=9e18, **steps), out=tmp_path / "run", **run_texts)
