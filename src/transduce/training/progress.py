"""The progress of a training on stderr: a live bar on a terminal, otherwise one line per report.

A line that cannot be written is dropped, and the training continues.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from transduce.console import best_effort_stderr, printable

BUSY = 0.5  # below this share of the processor time that its threads could have, other programs use the machine


def print_lines(lines: Sequence[str]) -> None:
    """Print lines before the progress of a run begins."""
    console = Console(file=best_effort_stderr(), highlight=False, soft_wrap=True)
    for line in lines:
        console.print(printable(line, keep="\n"), markup=False)


Self = TypeVar("Self", bound="Progress")


class Progress:
    """Progress from `start` to `total`, with a bar on a terminal. As a context manager it shows the bar.

    total: None if it is unknown. columns: of the bar. quiet: print nothing. settings: of the bar.
    """

    def __init__(
        self, total: int | None, start: int, columns: Sequence[ProgressColumn], *, quiet: bool = False, **settings: Any
    ) -> None:
        self.console = Console(file=best_effort_stderr(), highlight=False, soft_wrap=True, quiet=quiet)
        self.total = total
        self.start = start
        self.started_at = time.monotonic()
        is_shown = not quiet and sys.stderr.isatty()
        self.bar = Bar(*columns, console=self.console, disable=not is_shown, **settings)
        self.task = self.bar.add_task("", total=total, completed=start)

    def __enter__(self: Self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def print_lines(self, lines: Sequence[str]) -> None:
        """Print lines above the bar."""
        for line in lines:
            self.console.print(printable(line, keep="\n"), markup=False)

    def minutes_left(self, done: int, total: int) -> float:
        """Return the minutes until `total`, at the mean speed from the start to `done`."""
        return (time.monotonic() - self.started_at) / 60 / (done - self.start) * (total - done)


class TrainingProgress(Progress):
    """The progress of a run, from step `start` to step `steps`. unit: of its speed. quiet: another rank prints."""

    def __init__(self, steps: int, start: int, unit: str = "tokens", *, quiet: bool = False) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        super().__init__(steps, start, columns, quiet=quiet)
        self.steps = steps
        self.unit = unit

    def advance(self, step: int) -> None:
        """Move the bar to `step`."""
        self.bar.update(self.task, completed=step)

    def report(self, step: int, report: Mapping[str, float]) -> None:
        """Print loss, learning rate and speed: next to the bar, or as a line with the time left if there is no bar."""
        speed = f"{report['tokens_per_second']:,} {self.unit}/s"
        figures = f"loss {report['loss']:.3f}  lr {report['lr']:.2e}  {speed}"
        if report.get("processor_share", 1) < BUSY:
            figures += f"  (machine busy: {report['processor_share']:.0%} of the processor time)"
        self.bar.update(self.task, description=figures)
        if self.bar.disable:
            minutes = self.minutes_left(step, self.steps)
            self.print_lines([f"step {step:,}/{self.steps:,}  {figures}  {minutes:.1f} min left"])

    def report_scores(self, step: int, scores: dict[str, float], is_best: bool) -> None:
        """Print the scores on the validation text."""
        best = "  (best so far)" if is_best else ""
        self.print_lines([f"step {step:,}: validation {format_scores(scores)}{best}"])


SCORE_FORMATS = {
    "loss": "loss {:.3f}",
    "perplexity": "perplexity {:.2f}",
    "bleu": "BLEU {:.1f}",
    "chrf": "chrF {:.1f}",
    "f1": "F1 {:.2f}",
    "accuracy": "accuracy {:.1f} %",
    "word_errors": "word errors {:.1f} %",
    "macro_f1": "macro F1 {:.1f} %",
    "word_perplexity": "perplexity per word {:.2f}",
    "bits_per_character": "bits per character {:.3f}",
}


OLD = "old_"  # begins the names of scores on the old validation text of a fine-tuned model


def format_scores(scores: Mapping[str, float]) -> str:
    """Return the scores of an evaluation as words, in their order. A task may have scores without a format here."""
    words = [
        SCORE_FORMATS.get(name, name + " {:.3f}").format(value)
        for name, value in scores.items()
        if not name.startswith(OLD)
    ]
    old = scores_on_old(scores)
    return ", ".join(words) + (f"; old text: {format_scores(old)}" if old else "")


def scores_on_old(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores on the old validation text, by their names without `OLD`."""
    return {name.removeprefix(OLD): value for name, value in scores.items() if name.startswith(OLD)}
