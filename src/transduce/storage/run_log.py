"""The record of a run: one JSON object per line in RUN/log.jsonl, and TensorBoard events if they are asked for."""

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from transduce.errors import UserError
from transduce.storage.atomic_folder import located

Value = int | float | str | None


class Log:
    """Appends reports to RUN/log.jsonl, each flushed at once.

    after_step: lines of later steps are cut off first, so that a resumed run neither repeats nor skips one.
    run: None where another process writes it.
    """

    def __init__(self, run: Path | None, after_step: int, *, tensorboard: bool = False) -> None:
        self.board, self.pending = None, b""
        if run is None:
            self.file = open(os.devnull, "ab", buffering=0)
            return
        path = run / "log.jsonl"
        path.touch()
        length = _length(path, after_step)
        if tensorboard:
            self.board = _board(run / "tensorboard", after_step)
        self.file = path.open("ab", buffering=0)
        self.file.truncate(length)

    def report(self, step: int, values: dict[str, Value]) -> None:
        """Add one line for `step`. If the disk does not take it, the next report and `sync` try again."""
        self.pending += msgspec.json.encode({"step": step, **values}) + b"\n"
        with suppress(OSError):
            self._write()
        if self.board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.board.add_scalar(name, value, step)
            self.board.flush()

    def sync(self) -> None:
        """Make durable what has been reported: a checkpoint must not outlive the lines before it."""
        size = len(self.pending)
        try:
            self._write()
            os.fsync(self.file.fileno())
        except OSError as problem:
            raise located(problem, f"writing {size:,} bytes", Path(self.file.name)) from problem

    def _write(self) -> None:
        """Append what is pending; what a full disk does not take stays so."""
        while self.pending:
            self.pending = self.pending[self.file.write(self.pending) :]

    def close(self) -> None:
        """Nothing more is reported; what was is in the file."""
        self.file.close()
        if self.board is not None:
            self.board.close()


def reports(run: Path) -> Iterator[dict[str, Any]]:
    """The lines of RUN/log.jsonl one by one; a last line that was cut off while it was written is left out."""
    path = run / "log.jsonl"
    if path.exists():
        yield from (line for line, _ in _lines(path))


def read_log(run: Path) -> list[dict[str, Any]]:
    """All `reports` of a run."""
    return list(reports(run))


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Every whole line, and where it ends in bytes. UserError for one that is not a report."""
    end = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                return
            end += len(raw)
            try:
                line = msgspec.json.decode(raw, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError):
                line = {}
            if not isinstance(line.get("step"), int):
                raise UserError(f"{path}:{number} is not a line that a run writes; take it out")
            yield line, end


def _length(path: Path, after_step: int) -> int:
    """How many bytes hold the lines up to `after_step`. Steps never decrease, so these come first."""
    return max((end for line, end in _lines(path) if line["step"] <= after_step), default=0)


def board_problems() -> list[str]:
    """What keeps TensorBoard events from being written."""
    if find_spec("tensorboard") is not None:
        return []
    return ["--tensorboard needs the package tensorboard: pip install 'transduce[log]'"]


def _board(folder: Path, after_step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=after_step + 1)
