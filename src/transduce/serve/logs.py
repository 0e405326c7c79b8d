"""The log: one JSON object for each request, on standard error. Never a text, a key, a query or a header's value."""

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from transduce.serve.keys import Sender

STDERR = 2
MAX_LINES = 10_000  # that wait to be written, while the reader of the log is slow

LEFT = 499  # the status of a request whose client left before the answer


@dataclass
class Record:
    """The line of the log about a request. key: the name of its key. sender: who takes turns, not in the line."""

    id: str
    route: str = "other"
    key: str = ""
    status: int = LEFT
    texts: int = 0
    characters: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    queue_ms: float = 0.0
    decode_ms: float = 0.0
    sender: Sender | None = None

    @property
    def values(self) -> dict[str, object]:
        """The values of the line, in its order."""
        return {name: value for name, value in vars(self).items() if name != "sender"}


class Log:
    """A log that never delays or fails a request: a thread writes it, and lines that cannot be written are counted."""

    def __init__(self, on_error: Callable[[], None], descriptor: int = STDERR) -> None:
        self._on_error = on_error
        self._descriptor = descriptor
        self._lines = queue.SimpleQueue[bytes | None]()  # a bounded queue takes 3 us more a line
        self._thread = threading.Thread(target=self._run, name="transduce-log", daemon=True)
        self._thread.start()

    def write(self, level: str, event: str, **values: object) -> None:
        """Add a line."""
        now = time.time()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        rounded = {name: round(v, 1) if isinstance(v, float) else v for name, v in values.items()}
        line = msgspec.json.encode({"time": moment, "level": level, "event": event, **rounded}) + b"\n"
        if self._is_full():
            self._on_error()
        else:
            self._lines.put(line)

    def write_defect(self, problem: BaseException | None, **values: object) -> None:
        """Add a line about a defect of this program: its kind and its place, for its message may quote a text."""
        place = None if problem is None else problem.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place is not None else ""
        self.write("error", "defect", **values, kind=type(problem).__name__, place=where)

    def close(self, seconds: float = 1.0) -> None:
        """Write what waits, for at most `seconds`."""
        if not self._is_full():
            self._lines.put(None)
            self._thread.join(seconds)

    def _is_full(self) -> bool:
        return self._lines.qsize() >= MAX_LINES

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                self._on_error()
