"""What a person sees while a model trains: on a terminal a live line, elsewhere one line a report. All on stderr."""

import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """The progress of a run of `total` steps, of which `done` are done. As a context: the bar is shown.

    quiet: show nothing, since another process does.
    """

    def __init__(self, total: int, done: int, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)
        self.total, self.first, self.started_at = total, done, time.monotonic()
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.bar = Bar(*columns, console=self.console, disable=quiet or not sys.stderr.isatty())
        self.task = self.bar.add_task("", total=total, completed=done)

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def say(self, lines: list[str]) -> None:
        """Print lines above the bar."""
        for line in lines:
            self.console.print(line, markup=False)

    def advance(self, step: int) -> None:
        """Move the bar to `step`."""
        self.bar.update(self.task, completed=step)

    def report(self, step: int, report: dict[str, Any]) -> None:
        """Show loss, learning rate and speed; off a terminal, as a line of its own with the time left."""
        shown = f"loss {report['loss']:.3f}  lr {report['lr']:.2e}  {report['tokens_per_second']:,} tokens/s"
        self.bar.update(self.task, description=shown)
        if self.bar.disable:
            left = (time.monotonic() - self.started_at) / (step - self.first) * (self.total - step)
            self.say([f"step {step:,}/{self.total:,}  {shown}  {left / 60:.1f} min left"])

    def evaluated(self, step: int, scores: dict[str, float], is_best: bool) -> None:
        """Print the scores on the validation text."""
        best = "  (best so far)" if is_best else ""
        self.say([f"step {step:,}: validation {in_words(scores)}{best}"])


def in_words(scores: dict[str, float]) -> str:
    """Loss, perplexity and BLEU on the validation text."""
    return f"loss {scores['loss']:.3f}, perplexity {scores['perplexity']:.2f}, BLEU {scores['bleu']:.1f}"
