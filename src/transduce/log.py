"""The record of a run: one JSON object per line in RUN/log.jsonl, and TensorBoard events if they are asked for."""

from pathlib import Path
from typing import Any

import msgspec

from transduce.errors import UserError

Value = int | float | str | None


class Log:
    """Appends reports to RUN/log.jsonl, each flushed at once.

    after_step: lines of later steps are cut off first, so that a resumed run neither repeats nor skips one.
    """

    def __init__(self, run: Path, after_step: int, *, tensorboard: bool = False) -> None:
        path = run / "log.jsonl"
        kept = [line for line in read_log(run) if line["step"] <= after_step]
        path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in kept))
        self.file = path.open("ab")
        self.board = _board(run / "tensorboard", after_step) if tensorboard else None

    def report(self, step: int, values: dict[str, Value]) -> None:
        """Add one line for `step`."""
        self.file.write(msgspec.json.encode({"step": step, **values}) + b"\n")
        self.file.flush()
        if self.board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.board.add_scalar(name, value, step)
            self.board.flush()

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


def read_log(run: Path) -> list[dict[str, Any]]:
    """The lines of RUN/log.jsonl; a last line that was cut off while it was written is left out."""
    path = run / "log.jsonl"
    lines = []
    for raw in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            lines.append(msgspec.json.decode(raw))
        except msgspec.DecodeError:
            continue
    return lines


def _board(folder: Path, after_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'transduce[log]'") from None
    return SummaryWriter(str(folder), purge_step=after_step + 1)
