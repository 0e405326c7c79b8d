"""The log: one JSON object per line, cut to the step at which a resumed run starts."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from transduce.errors import UserError
from transduce.storage.run_log import RunLog, reports


def write(run: Path, *lines: str) -> Path:
    path = run / "log.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_reports_are_read_in_order(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0)
    log.report(100, {"loss": 5.25, "lr": 1e-4, "epoch": 0})
    log.report(100, {"valid_loss": 4.0, "note": "déjà vu\n", "nothing": None})
    log.close()
    assert [*reports(tmp_path)] == [
        {"step": 100, "loss": 5.25, "lr": 1e-4, "epoch": 0},
        {"step": 100, "valid_loss": 4.0, "note": "déjà vu\n", "nothing": None},
    ]
    raw = (tmp_path / "log.jsonl").read_text(encoding="utf-8").split("\n")
    assert len(raw) == 3 and raw[2] == "" and json.loads(raw[0])["step"] == 100


def test_each_report_can_be_read_at_once(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0)
    for step in (1, 2, 3):
        log.report(step, {"loss": 1.0})
        assert [line["step"] for line in reports(tmp_path)] == list(range(1, step + 1))
    log.close()


def test_reports_while_another_thread_flushes_are_complete(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0)
    log.file = SlowFile(log.file)
    thread = threading.Thread(target=lambda: [log.sync() for _ in range(20)])
    thread.start()
    for step in range(20):
        log.report(step, {"loss": 1.0})
    thread.join()
    log.close()
    assert [line["step"] for line in reports(tmp_path)] == list(range(20))


class SlowFile:
    """A file that lets another thread run before and after it writes."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.fileno, self.close, self.name = file.fileno, file.close, file.name

    def write(self, content: bytes) -> int:
        time.sleep(1e-3)
        size = self.file.write(content)
        time.sleep(1e-3)
        return size


def test_a_run_without_a_log_has_no_reports(tmp_path: Path) -> None:
    assert [*reports(tmp_path)] == []
    RunLog(tmp_path, 0).close()
    assert [*reports(tmp_path)] == [] and (tmp_path / "log.jsonl").read_bytes() == b""


@pytest.mark.parametrize(("after_step", "count"), [(0, 0), (1, 0), (9, 0), (10, 2), (15, 2), (20, 3), (30, 4), (99, 4)])
def test_a_resumed_run_removes_later_lines(tmp_path: Path, after_step: int, count: int) -> None:
    lines = ['{"step":10,"loss":3}\n', '{"step":10, "valid_loss": 2.50}\n', '{"step":20}\n', '{"step":30}\n']
    path = write(tmp_path, *lines)
    log = RunLog(tmp_path, after_step)
    assert path.read_text(encoding="utf-8") == "".join(lines[:count])  # byte for byte
    log.report(after_step + 5, {"loss": 1.0})
    log.close()
    assert [line["step"] for line in reports(tmp_path)] == [10, 10, 20, 30][:count] + [after_step + 5]


@pytest.mark.parametrize("fragment", ['{"step":30', "{", '{"step":30,"loss":2.5}', '{"step":3'])
def test_an_incomplete_last_line_is_skipped(tmp_path: Path, fragment: str) -> None:
    write(tmp_path, '{"step":10}\n', '{"step":20}\n', fragment)
    assert [line["step"] for line in reports(tmp_path)] == [10, 20]
    log = RunLog(tmp_path, 99)
    log.report(40, {})
    log.close()
    assert [line["step"] for line in reports(tmp_path)] == [10, 20, 40]


@pytest.mark.parametrize("line", ["\n", "words\n", "[]\n", "7\n", "{}\n", '{"step":"x"}\n', '{"step":null}\n'])
def test_a_foreign_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    before = write(tmp_path, '{"step":10}\n', line, '{"step":20}\n').read_bytes()
    with pytest.raises(UserError, match=r"log\.jsonl:2: expected a JSON object with a step; remove this line"):
        [*reports(tmp_path)]
    with pytest.raises(UserError, match=r"log\.jsonl:2"):
        RunLog(tmp_path, 0)
    assert (tmp_path / "log.jsonl").read_bytes() == before


def test_nan_and_infinity_are_null(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0)
    log.report(1, {"loss": float("nan"), "norm": float("inf")})
    log.close()
    assert [*reports(tmp_path)] == [{"step": 1, "loss": None, "norm": None}]


# ---- trackers ----------------------------------------------------------------------------------------------------


class FullTracker:
    """A tracker on a full disk."""

    def log(self, *arguments: object) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None: ...


def test_a_tracker_that_cannot_write_does_not_stop_a_training(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0)
    log.tracker = FullTracker()
    log.report(1, {"loss": 1.5})
    log.close()
    assert [*reports(tmp_path)] == [{"step": 1, "loss": 1.5}]
