"""The checkpoint writer: it saves a step once, survives a failing disk for a while, and keeps the best checkpoint."""

import errno
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from transduce.config.schema import TrainConfig
from transduce.storage import checkpoints as module
from transduce.storage.checkpoints import MAX_FAILED_SAVES, Checkpoint, CheckpointWriter, checkpoints, step_of
from transduce.storage.run_log import Log, read_log

KEEPS_TWO = TrainConfig(keep_checkpoints=2, checkpoint_every_steps=10)


class Run:
    """A run with a log and a checkpoint writer, which records snapshots and printed lines."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.folder, self.log = folder, log
        self.lines: list[str] = []
        self.snapshots: list[int] = []
        self.best_step: int | None = None
        self.writer = CheckpointWriter(folder, log, self.lines.extend, KEEPS_TWO)

    def save(self, step: int) -> None:
        def snapshot() -> Checkpoint:
            self.snapshots.append(step)
            tensors = {"w": torch.full((3,), float(step))}
            return Checkpoint(tensors, tensors, None, {"step": step, "best_step": self.best_step})

        self.writer.save(step, snapshot)

    def steps(self) -> list[int]:
        return [step_of(path) for path in checkpoints(self.folder)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with closing(Log(tmp_path, 0)) as log:
        yield Run(tmp_path, log)


def disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "disk")


def test_a_step_is_saved_once(run: Run) -> None:
    run.save(10)
    run.save(10)
    assert run.steps() == run.snapshots == [10] and run.lines == []


def test_a_failed_save_is_printed_and_not_repeated_for_its_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_folder", disk_full)
        run.save(10)
    run.save(10)
    assert run.steps() == [] and run.snapshots == [10]
    (line,) = run.lines
    assert line.startswith("not saved at step 10: [Errno 28] No space left on device")
    run.save(20)
    assert run.steps() == [20]


def test_too_many_failed_saves_in_a_row_raise(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in (0, 100):  # a save that succeeds resets the count
        with monkeypatch.context() as patch:
            patch.setattr(module, "write_folder", disk_full)
            for number in range(1, MAX_FAILED_SAVES):
                run.save(first + 10 * number)
        run.save(first + 90)
    monkeypatch.setattr(module, "write_folder", disk_full)
    for number in range(1, MAX_FAILED_SAVES):
        run.save(200 + 10 * number)
    with pytest.raises(OSError, match="No space left"):
        run.save(300)
    assert run.steps() == [90, 190] and len(run.lines) == 3 * (MAX_FAILED_SAVES - 1)


def test_the_log_is_durable_before_a_checkpoint(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.log.report(10, {"loss": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(run.log, "sync", disk_full)
        run.save(10)
    assert run.steps() == [] and len(run.lines) == 1
    run.save(20)
    assert run.steps() == [20] and [line["step"] for line in read_log(run.folder)] == [10]


def test_the_newest_regular_checkpoints_and_the_best_one_remain(run: Run) -> None:
    for step in (10, 20, 25, 30, 40):
        run.best_step = 25 if step >= 25 else None
        run.save(step)
    assert run.steps() == [25, 30, 40]
    run.writer.prune(None)
    assert run.steps() == [30, 40]


def test_the_failure_of_the_last_step_is_raised(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "write_folder", disk_full)
    run.save(10)
    run.writer.raise_failure(20)
    with pytest.raises(OSError, match="No space left"):
        run.writer.raise_failure(10)
