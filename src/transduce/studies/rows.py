"""Run the rows of a study of small language models, and record them in results.json."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import torch

from transduce.errors import UserError
from transduce.evaluation.page import duration
from transduce.studies.results import Results, cores
from transduce.studies.schedule import exclusive_folder
from transduce.studies.segments import Sizes, Streams, read_streams
from transduce.training.signals import StopSignal

SEEDS = (1, 2, 3)

Figures = Callable[[str, int, Streams], dict[str, Any]]
Outcome = dict[str, Any] | UserError


def run_rows(
    rows: Sequence[str],
    texts: tuple[Path, Path],
    sizes: Sizes,
    results: Results,
    figures: Figures,
    jobs: int | None = None,
) -> None:
    """Train and evaluate the rows that are not done, each with all seeds.

    texts: for training and for the evaluation. figures: trains a row with a seed, and returns its figures; it is sent
    to other processes, so it must be picklable. jobs: number of trainings at a time; None: one for each core.
    A row that raises UserError, as one that diverges does, is recorded as failed. An interrupted training starts again
    from its first step. Raises UserError at the end if trainings have failed, and if one was killed. Raises
    KeyboardInterrupt after a signal.
    """
    names = {f"{row}-{seed}": (row, seed) for seed in SEEDS for row in rows}
    queue = [name for name in names if not results.is_done(name)]
    if not queue:
        _print(f"{results.path} has all {len(names)} trainings; there is nothing to do")
        return
    streams = read_streams(*texts, sizes)
    with exclusive_folder(results):
        results.start_session(list(names))
        tasks = {name: partial(_timed, figures, *names[name], streams) for name in queue}
        for name, outcome in _outcomes(tasks, min(jobs or cores(), len(queue))):
            row, seed = names[name]
            if isinstance(outcome, UserError):
                results.record(name, "failed", row=row, seed=seed, why=str(outcome))
                _print(f"{name}: failed, {outcome}")
                continue
            results.record(name, "done", row=row, seed=seed, **outcome)
            n_done = sum(map(results.is_done, names))
            _print(f"{name}: {duration(outcome['seconds'])}; {n_done} of {len(names)} trainings done")
    failures = [name for name in names if not results.is_done(name)]
    if failures:
        page = results.path.with_name("report.md")
        raise UserError(f"{len(failures)} of {len(names)} trainings failed: {', '.join(failures)}; see {page}")


def _timed(figures: Figures, row: str, seed: int, streams: Streams) -> Outcome:
    """Return the figures of a training with its times, or its problem."""
    started_at, processor_started_at = time.monotonic(), time.process_time()
    try:
        values = figures(row, seed, streams)
    except UserError as problem:
        return problem
    seconds, cpu_seconds = time.monotonic() - started_at, time.process_time() - processor_started_at
    return {**values, "seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)}


def _outcomes(tasks: dict[str, Callable[[], Outcome]], jobs: int) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcome of each task as it ends, from `jobs` processes of one thread each.

    A process and not a thread, because dropout draws from torch's one generator. One job has its process too, so that a
    signal ends it as it ends several.
    """
    context = multiprocessing.get_context("spawn")
    with StopSignal() as stop, ProcessPoolExecutor(jobs, context, initializer=_prepare_process) as pool:
        waiting = {pool.submit(task): name for name, task in tasks.items()}
        try:
            while waiting and not stop.is_requested:
                for future in wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool:
            raise UserError(
                "the process of a training was killed, as by a machine without free memory; run the same command "
                "again, with a smaller --jobs"
            ) from None
        finally:
            if waiting:
                for process in multiprocessing.active_children():
                    process.terminate()
    if waiting:
        raise KeyboardInterrupt


def _prepare_process() -> None:
    """Let this process have one thread, leave Ctrl-C to its parent, and end with it."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
