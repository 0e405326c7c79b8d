"""A disk that is full, broken or read-only.

Earlier checkpoints still load, the message has the path and the bytes needed, training continues while it can, and the
exit code is 3.
"""

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import whole_checkpoint
from support.small_runs import AVERAGE, Texts, train_on

from transduce.storage import checkpoints as checkpoint
from transduce.storage.atomic_folder import check_folder, read_folder, remove_unfinished, write_file, write_folder
from transduce.storage.checkpoints import (
    checkpoints,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
    step_of,
)
from transduce.storage.run_log import RunLog, reports

ERRORS = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EFBIG]

# ---- a failure at every point of a save --------------------------------------------------------------------------


class Disk:
    """Counts the calls to the disk, and lets one of them fail. A failing write writes half of its bytes."""

    def __init__(self, patch: pytest.MonkeyPatch, fail_at: int | None = None, code: int = 0) -> None:
        self.calls: list[str] = []
        self.fail_at, self.code = fail_at, code
        functions = [(os, "fsync"), (os, "open"), (Path, "open"), (Path, "mkdir"), (Path, "rename"), (Path, "replace")]
        for owner, name in [*functions, (shutil, "disk_usage")]:
            patch.setattr(owner, name, self.faulty(name, vars(owner)[name]))

    def faulty(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count(name)
            result = real(*args, **kwargs)
            return FaultyFile(self, result) if name == "open" and "xb" in args else result

        return call

    def count(self, name: str) -> None:
        self.calls.append(name)
        if len(self.calls) - 1 == self.fail_at:
            raise OSError(self.code, os.strerror(self.code))


class FaultyFile:
    """A file on a `Disk`."""

    def __init__(self, disk: Disk, file: Any) -> None:
        self.disk, self.file = disk, file
        self.fileno = file.fileno

    def __enter__(self) -> "FaultyFile":
        return self

    def __exit__(self, *problem: object) -> None:
        self.file.close()

    def write(self, content: bytes) -> None:
        self.file.write(content[: len(content) // 2])
        self.disk.count("write")
        self.file.write(content[len(content) // 2 :])

    def flush(self) -> None:
        self.disk.count("flush")
        self.file.flush()


def calls_of(act: Callable[[], object]) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        act()
    return disk.calls


def problem_at(point: int, code: int, act: Callable[[], object]) -> OSError:
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, point, code)
        with pytest.raises(OSError) as caught:
            act()
    assert caught.value.errno == code
    return caught.value


def test_a_save_calls_the_disk_at_least_40_times(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, whole_checkpoint(5))
    calls = calls_of(lambda: save_checkpoint(tmp_path, whole_checkpoint(10)))
    assert len(calls) >= 40
    assert calls.count("mkdir") == 2 and calls.count("rename") == 1 and calls.count("disk_usage") == 1
    assert calls.count("open") == 5 + 2 and calls.count("fsync") == 5 + 2 and calls.count("write") > 5


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_a_save_that_fails_at_any_call_leaves_the_earlier_checkpoints(tmp_path: Path, code: int) -> None:
    first = save_checkpoint(tmp_path, whole_checkpoint(5))
    save_checkpoint(tmp_path / "counted", whole_checkpoint(5))
    calls = calls_of(lambda: save_checkpoint(tmp_path / "counted", whole_checkpoint(10)))
    for point, name in enumerate(calls):
        problem = problem_at(point, code, lambda: save_checkpoint(tmp_path, whole_checkpoint(10)))
        after = checkpoints(tmp_path)
        assert after[0] == first and not [*tmp_path.glob("checkpoints/.tmp-*")], (point, name)
        if name in ("write", "flush"):
            assert str(tmp_path) in problem.filename and " bytes" in problem.strerror, (point, name)
        for path in after:  # a renamed folder exists even if its name was not flushed
            assert load_checkpoint(path).weights["w"].equal(whole_checkpoint(step_of(path)).weights["w"])
        assert len(after) == 1 or point >= calls.index("rename")
        second = save_checkpoint(tmp_path, whole_checkpoint(10)) if len(after) == 1 else after[1]
        assert newest_checkpoint(tmp_path) == (second, [])
        shutil.rmtree(second)


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_a_model_remains_if_it_cannot_be_replaced(tmp_path: Path, code: int) -> None:
    old, new = {"old.json": [b"{}"]}, {"new.json": [b"{}"], "b.safetensors": [bytes(9), bytes(9)]}
    path = tmp_path / "model"
    write_folder(path, old)
    calls = calls_of(lambda: write_folder(tmp_path / "model", new))
    for point in range(len(calls)):
        write_folder(path, old)
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, point, code)
            try:
                write_folder(path, new)
            except OSError as problem:
                assert problem.errno == code
        assert [*read_folder(path)] in ([*old], [*new])
        remove_unfinished(tmp_path, "model")
        assert [item.name for item in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_a_file_remains_if_it_cannot_be_replaced(tmp_path: Path, code: int) -> None:
    path = tmp_path / "config.json"
    write_file(path, b"old")
    calls = calls_of(lambda: write_file(tmp_path / "config.json", b"old"))
    for point, name in enumerate(calls):
        problem = problem_at(point, code, lambda: write_file(path, b"new"))
        assert path.read_bytes() == (b"new" if point > calls.index("replace") else b"old")
        if name == "write":
            assert problem.filename.startswith(f"{tmp_path}/.tmp-config.json-")
            assert "writing 3 bytes" in problem.strerror
        assert os.listdir(tmp_path) == ["config.json"]
        write_file(path, b"old")


# ---- the log -----------------------------------------------------------------------------------------------------


def test_reports_that_a_full_disk_refused_are_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes any number of bytes before it is full."""
    for room in range(60):
        run = tmp_path / str(room)
        run.mkdir()
        log = RunLog(run, 0)
        log.report(1, {"loss": 1.5})
        log.file = FullAfter(log.file, room)
        for step in (2, 3):
            log.report(step, {"loss": step / 2})
        if log.pending:
            with pytest.raises(OSError, match=f"writing {len(log.pending)} bytes") as caught:
                log.sync()
            assert caught.value.filename == str(run / "log.jsonl")
        log.file.room = 10_000
        log.report(4, {"loss": 2.0})
        log.sync()
        log.close()
        assert [*reports(run)] == [
            {"step": step, "loss": loss} for step, loss in zip((1, 2, 3, 4), (1.5, 1.0, 1.5, 2.0), strict=True)
        ]


class FullAfter:
    """A file on a disk with `room` free bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room
        self.name = file.name
        self.fileno = file.fileno
        self.close = file.close

    def write(self, content: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = self.file.write(content[: self.room])
        self.room -= size
        return size


# ---- training ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference_run(tmp_path_factory: pytest.TempPathFactory, texts: Texts) -> Path:
    """Return a run without failures."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    train_on(texts, out)
    return out


class FailingSaves:
    """Lets the saves at some steps fail as on a full disk, and records the steps of all saves."""

    def __init__(self, patch: pytest.MonkeyPatch, failing: set[int]) -> None:
        self.steps: list[int] = []

        def write(path: Path, files: Any) -> None:
            step = int(path.name.removeprefix("step-")) if path.name.startswith("step-") else None
            if step is not None:
                self.steps.append(step)
            if step in failing:
                raise OSError(errno.ENOSPC, "No space left on device: 300 bytes needed, 7 free", str(path))
            write_folder(path, files)

        patch.setattr(checkpoint, "write_folder", write)


def test_training_continues_after_two_failed_saves_in_a_row(
    texts: Texts,
    reference_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Saves are due at steps 6, 9 (best so far), 12, 18, 24, 30 and 32. The model is the mean of the last three."""
    saves = FailingSaves(monkeypatch, {6, 9, 18})
    train_on(texts, tmp_path / "run")
    assert saves.steps[:3] == [6, 9, 12]
    expected = (reference_run / "model" / "model.safetensors").read_bytes()
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == expected
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("not saved")]
    path = tmp_path / "run" / "checkpoints" / "step-00000006"
    assert warnings[0].startswith("not saved at step 6: [Errno 28] No space left on device: 300 bytes needed, 7 free: ")
    assert repr(str(path)) in warnings[0] and len(warnings) == 3  # 18 is due twice, but saved once


def test_three_failed_saves_in_a_row_end_the_run_which_resumes_later(
    texts: Texts, reference_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        saves = FailingSaves(patch, set(range(10, 33)))
        with pytest.raises(OSError, match="300 bytes needed, 7 free"):
            train_on(texts, out)
    assert len([step for step in saves.steps if step >= 10]) == 3
    assert [step_of(path) for path in checkpoints(out)] == [6, 9]
    for path in checkpoints(out):
        check_folder(path)
    train_on(texts, out, resume=True)
    expected = (reference_run / "model" / "model.safetensors").read_bytes()
    assert (out / "model" / "model.safetensors").read_bytes() == expected


def test_a_failed_last_save_ends_the_run_without_a_model(
    texts: Texts, reference_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        FailingSaves(patch, {32})
        with pytest.raises(OSError, match="7 free"):
            train_on(texts, out)
    assert not (out / "model").exists()
    train_on(texts, out, resume=True)
    expected = (reference_run / "model" / "model.safetensors").read_bytes()
    assert (out / "model" / "model.safetensors").read_bytes() == expected


def test_the_card_says_that_the_best_checkpoint_could_not_be_saved(
    texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(AVERAGE, train=replace(AVERAGE.train, use="best", max_steps=12, checkpoint_every_steps=5))
    FailingSaves(monkeypatch, {9})
    train_on(texts, tmp_path / "run", config)
    card = (tmp_path / "run" / "model" / "README.md").read_text("utf-8")
    assert "step-00000012, because the best one, step-00000009, is damaged or could not be saved" in " ".join(
        card.split()
    )
