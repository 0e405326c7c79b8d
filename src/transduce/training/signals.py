"""SIGINT (Ctrl-C) and SIGTERM as a flag, which a loop reads after each step."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopSignal:
    """A context manager within which the first SIGINT or SIGTERM sets `is_requested`.

    The second signal has its usual effect and ends the program at once. In a thread other than the main thread, this
    class has no effect, because Python sets signal handlers only in the main thread.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
