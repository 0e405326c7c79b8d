"""Training as tests start it, the configurations of their runs, and comparisons of two runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.toy_task import toy_lines, write_pairs
from transduce import train as training
from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig
from transduce.storage.checkpoints import checkpoints, load_checkpoint, step_of
from transduce.storage.run_log import reports
from transduce.storage.run_request import TrainRequest
from transduce.training.task import Task

Texts = dict[str, tuple[Path, Path]]


def train(config: str | Config, task: Task | None = None, **request: Any) -> Path:
    """Train with a `TrainRequest` of these fields, and return the model folder."""
    return training.train(TrainRequest(config, **request), task)


# All options that a resumed run could get wrong. Reports, evaluations and checkpoints are on different steps.
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
    """Return `config` with other values in its section `train`."""
    return replace(config, train=replace(config.train, **changes))


USES = {
    "average": CONFIG,
    "ema": replace(with_train(CONFIG, use="ema", ema_decay=0.9), model=replace(CONFIG.model, n_encoder_layers=2)),
    "best": with_train(CONFIG, use="best"),
}


def write_texts(folder: Path) -> Texts:
    """Write 200 pairs to train on and 4 to evaluate on: lines of up to six letters, and the same lines reversed."""
    return {
        "train": write_pairs(folder, "train", toy_lines(1, 200)),
        "valid": write_pairs(folder, "valid", toy_lines(2, 4)),
    }


EARLY = {"patience": 3, "evaluate_every_steps": 2, "checkpoint_every_steps": 2, "keep_checkpoints": 3}


def replace_scores(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Let successive evaluations return these losses, then 9.0."""
    remaining = iter(losses)

    def scores(*_: object) -> dict[str, float]:
        loss = next(remaining, 9.0)
        return {"loss": loss, "perplexity": 1.0, "bleu": 50 - loss}

    monkeypatch.setattr(training, "validation_scores", scores)


# ---- comparing runs ------------------------------------------------------------------------------------------------


def checkpoint_steps(run: Path) -> list[int]:
    """Return the steps of the checkpoints of a run, in their order."""
    return [step_of(path) for path in checkpoints(run)]


def log_without_times(run: Path) -> list[dict[str, Any]]:
    """Return the lines of the log of a run without the values that differ between two identical runs."""
    times = ("seconds", "processor_share", "tokens_per_second")
    return [{name: value for name, value in line.items() if name not in times} for line in reports(run)]


def assert_same(run: Path, expected: Path) -> None:
    """Check that two runs have identical models, logs, checkpoint steps and moments."""
    models = [folder / "model" / "model.safetensors" for folder in (run, expected)]
    assert models[0].read_bytes() == models[1].read_bytes()
    assert log_without_times(run) == log_without_times(expected)
    assert checkpoint_steps(run) == checkpoint_steps(expected)
    newest = [load_checkpoint(checkpoints(folder)[-1]) for folder in (run, expected)]
    for name, moments in newest[0].optimizer.items():
        assert moments.equal(newest[1].optimizer[name]), name


def everything(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Return the inode and the content of every file: a file that was written again has another inode."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_ino, path.read_bytes()) for path in files}


def act_at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], None]) -> None:
    """Call `action` in the middle of training step number `step`."""
    original = training.learning_rate

    def learning_rate(number: int, **settings: Any) -> float:
        if number == step:
            action()
        return original(number, **settings)

    monkeypatch.setattr(training, "learning_rate", learning_rate)
