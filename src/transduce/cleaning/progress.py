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
    """The progress of one step of a job, from `done` to `total` lines. As a context manager it shows the bar.

    total: None if it is unknown.
    """

    def __init__(self, step: str, total: int | None, done: int = 0) -> None:
        self._step = step
        self._total = total
        self._start = self._done = done
        self._began = self._reported = time.monotonic()
        self._is_shown = sys.stderr.isatty()
        self._bar = Progress(
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
            console=Console(file=best_effort_stderr(), highlight=False, soft_wrap=True),
            transient=True,
            disable=not self._is_shown,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._task = self._bar.add_task(step, total=total, completed=done)

    def __enter__(self) -> "JobProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, n: int = 1) -> None:
        """Count the next n lines."""
        self._done += n
        now = time.monotonic()
        if now - self._reported < SECONDS[self._is_shown]:
            return
        self._reported = now
        self._bar.update(self._task, completed=self._done)
        if not self._is_shown and self._done != self._total:
            self._bar.console.print(self._line(now - self._began), markup=False)

    def _line(self, seconds: float) -> str:
        """Return the progress as a line of text. seconds: since the start."""
        if self._total is None:
            return f"{self._step}: {self._done:,} lines"
        minutes = seconds / 60 / (self._done - self._start) * (self._total - self._done)
        return f"{self._step}: {self._done:,} of {self._total:,} lines, about {in_words(minutes)} left"


def tracked(items: Iterable[T], step: str, total: int | None) -> Iterator[T]:
    """Yield the items, and show the progress."""
    with JobProgress(step, total) as progress:
        for item in items:
            yield item
            progress.advance()
