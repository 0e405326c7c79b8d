"""Run the rows of a study of small language models one by one in this process, and record them in results.json."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transduce.errors import UserError
from transduce.evaluation.page import duration
from transduce.studies.results import Results
from transduce.studies.schedule import exclusive_folder
from transduce.studies.segments import Sizes, Streams, read_streams

SEEDS = (1, 2, 3)

Figures = Callable[[str, int, Streams], dict[str, Any]]


def run_rows(rows: Sequence[str], texts: tuple[Path, Path], sizes: Sizes, results: Results, figures: Figures) -> None:
    """Train and evaluate the rows that are not done, each with all seeds.

    texts: for training and for the evaluation. figures: trains a row with a seed, and returns its figures.
    A row that raises UserError, as one that diverges does, is recorded as failed. An interrupted training starts again
    from its first step. Raises UserError at the end if trainings have failed.
    """
    names = {f"{row}-{seed}": (row, seed) for seed in SEEDS for row in rows}
    queue = [name for name in names if not results.is_done(name)]
    if not queue:
        _print(f"{results.path} has all {len(names)} trainings; there is nothing to do")
        return
    streams = read_streams(*texts, sizes)
    with exclusive_folder(results):
        results.start_session(list(names))
        for name in queue:
            row, seed = names[name]
            started_at, processor_started_at = time.monotonic(), time.process_time()
            try:
                values = figures(row, seed, streams)
            except UserError as problem:
                results.record(name, "failed", row=row, seed=seed, why=str(problem))
                _print(f"{name}: failed, {problem}")
                continue
            seconds, cpu_seconds = time.monotonic() - started_at, time.process_time() - processor_started_at
            cost = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)}
            results.record(name, "done", row=row, seed=seed, **values, **cost)
            n_done = sum(map(results.is_done, names))
            _print(f"{name}: {duration(seconds)}; {n_done} of {len(names)} trainings done")
    failures = [name for name in names if not results.is_done(name)]
    if failures:
        page = results.path.with_name("report.md")
        raise UserError(f"{len(failures)} of {len(names)} trainings failed: {', '.join(failures)}; see {page}")


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
