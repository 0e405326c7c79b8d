"""Forms of attention, measured: time and memory against the length, and the loss of a small model with each.

The costs of all forms at one length are measured in turn, and are one entry of results.json. Each training is another.
"""

import sys
import time
from pathlib import Path

from transduce.evaluation.study_report import write_report
from transduce.studies import attention_costs, attention_models
from transduce.studies.attention_report import report
from transduce.studies.attention_sizes import SIZES, Sizes
from transduce.studies.results import Results, open_results
from transduce.studies.schedule import exclusive_folder
from transduce.studies.segments import hashes
from transduce.training.halves import threads
from transduce.training.signals import StopSignal


def run_attention(train: Path, valid: Path, out: Path, *, sizes: Sizes = SIZES) -> Results:
    """Measure and train what is not yet in OUT/results.json, and write the report.

    train, valid: texts whose lines follow one another. It runs on the CPU, with torch's number of threads. An
    interrupted training starts again. Raises UserError if `out` has results of other texts or sizes, or for an unusable
    text, and KeyboardInterrupt after a signal.
    """
    results = open_results(out, "attention", {**hashes(train, valid), "sizes": sizes.as_settings()})
    trainings = {f"{row.name}-{seed}": (row, seed) for row in attention_models.rows(sizes) for seed in row.seeds}
    lengths = {f"costs-{n}": n for n in sizes.lengths}
    names = [*trainings, *lengths]
    if all(map(results.is_done, names)):
        write_report(out, report(results), results.sessions)
        return results
    texts = attention_models.token_texts(train, valid, sizes)
    with exclusive_folder(results):
        results.start_session(names)
        try:
            with StopSignal() as stop:
                for name, n in lengths.items():
                    if not (results.is_done(name) or stop.is_requested):
                        _show(f"costs at n = {n:,} ...")
                        with threads(1):
                            costs = attention_costs.measure(n, sizes, stop)
                        if costs:
                            results.record(name, "done", n=n, forms=costs)
                for name, (row, seed) in trainings.items():
                    if not (results.is_done(name) or stop.is_requested):
                        progress = _Progress(f"{row.title}, seed {seed}")
                        figures = attention_models.train(row, seed, texts, sizes, stop, progress)
                        if figures:
                            results.record(name, "done", row=row.name, seed=seed, **figures)
        finally:
            write_report(out, report(results), results.sessions)
        if not all(map(results.is_done, names)):
            raise KeyboardInterrupt
    return results


class _Progress:
    """Prints the progress of a training to stderr."""

    def __init__(self, title: str) -> None:
        self.title, self.start = title, time.monotonic()
        _show(f"{title} ...")

    def __call__(self, step: int, loss: float) -> None:
        _show(f"{self.title}: step {step}, loss {loss:.3f}, {time.monotonic() - self.start:.0f} s")


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
