"""The progress of a job on stderr: a bar on a terminal, otherwise a line now and then, both with the time left."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from transduce.console import in_words
from transduce.training.progress import Progress

T = TypeVar("T")

SECONDS_OF_BAR, SECONDS_OF_LINES = 0.5, 30.0  # from one report to the next
SPEED_SECONDS = 1_800  # the bar averages the speed over this time, because it may move by whole portions


class JobProgress(Progress):
    """The progress of one step of a job, from line `start` to line `total`; None if that is unknown."""

    def __init__(self, step: str, total: int | None, start: int = 0) -> None:
        columns = (TextColumn(step), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        super().__init__(total, start, columns, transient=True, speed_estimate_period=SPEED_SECONDS)
        self._step = step
        self._n_lines = start
        self._reported_at = self.started_at
        self._interval = SECONDS_OF_LINES if self.bar.disable else SECONDS_OF_BAR

    def advance(self, n: int = 1) -> None:
        """Count the next n lines."""
        self._n_lines += n
        now = time.monotonic()
        if now - self._reported_at < self._interval:
            return
        self._reported_at = now
        self.bar.update(self.task, completed=self._n_lines)
        if self.bar.disable and self._n_lines != self.total:
            self.print_lines([self._line()])

    def _line(self) -> str:
        """Return the progress as a line of text."""
        if self.total is None:
            return f"{self._step}: {self._n_lines:,} lines"
        left = in_words(self.minutes_left(self._n_lines, self.total))
        return f"{self._step}: {self._n_lines:,} of {self.total:,} lines, about {left} left"


def tracked(items: Iterable[T], step: str, total: int | None) -> Iterator[T]:
    """Yield the items, and show the progress."""
    with JobProgress(step, total) as progress:
        for item in items:
            yield item
            progress.advance()
