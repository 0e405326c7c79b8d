"""The checkpoint writer.

It saves a step once, does not stop the training, survives a failing disk for a while, and keeps the best checkpoint.
"""

import errno
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.config.schema import TrainConfig
from transduce.errors import UserError
from transduce.storage import checkpoints as module
from transduce.storage.atomic_folder import write_folder
from transduce.storage.checkpoints import MAX_FAILED_SAVES, Checkpoint, CheckpointWriter, checkpoints, step_of
from transduce.storage.run_log import RunLog, reports

KEEPS_TWO = TrainConfig(keep_checkpoints=2, checkpoint_every_steps=10)


class Run:
    """A run with a log and a checkpoint writer, which records snapshots and printed lines."""

    def __init__(self, folder: Path, log: RunLog) -> None:
        self.folder, self.log = folder, log
        self.lines: list[str] = []
        self.snapshots: list[int] = []
        self.best_step: int | None = None
        self.writer = CheckpointWriter(folder, log, self.lines.extend, KEEPS_TWO)

    def save(self, step: int) -> None:
        self.begin_save(step)
        self.writer.wait()

    def begin_save(self, step: int, value: float = 0.0) -> None:
        def snapshot() -> Checkpoint:
            self.snapshots.append(step)
            tensors = {"w": torch.full((3,), value)}
            return Checkpoint(tensors, tensors, None, {"step": step, "best_step": self.best_step})

        self.writer.save(step, snapshot)

    def steps(self) -> list[int]:
        return [step_of(path) for path in checkpoints(self.folder)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with closing(RunLog(tmp_path, 0)) as log:
        run = Run(tmp_path, log)
        with run.writer:
            yield run


def disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "disk")


def test_a_step_is_saved_once(run: Run) -> None:
    run.save(10)
    run.save(10)
    assert run.steps() == run.snapshots == [10] and run.lines == []


class SlowDisk:
    """A disk that writes a folder only when the test sets `can_write`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.can_write = threading.Event()
        patch.setattr(module, "write_folder", self.write)

    def write(self, path: Path, files: Any) -> None:
        assert self.can_write.wait(60)
        write_folder(path, files)


def test_a_save_does_not_wait_for_the_disk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    run.begin_save(10)
    run.begin_save(10)
    assert run.steps() == [] and run.snapshots == [10]
    disk.can_write.set()
    run.begin_save(20)  # after the first one
    assert 10 in run.steps()
    run.writer.wait()
    assert run.steps() == run.snapshots == [10, 20]


def test_the_end_waits_for_the_disk(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    with pytest.raises(ZeroDivisionError), run.writer:
        run.begin_save(10)
        disk.can_write.set()
        raise ZeroDivisionError
    assert run.steps() == [10]


def test_the_step_of_a_resumed_run_is_not_saved_again(run: Run) -> None:
    with CheckpointWriter(run.folder, run.log, run.lines.extend, KEEPS_TWO, 10) as run.writer:
        run.save(10)
        run.save(20)
    assert run.snapshots == [20]


def test_a_value_that_is_not_finite_is_raised(run: Run) -> None:
    run.begin_save(10, float("nan"))
    with pytest.raises(UserError, match="step-00000010: expected finite numbers in w;"):
        run.begin_save(20)
    assert run.steps() == [] and run.snapshots == [10]


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
    assert run.steps() == [20] and [line["step"] for line in reports(run.folder)] == [10]


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
