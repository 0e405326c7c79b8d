"""The history of a run from its log: its curves, its best evaluation, and whether the training still runs.

    log.jsonl -> curves -> state and progress

The report of the run draws it (`run_report.py`). This module does not import torch, whose import takes seconds.
"""

import bisect
import math
from dataclasses import dataclass
from pathlib import Path

from transduce.config.schema import Config
from transduce.errors import UserError
from transduce.evaluation.charts import Curve
from transduce.evaluation.page import duration
from transduce.storage.run_log import reports

_LARGEST = 1e99  # an axis cannot show larger values, nor values below 1 / _LARGEST: not finite, and 0

# Key in the log: name on the page, and digits after the decimal point (None: with an exponent).
FIGURES: dict[str, tuple[str, int | None]] = {
    "loss": ("training loss", 3),
    "valid_loss": ("validation loss", 3),
    "valid_perplexity": ("validation perplexity", 2),
    "valid_bleu": ("validation BLEU", 2),
    "valid_chrf": ("validation chrF", 2),
    "valid_f1": ("validation F1", 2),
    "valid_accuracy": ("validation accuracy, %", 2),
    "valid_macro_f1": ("validation macro F1, %", 2),
    "valid_word_errors": ("validation word errors, %", 2),
    "valid_word_perplexity": ("validation perplexity per word", 2),
    "valid_bits_per_character": ("validation bits per character", 3),
    "lr": ("learning rate", None),
    "gradient_norm": ("gradient norm", 3),
    "tokens_per_second": ("speed", 0),
}
_KEYS = (*FIGURES, "epoch", "seconds", "processor_share")


@dataclass(frozen=True)
class History:
    """The content of log.jsonl: a curve of each figure, and the skipped steps, each with its reason."""

    curves: dict[str, Curve]
    skipped: list[tuple[int, str]]
    last_step: int


def read_history(run: Path) -> History:
    """Return the content of RUN/log.jsonl, which a training may be writing. Raises UserError for a damaged line."""
    curves = {key: Curve() for key in _KEYS}
    skipped = []
    last = 0
    for number, line in enumerate(reports(run), start=1):
        step = line["step"]
        if not last <= step < 2**53:
            raise UserError(
                f"{run / 'log.jsonl'}:{number}: expected a step of at least {last}, not {step}; remove this line"
            )
        last = step
        if "skipped" in line:
            skipped.append((step, str(line["skipped"])))
        for key in line.keys() & curves.keys():
            curves[key].add(step, _finite(line[key]))
    return History(curves, skipped, last)


def _finite(value: object) -> float:
    """Return a value of the log as a number; nan if it is not a number, or is too large for an axis."""
    if not isinstance(value, int | float) or not abs(value) < _LARGEST:
        return math.nan
    return float(value) if abs(value) > 1 / _LARGEST else 0.0


def best_step(config: Config, history: History) -> int | None:
    """Return the step of the best evaluation by `train.best_by`; None without evaluations.

    Of several equal evaluations, the first one is the best.
    """
    by_loss = config.train.best_by == "loss"
    points = history.curves[f"valid_{config.train.best_by}"].finite()
    return min(points, key=lambda point: point[1] if by_loss else -point[1])[0] if points else None


def status(config: Config, history: History, silent_seconds: float) -> tuple[str, str]:
    """Return the state of the run in one or two words, and its progress.

    silent_seconds: time since the last report; inf if the training has ended.
    """
    best = best_step(config, history)
    step, total = history.last_step, config.train.max_steps
    progress = f"step {step:,} of {total:,}"
    if step == 0:
        return "No report yet", f"the first comes at step {min(config.train.log_every_steps, total):,} of {total:,}"
    if step >= total:
        return "Finished", progress
    steps = history.curves["valid_loss"].steps
    if best is not None and config.train.patience and len(steps) - bisect.bisect(steps, best) >= config.train.patience:
        return "Stopped early", f"{progress}: no better evaluation since step {best:,}"
    seconds_per_step = _seconds_per_step(history.curves["seconds"])
    if silent_seconds > max(600, 20 * seconds_per_step * config.train.log_every_steps):
        silence = f"no report for {duration(silent_seconds)}; " if silent_seconds < math.inf else ""
        return "Interrupted", f"{progress}; {silence}resume with train --resume"
    seconds_left = seconds_per_step * (total - step)
    return "Running", progress if math.isnan(seconds_left) else f"{progress}, {duration(seconds_left)} left"


def seconds_since_report(run: Path, now: float) -> float:
    """Return the seconds since the last report; inf if the model was saved after it.

    A training saves its model last, also when it is interrupted.
    """
    log, model = run / "log.jsonl", run / "model" / "manifest.json"
    if not log.exists():
        return 0.0
    reported_at = log.stat().st_mtime
    return math.inf if model.exists() and model.stat().st_mtime >= reported_at else now - reported_at


def _seconds_per_step(seconds: Curve, recent: int = 20) -> float:
    """Return the time of a step, from the newest `recent` reports; nan with fewer than two."""
    points = Curve(seconds.steps[-recent:], seconds.values[-recent:]).finite()
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return math.nan
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
