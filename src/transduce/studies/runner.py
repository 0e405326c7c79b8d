"""Run the cells of a study, and record them in results.json.

    names that are not done -> cells -> execution -> endings -> results.json

A cell is a training or a measurement. An execution computes cells: `in_turn` in this process, `in_pool` in a pool of
processes, and `schedule.run_processes` as processes of `transduce train`. All else stands in `run_cells`: the lock of
the folder, the session, the record of each cell as soon as it ends, failures, and the end after a signal. To resume an
interrupted study, run the same command again: cells that are done stay.
"""

import math
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from transduce.data.system import locked
from transduce.data.tokenize_corpus import cores
from transduce.data.worker_pool import WorkerPool
from transduce.errors import NotFiniteError, UserError
from transduce.evaluation.page import duration
from transduce.evaluation.study_report import Report, write_report
from transduce.studies.results import Figures, Results, read_results
from transduce.training.signals import StopSignal

C = TypeVar("C")


@dataclass(frozen=True)
class CellTask:
    """A cell that is a function. origin: the first figures of its entry, such as row and seed.

    work: returns the other figures. Its UserError makes the cell fail.
    """

    name: str
    origin: Figures
    work: Callable[[], Figures]


@dataclass(frozen=True)
class Ending:
    """How a cell has ended: done with its figures, failed with a problem, or interrupted, without both.

    words: the end in words, for a cell that has not failed.
    """

    name: str
    origin: Figures
    figures: Figures | None = None
    problem: str | None = None
    has_diverged: bool = False
    words: str = ""


@dataclass(frozen=True)
class Control:
    """What an execution has from the runner.

    lock: the number of an open file; a process that inherits it keeps the folder locked. stop: whether a signal has
    come.
    """

    lock: int
    stop: StopSignal
    status: "StatusLine"


Endings = Generator[Ending, None, None]
Execution = Callable[[list[C], Control], Endings]


def run_cells(
    names: Sequence[str],
    make: Callable[[list[str]], list[C]],
    execute: Execution[C],
    results: Results,
    *,
    advice: str | None = None,
    again: Mapping[str, Callable[[], None]] | None = None,
) -> None:
    """Compute and record the cells that are not done, in the folder of `results.path`.

    make: returns the cells of the names that are not done. advice: the end of the message about failed cells; None: no
    error for them. again: the cells that are computed again, each with a function that removes its earlier files.

    A failed cell is recorded, and the others continue. After SIGINT, SIGTERM or SIGHUP the running cells end; a second
    SIGINT or SIGTERM ends the study at once.
    Raises UserError before the first cell if another study runs in the folder, and at the end if cells have failed.
    Raises KeyboardInterrupt after a signal.
    """
    discards = again or {}
    queue = [name for name in names if name in discards or not results.is_done(name)]
    if not queue:
        print_line(f"{results.path} has all {len(names)} entries; there is nothing to do")
        return
    cells = make(queue)
    failed = []
    with exclusive_folder(results) as lock, StopSignal() as stop, closing(StatusLine()) as status:
        for name, discard in discards.items():
            discard()
            results.entries[name] = {"status": "not run"}
        results.start_session(names)
        with closing(execute(cells, Control(lock, stop, status))) as endings:
            for ending in endings:
                if ending.problem:
                    failed.append(ending.name)
                status.print(_record(ending, names, results))
    if stop.is_requested:
        raise KeyboardInterrupt
    if failed and advice:
        raise UserError(f"{len(failed)} of {len(names)} trainings failed: {', '.join(failed)}; {advice}")


def run_tasks(
    names: Sequence[str],
    prepare: Callable[[], Sequence[CellTask]],
    execute: Execution[CellTask],
    results: Results,
    report: Callable[[Results], Report],
) -> Results:
    """Compute and record the tasks that are not done, write the report, and return the results.

    names: of all tasks. prepare: reads the texts if a task is not done, and returns all tasks in the order of their
    execution. Raises the errors of `run_cells`.
    """

    def make(queue: list[str]) -> list[CellTask]:
        return [task for task in prepare() if task.name in queue]

    with reported(results, report):
        run_cells(names, make, execute, results, advice=f"see {results.path.parent / 'report.md'}")
    return results


def _record(ending: Ending, names: Sequence[str], results: Results) -> str:
    """Record how a cell has ended, and return it in words. names: of all cells."""
    if ending.problem:
        diverged = {"diverged": True} if ending.has_diverged else {}
        results.record(ending.name, "failed", **ending.origin, why=ending.problem, **diverged)
        return f"{ending.name}: failed, {ending.problem}"
    if ending.figures is None:
        return f"{ending.name}: {ending.words}"
    results.record(ending.name, "done", **ending.origin, **ending.figures)
    return f"{ending.name}: {ending.words}; {sum(map(results.is_done, names))} of {len(names)} done"


@contextmanager
def exclusive_folder(results: Results) -> Iterator[int]:
    """Lock the folder of `results` against other studies until we and all our processes have ended.

    Raises UserError if another study runs there, or has run there since `results` were read.
    """
    out = results.path.parent
    (out / "runs").mkdir(parents=True, exist_ok=True)
    remedy = "wait for the other study, end it and its trainings, or give another --out"
    with locked(out / "runs", f"{out}: expected a folder that no other study uses; {remedy}") as lock:
        if results.path.exists() and read_results(results.path, results.study).entries != results.entries:
            raise UserError(f"{results.path}: expected a file that no other study changes; run the command again")
        yield lock


@contextmanager
def reported(results: Results, report: Callable[[Results], Report]) -> Iterator[None]:
    """Write the report of the results at the end, also after an error. Without any entry there is no report."""
    try:
        yield
    finally:
        if results.entries:
            write_report(results.path.parent, report(results), results.sessions)


# ---- executions --------------------------------------------------------------------------------------------------


def timed(work: Callable[..., Figures], *arguments: object) -> Figures:
    """Return the figures of `work`, with the seconds by the clock and of processor time that it took."""
    started_at = time.monotonic()
    processor_started_at = time.process_time()
    figures = work(*arguments)
    seconds = time.monotonic() - started_at
    cpu_seconds = time.process_time() - processor_started_at
    return {**figures, "seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)}


def in_turn(tasks: Sequence[CellTask], control: Control) -> Endings:
    """Compute tasks one after the other, in this process. A signal raises KeyboardInterrupt within a task."""
    for task in tasks:
        if control.stop.is_requested:
            return
        control.status.print(f"{task.name} ...")
        control.stop.interrupts = True
        ending = _compute(task)
        control.stop.interrupts = False
        yield ending


def in_pool(jobs: int | None) -> Execution[CellTask]:
    """Return the execution of tasks in `jobs` processes of one thread each; None: one process for each core.

    A process and not a thread, because dropout draws from torch's one generator. One job has its process too, so that a
    signal ends it as it ends several. A task must be picklable. An interrupted one starts again from its beginning.
    The execution raises UserError if one of its processes is killed.
    """

    def execute(tasks: Sequence[CellTask], control: Control) -> Endings:
        with WorkerPool(min(jobs or cores(), len(tasks)), _use_one_thread) as pool:
            waiting = {pool.submit(_compute, task) for task in tasks}
            try:
                while waiting and not control.stop.is_requested:
                    ended, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                    for future in ended:
                        yield future.result()
                if waiting:
                    pool.end()
            except BrokenProcessPool:
                raise UserError(
                    "the process of a training was killed, as by a machine without free memory; run the same command "
                    "again, with a smaller --jobs"
                ) from None

    return execute


def _compute(task: CellTask) -> Ending:
    """Return the ending of a task. Of a problem of several lines it has the first."""
    try:
        figures = task.work()
    except UserError as problem:
        first_line = str(problem).splitlines()[0]
        return Ending(task.name, task.origin, None, first_line, isinstance(problem, NotFiniteError))
    words = duration(figures["seconds"]) if "seconds" in figures else "measured"
    return Ending(task.name, task.origin, figures, words=words)


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


# ---- messages ----------------------------------------------------------------------------------------------------


class StatusLine:
    """The state of a study on stderr: one line that is overwritten on a terminal, otherwise a new line every minute."""

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()
        self.last_shown = -math.inf

    def print(self, line: str) -> None:
        """Print a line that is not overwritten."""
        self.close()
        print_line(line)
        self.last_shown = -math.inf

    def show(self, state: Callable[[], str]) -> None:
        """Print the state if the last one is at least 1 s old on a terminal, or 60 s elsewhere."""
        if time.monotonic() - self.last_shown < (1 if self.is_terminal else 60):
            return
        self.last_shown = time.monotonic()
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{state()[:width]:<{width}}", end="", file=sys.stderr, flush=True)
        else:
            print_line(state())

    def close(self) -> None:
        """Clear the line."""
        if self.is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def print_line(line: str) -> None:
    """Print a line to stderr."""
    print(line, file=sys.stderr, flush=True)
