"""The log of a run: one JSON object per line in RUN/log.jsonl, and the same numbers for a tracker."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from transduce.data.disk import error_at
from transduce.errors import UserError
from transduce.storage.trackers import Tracker, TrackerName, open_tracker

LogValue = int | float | str | None
LogLine = dict[str, Any]  # of log.jsonl: values by name


class RunLog:
    """Appends reports to RUN/log.jsonl, and flushes each one.

    run: the folder of the run; None on ranks that do not write the log. after_step: lines of later steps are removed
    first, so that a resumed run neither repeats nor skips a line. tracker: a program that gets the numbers, too.
    One thread may call `report` while another one calls `sync`.
    """

    def __init__(self, run: Path | None, after_step: int, *, tracker: TrackerName | None = None) -> None:
        self.tracker: Tracker | None = None
        self.pending = b""
        self.lock = threading.Lock()  # of what is pending
        if run is None:
            self.file = open(os.devnull, "ab", buffering=0)
            return
        path = run / "log.jsonl"
        path.touch()
        length = _length(path, after_step)
        if tracker is not None:
            self.tracker = open_tracker(tracker, run, after_step)
        self.file = path.open("ab", buffering=0)
        self.file.truncate(length)

    def report(self, step: int, values: Mapping[str, LogValue]) -> None:
        """Append one line for `step`. If the write fails, the next report and `sync` repeat the line.

        The tracker gets the numbers once.
        """
        with self.lock, suppress(OSError):
            self.pending += msgspec.json.encode({"step": step, **values}) + b"\n"
            self._write()
        if self.tracker is not None:
            with suppress(OSError):
                self.tracker.log({name: x for name, x in values.items() if isinstance(x, int | float)}, step)

    def sync(self) -> None:
        """Flush all reports to disk, before a checkpoint is written. Raises OSError if the disk fails."""
        size = len(self.pending)
        try:
            with self.lock:
                self._write()
            os.fsync(self.file.fileno())
        except OSError as problem:
            raise error_at(problem, f"writing {size:,} bytes", Path(self.file.name)) from problem

    def _write(self) -> None:
        """Append the pending bytes. Bytes that a full disk does not take remain pending."""
        while self.pending:
            self.pending = self.pending[self.file.write(self.pending) :]

    def close(self) -> None:
        """Close the log; no report may follow."""
        self.file.close()
        if self.tracker is not None:
            self.tracker.close()


def reports(run: Path) -> Iterator[LogLine]:
    """Yield the lines of RUN/log.jsonl. An incomplete last line, cut off by a kill, is skipped."""
    path = run / "log.jsonl"
    if path.exists():
        yield from (line for line, _ in _lines(path))


def evaluations(run: Path) -> dict[int, dict[str, Any]]:
    """Return the scores of each evaluation of a run, by step."""
    scores = ((line["step"], {name: line[f"valid_{name}"] for name in _score_names(line)}) for line in reports(run))
    return {step: values for step, values in scores if values}


def _score_names(line: LogLine) -> list[str]:
    return [name.removeprefix("valid_") for name in line if name.startswith("valid_")]


def _lines(path: Path) -> Iterator[tuple[LogLine, int]]:
    """Yield each complete line and its end in bytes. Raises UserError for a line that is not a report."""
    end = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                return
            end += len(raw)
            try:
                line = msgspec.json.decode(raw, type=LogLine)
            except (msgspec.DecodeError, RecursionError):
                line = {}
            if not isinstance(line.get("step"), int):
                raise UserError(f"{path}:{number}: expected a JSON object with a step; remove this line")
            yield line, end


def _length(path: Path, after_step: int) -> int:
    """Return the length in bytes of the lines up to `after_step`, which come first: steps never decrease."""
    return max((end for line, end in _lines(path) if line["step"] <= after_step), default=0)
