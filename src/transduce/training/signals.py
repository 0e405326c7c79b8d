"""Ctrl-C and SIGTERM as a wish that a loop can grant when it suits."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopSignal:
    """While in use, SIGINT and SIGTERM set `wanted`; a second one acts as usual, which ends the program at once.

    Off the main thread, where Python does not allow it, signals are left alone.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
