"""A pool of processes that end with the program, leave Ctrl-C to it, and import nothing from the working folder."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import TracebackType
from typing import ParamSpec, TypeVar

from transduce.console import import_path
from transduce.data.system import interrupts_blocked

P = ParamSpec("P")
T = TypeVar("T")


class WorkerPool(ProcessPoolExecutor):
    """A pool of at most `count` processes. Each calls `prepare` with the arguments first, which must be picklable.

    A block that an error leaves ends the processes at once, also within their work. It raises OSError if one of them
    was killed.
    """

    def __init__(self, count: int, prepare: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        with _safe_start():  # multiprocessing starts a process of its own
            super().__init__(count, context, initializer=_begin, initargs=(prepare, arguments))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Let a process call a function. This starts the process if none is idle."""
        with _safe_start():
            return super().submit(fn, *args, **kwargs)

    def end(self) -> None:
        """End the processes at once, and drop the work that waits."""
        for process in [*(self._processes or {}).values()]:
            process.terminate()
        self.shutdown(cancel_futures=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind:
            self.end()
        else:
            self.shutdown()
        if isinstance(error, BrokenProcessPool):
            raise OSError("a worker process was killed, as by a machine without free memory") from None


@contextmanager
def _safe_start() -> Iterator[None]:
    """Let the processes that start in the block import nothing from the working folder, and get no Ctrl-C.

    `multiprocessing` starts them by `python -c`, which would put the working folder first on the import path.
    """
    safe = {"PYTHONSAFEPATH": "1", "PYTHONPATH": import_path()}
    before = {name: os.environ[name] for name in safe if name in os.environ}
    with interrupts_blocked():
        os.environ.update(safe)
        try:
            yield
        finally:
            for name in safe:
                del os.environ[name]
            os.environ.update(before)


def _begin(prepare: Callable[..., None], arguments: tuple[object, ...]) -> None:
    """Leave Ctrl-C to the parent, end with it, and prepare this process for its work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare(*arguments)


def _end_with_parent() -> None:
    """Wait for the end of the parent. The queue of the pool does not end with it: its readers can write to it, too."""
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)
