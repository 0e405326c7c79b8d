"""Run the trainings of a study side by side, and report their progress.

    trainings -> processes, `jobs` at a time -> results.json

Each job has one GPU to itself, or an equal share of the cores on a machine without GPUs. To resume an interrupted
study, run the same command again: finished trainings stay, and the other trainings resume from their checkpoints. When
all trainings have finished, the study does not need OUT/runs any more.
"""

import fcntl
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from transduce.config.schema import Config
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.evaluation.page import duration
from transduce.studies.entries import changes_since
from transduce.studies.results import Results, cores, read_results, visible_gpus
from transduce.studies.texts import TrainingData
from transduce.studies.trainings import Training, TrainingProcess, remove_training
from transduce.training.signals import StopSignal


def run_trainings(
    trainings: Sequence[Training],
    data: TrainingData,
    results: Results,
    *,
    jobs: int | None = None,
    rerun: bool = False,
    other_data: Mapping[str, TrainingData] | None = None,
) -> None:
    """Train and evaluate the `trainings` that are not done, in their order, in the folder of `results.path`.

    other_data: by the names of the rows that have data of their own. rerun: train also those whose settings have
    changed since their entry. jobs: number of trainings at a time; None means one on each GPU, or one on a machine
    without.
    results.json has the figures of a training as soon as it has ended. A failed training is noted there and on stderr,
    and the other trainings continue. After SIGINT or SIGTERM the trainings save and end. A second signal ends the study
    at once.
    Raises UserError before the first training if a training is wrong, if another study runs in the same folder, or if
    the settings of a done entry have changed.
    Raises UserError at the end if trainings have failed. Raises KeyboardInterrupt after a signal.
    """
    runs = results.path.parent / "runs"
    if not rerun:
        refuse_outdated(trainings, results)
    outdated = outdated_trainings(trainings, results)
    queue = [
        TrainingProcess(one, (other_data or {}).get(one.row, data), runs / one.name)
        for one in trainings
        if not results.is_done(one.name) or one.name in outdated
    ]
    if not queue:
        _print_line(f"{results.path} has all {len(trainings)} trainings; there is nothing to do")
        return
    schedule = Schedule(queue, _environments(jobs, len(queue)), results)
    estimate = TimeEstimate(trainings, results, len(schedule.environments))
    with exclusive_folder(results) as lock, StopSignal() as stop, StatusLine() as status:
        for training in trainings:
            if training.name in outdated:
                if changes_since(results.entries[training.name], training.config()):
                    remove_training(runs / training.name)
                results.entries[training.name] = {"status": "not run"}
        results.start_session([one.name for one in trainings])
        schedule.run(lock, stop, status, estimate)
    if stop.is_requested:
        raise KeyboardInterrupt
    if schedule.failures:
        raise UserError(
            f"{len(schedule.failures)} of {len(trainings)} trainings failed: {', '.join(schedule.failures)}; see their "
            f"logs in {runs}, then run the same command again (to train from step 0, remove their folders there first)"
        )


def refuse_outdated(trainings: Sequence[Training], results: Results) -> None:
    """Raise UserError if the settings of a training have changed since its entry."""
    outdated = outdated_trainings(trainings, results)
    names: dict[str, list[str]] = {}
    for name, changes in outdated.items():
        names.setdefault(", ".join(changes), []).append(name)
    if outdated:
        raise UserError(
            f"{results.path}: expected the settings of today's recipes; undo the change, give another --out, or select "
            "these rows and train them again with --rerun:\n"
            + "\n".join(f"  {', '.join(group)}: {changes}" for changes, group in names.items())
        )


def outdated_trainings(trainings: Sequence[Training], results: Results) -> dict[str, list[str]]:
    """Return by name the done trainings whose settings have changed since their entry, with a line for each setting.

    The steps of the points of a training count as a setting. A training needs only new evaluations if they change.
    """
    changes = {}
    for training in trainings:
        if results.is_done(training.name):
            entry = results.entries[training.name]
            changes[training.name] = changes_since(entry, training.config())
            before = [point["step"] for point in entry.get("points", [])]
            now = [point.step for point in training.points]
            if now and before != now:
                changes[training.name].append(f"evaluated at steps {before} then, {now} now")
    return {name: lines for name, lines in changes.items() if lines}


class Schedule:
    """The waiting and the running trainings of a study.

    queue: trainings that have not started. environments: variables of free jobs. running: trainings with a process.
    failures: names of failed trainings.
    """

    def __init__(self, queue: list[TrainingProcess], environments: list[dict[str, str]], results: Results) -> None:
        self.queue = queue
        self.environments = environments
        self.results = results
        self.running: list[TrainingProcess] = []
        self.failures: list[str] = []

    def run(self, lock: IO[bytes], stop: StopSignal, status: "StatusLine", estimate: "TimeEstimate") -> None:
        """Run the trainings until all have ended, or until the running ones have ended after a signal.

        An error of the study itself, such as a full disk, is raised after the running trainings have saved and ended.
        """
        try:
            while self.running or (self.queue and not stop.is_requested):
                if stop.is_requested:
                    self.stop()
                else:
                    self.start_next(lock)
                for outcome in self.record_endings():
                    status.print(outcome)
                if self.running:
                    status.show(lambda: estimate.in_words(self.running, self.queue))
                time.sleep(0.1)
        except Exception:
            self.stop()
            for process in self.running:
                process.process.wait()
            raise

    def start_next(self, lock: IO[bytes]) -> None:
        """Start a training in every free environment, as long as the queue has one."""
        while self.queue and self.environments:
            self.running.append(self.queue.pop(0))
            self.running[-1].start(self.environments.pop(0), lock)

    def stop(self) -> None:
        """Send SIGTERM to all running trainings."""
        for process in self.running:
            process.stop()

    def record_endings(self) -> Iterator[str]:
        """Record every training that has ended in results.json, and yield a line on its outcome."""
        for process in [*self.running]:
            if not process.poll():
                continue
            self.running.remove(process)
            self.environments.append(process.environment)
            yield process.outcome()
            if process.problem:
                self.failures.append(process.name)
                diverged = {"diverged": True} if process.has_diverged else {}
                self.results.record(process.name, "failed", **process.origin(), why=process.problem, **diverged)
            elif process.is_done:
                self.results.record(process.name, "done", **process.origin(), **process.figures())


def _environments(jobs: int | None, trainings: int) -> list[dict[str, str]]:
    """Return the environment variables of each job: one of the GPUs, if there are any, and an equal share of cores."""
    gpus = visible_gpus()
    count = min(jobs or len(gpus) or 1, trainings)
    common = {"OMP_NUM_THREADS": str(max(1, cores() // count)), **os.environ}
    return [{**common, **({"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} if gpus else {})} for i in range(count)]


@contextmanager
def exclusive_folder(results: Results) -> Iterator[IO[bytes]]:
    """Lock the folder of `results` against other studies until we and all our processes have ended.

    Raises UserError if another study runs there, or has run there since `results` were read.
    """
    out = results.path.parent
    (out / "runs").mkdir(parents=True, exist_ok=True)
    with (out / "runs" / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{out}: expected a folder that no other study uses; wait for the other study, end it and its "
                "trainings, or give another --out"
            ) from None
        if results.path.exists() and read_results(results.path).entries != results.entries:
            raise UserError(f"{results.path}: expected a file that no other study changes; run the command again")
        yield lock


# ---- progress ----------------------------------------------------------------------------------------------------


class TimeEstimate:
    """An estimate of the remaining time of a study, from the time and the work of its trainings so far.

    jobs: number of trainings at a time.
    """

    def __init__(self, trainings: Sequence[Training], results: Results, jobs: int) -> None:
        self.results = results
        self.jobs = jobs
        self.work = {training.name: _operations(training.config()) for training in trainings}

    def in_words(self, running: Sequence[TrainingProcess], queue: Sequence[TrainingProcess]) -> str:
        """Return `3 of 26 trainings done; base-2 step 400 of 900, h1-1 evaluating; about 43 min left`."""
        count = sum(map(self.results.is_done, self.work))
        states = ", ".join(process.state() for process in running)
        return f"{count} of {len(self.work)} trainings done; {states}{self._time_left(running, queue)}"

    def _time_left(self, running: Sequence[TrainingProcess], queue: Sequence[TrainingProcess]) -> str:
        names = [name for name in self.work if self.results.is_done(name)]
        seconds = sum(self.results.entries[name]["seconds"] for name in names)
        operations = sum(self.work[name] for name in names)
        if not names:  # use the running trainings
            seconds = sum(process.training_seconds() for process in running)
            operations = sum(self.work[process.name] * process.fraction_done() for process in running)
        if not operations:
            return ""
        remaining = [self.work[process.name] * (1 - process.fraction_done()) for process in running]
        waiting = sum(self.work[process.name] for process in queue)
        longest = max((sum(remaining) + waiting) / self.jobs, *remaining, 0.0)
        return f"; about {duration(longest * seconds / operations)} left"


def _operations(config: Config) -> float:
    """Return the work of a training in an arbitrary unit: steps x tokens per batch x parameters."""
    size = parameter_count(config.model, config.model.vocab_size or config.data.vocab_size)
    return float(config.train.max_steps * config.data.batch_tokens * size)


class StatusLine:
    """The state of a study on stderr: one line that is overwritten on a terminal, otherwise a new line every minute."""

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()
        self.last_shown = -math.inf

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def print(self, line: str) -> None:
        """Print a line that is not overwritten."""
        self._clear()
        _print_line(line)
        self.last_shown = -math.inf

    def show(self, state: Callable[[], str]) -> None:
        """Print the state if the last one is at least 1 s old on a terminal, or 60 s elsewhere."""
        if time.monotonic() - self.last_shown < (1 if self.is_terminal else 60):
            return
        self.last_shown = time.monotonic()
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{state()[:width]}", end="", file=sys.stderr, flush=True)
        else:
            _print_line(state())

    def _clear(self) -> None:
        if self.is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
