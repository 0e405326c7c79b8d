"""Forms of attention, measured: time and memory against the length, and the loss of a small model with each.

The costs of all forms at one length are measured in turn, and are one entry of results.json. Each training is another.
"""

import sys
import time
from pathlib import Path

from transduce.data.text import file_sha256
from transduce.evaluation.study_report import write_report
from transduce.studies import attention_costs, attention_models
from transduce.studies.attention_report import report
from transduce.studies.results import Results, open_results
from transduce.studies.schedule import exclusive_folder
from transduce.training.halves import threads


def run_attention(train: Path, valid: Path, out: Path) -> Results:
    """Measure and train what is not yet in OUT/results.json, and write the report.

    train, valid: texts whose lines follow one another. It runs on the CPU, with torch's number of threads. An
    interrupted training starts again. Raises UserError if `out` has other results, or for an unusable text.
    """
    settings = {
        "training text": file_sha256(train), "validation text": file_sha256(valid),
        "lengths": list(attention_costs.LENGTHS), "steps": attention_models.STEPS, "length": attention_models.LENGTH,
    }  # fmt: skip
    results = open_results(out, "attention", settings)
    trainings = {f"{row.name}-{seed}": (row, seed) for row in attention_models.ROWS for seed in row.seeds}
    lengths = {f"costs-{n}": n for n in attention_costs.LENGTHS}
    names = [*trainings, *lengths]
    if all(map(results.is_done, names)):
        write_report(out, report(results), results.sessions)
        return results
    texts = attention_models.token_texts(train, valid)
    with exclusive_folder(results):
        results.start_session(names)
        try:
            for name, n in lengths.items():
                if not results.is_done(name):
                    _show(f"costs at n = {n:,} ...")
                    with threads(1):
                        results.record(name, "done", n=n, forms=attention_costs.measure(n))
            for name, (row, seed) in trainings.items():
                if not results.is_done(name):
                    figures = attention_models.train(row, seed, texts, _Progress(f"{row.title}, seed {seed}"))
                    results.record(name, "done", row=row.name, seed=seed, **figures)
        finally:
            write_report(out, report(results), results.sessions)
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
