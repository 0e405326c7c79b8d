"""SIGINT (Ctrl-C), SIGTERM and SIGHUP as a flag, which a loop reads after each step; on Windows SIGBREAK, too."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from transduce.data.system import ENDING, signals

HANGUP = signals("SIGHUP")


class StopSignal:
    """A context manager within which the first SIGINT, SIGTERM or SIGHUP sets `is_requested`.

    A SIGINT or SIGTERM after the first one has its usual effect and ends the program at once. A SIGHUP never does: a
    terminal that closes sends it twice, and a shutdown sends it after SIGTERM. It stays ignored under nohup. In a
    thread other than the main thread, this class has no effect, because Python sets signal handlers only there.

    interrupts: True where a signal must also raise KeyboardInterrupt, because no loop reads the flag.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self.interrupts = False
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (*ENDING, *HANGUP):
                if number in ENDING or signal.getsignal(number) != signal.SIG_IGN:
                    self.previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore(*self.previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True
        if self.interrupts:
            raise KeyboardInterrupt
        if number in ENDING:
            self._restore(*ENDING)

    def _restore(self, *numbers: int) -> None:
        for number in numbers:
            if number in self.previous:
                signal.signal(number, self.previous[number])
