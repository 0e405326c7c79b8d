"""The progress of a job on stderr: a bar on a terminal, otherwise a line now and then, both with the time left."""

import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from transduce.config.recipes.auto import in_words
from transduce.console import best_effort_stderr

T = TypeVar("T")

SECONDS = {True: 0.5, False: 30.0}  # from one report to the next, on a terminal and elsewhere
SPEED_SECONDS = 1_800  # the bar averages the speed over this time, because it may move by whole portions


class JobProgress:
    """The progress of one step of a job, from `done` to `total` lines. As a context manager it shows the bar."""

    def __init__(self, step: str, total: int, done: int = 0) -> None:
        self._step = step
        self._total = total
        self._start = self._done = done
        console = Console(file=best_effort_stderr(), highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._is_shown = sys.stderr.isatty()
        self._bar = Progress(*columns, console=console, disable=not self._is_shown, speed_estimate_period=SPEED_SECONDS)
        self._task = self._bar.add_task(step, total=total, completed=done)

    def __enter__(self) -> "JobProgress":
        self._began = self._reported = time.monotonic()
        self._bar.start()
        if not self._is_shown:
            self._print("" if not self._done else f"{self._done:,} were done before")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._bar.update(self._task, completed=self._done)
        self._bar.stop()

    def advance(self, n: int = 1) -> None:
        """Count the next n lines."""
        self._done += n
        now = time.monotonic()
        if now - self._reported < SECONDS[self._is_shown]:
            return
        self._reported = now
        self._bar.update(self._task, completed=self._done)
        if not self._is_shown:
            minutes = (now - self._began) / 60 / (self._done - self._start) * (self._total - self._done)
            self._print(f"{self._done:,} done, about {in_words(minutes)} left")

    def _print(self, words: str) -> None:
        parts = [f"{self._step}: {self._total:,} lines", *([words] if words else [])]
        self._bar.console.print(", ".join(parts), markup=False)


def tracked(items: Iterable[T], step: str, total: int) -> Iterator[T]:
    """Yield the items, and show the progress."""
    with JobProgress(step, total) as progress:
        for item in items:
            yield item
            progress.advance()
