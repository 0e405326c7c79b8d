"""Run the trainings of a study side by side, each as processes of `transduce`, and report their progress.

    trainings -> processes, `jobs` at a time -> results.json

Each job has one GPU to itself, or an equal share of the cores on a machine without GPUs. An interrupted training
resumes from its checkpoint. When all trainings have finished, the study does not need OUT/runs any more.
"""

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial

from transduce.config.schema import Config
from transduce.data.tokenize_corpus import cores
from transduce.errors import UserError
from transduce.evaluation.model_size import parameter_count
from transduce.evaluation.page import duration
from transduce.studies.results import Results, changes_since, visible_gpus
from transduce.studies.runner import Control, Endings, run_cells
from transduce.studies.trainings import Texts, Training, TrainingProcess, remove_training


def run_trainings(
    trainings: Sequence[Training],
    data: Texts,
    results: Results,
    *,
    jobs: int | None = None,
    rerun: bool = False,
    other_data: Mapping[str, Texts] | None = None,
) -> None:
    """Train and evaluate the `trainings` that are not done, in their order, in the folder of `results.path`.

    other_data: by the names of the rows that have separate data. rerun: train also those whose settings have changed
    since their entry. jobs: number of trainings at a time; None means one on each GPU, or one on a machine without.
    After a signal the trainings save and end.
    Raises UserError before the first training if a training is wrong, or if the settings of a done entry have changed.
    Raises the errors of `runner.run_cells`, too.
    """
    runs = results.path.parent / "runs"
    if not rerun:
        refuse_outdated(trainings, results)
    by_name = {training.name: training for training in trainings}
    estimate = TimeEstimate(trainings, results)

    def make(names: list[str]) -> list[TrainingProcess]:
        of_rows = other_data or {}
        return [TrainingProcess(by_name[name], of_rows.get(by_name[name].row, data), runs / name) for name in names]

    def execute(queue: list[TrainingProcess], control: Control) -> Endings:
        return run_processes(queue, _environments(jobs, len(queue)), control, estimate)

    def discard(name: str) -> None:
        if changes_since(results.entries[name], by_name[name].config()):
            remove_training(runs / name)

    again = {name: partial(discard, name) for name in outdated_trainings(trainings, results)}
    advice = f"see their logs in {runs}, then run the same command again (to train from step 0, remove their folders "
    advice += "there first)"
    run_cells([*by_name], make, execute, results, advice=advice, again=again)


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


def run_processes(
    queue: list[TrainingProcess], environments: list[dict[str, str]], control: Control, estimate: "TimeEstimate"
) -> Endings:
    """Run trainings until all have ended, or until the running ones have ended after a signal.

    environments: the variables of each job. After an error of the study itself, such as a full disk, the running
    trainings save and end.
    """
    running: list[TrainingProcess] = []
    stop, jobs = control.stop, len(environments)

    def end() -> None:
        for process in running:
            process.stop()

    try:
        while running or (queue and not stop.is_requested):
            if stop.is_requested:
                end()
            while queue and environments and not stop.is_requested:
                running.append(queue.pop(0))
                running[-1].start(environments.pop(0), control.lock)
            for process in filter(TrainingProcess.poll, [*running]):
                running.remove(process)
                environments.append(process.environment)
                yield process.ending()
            if running:
                control.status.show(lambda: estimate.in_words(running, queue, jobs))
            time.sleep(0.1)
    except (Exception, GeneratorExit):
        end()
        for process in running:
            process.process.wait()
        raise


def _environments(jobs: int | None, trainings: int) -> list[dict[str, str]]:
    """Return the environment variables of each job: one of the GPUs, if there are any, and an equal share of cores."""
    gpus = visible_gpus()
    count = min(jobs or len(gpus) or 1, trainings)
    common = {"OMP_NUM_THREADS": str(max(1, cores() // count)), **os.environ}
    return [{**common, **({"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} if gpus else {})} for i in range(count)]


class TimeEstimate:
    """An estimate of the remaining time of a study, from the time and the work of its trainings so far."""

    def __init__(self, trainings: Sequence[Training], results: Results) -> None:
        self.results = results
        self.work = {training.name: _operations(training.config()) for training in trainings}

    def in_words(self, running: Sequence[TrainingProcess], queue: Sequence[TrainingProcess], jobs: int) -> str:
        """Return `3 of 26 trainings done; base-2 step 400 of 900, h1-1 evaluating; about 43 min left`.

        jobs: number of trainings at a time.
        """
        done = [name for name in self.work if self.results.is_done(name)]
        states = ", ".join(process.state() for process in running)
        words = f"{len(done)} of {len(self.work)} trainings done; {states}"
        seconds = sum(self.results.entries[name]["seconds"] for name in done)
        seconds += sum(process.training_seconds() for process in running)
        operations = sum(self.work[name] for name in done)
        operations += sum(self.work[process.name] * process.fraction_done() for process in running)
        if not operations:
            return words
        remaining = [self.work[process.name] * (1 - process.fraction_done()) for process in running]
        waiting = sum(self.work[process.name] for process in queue)
        longest = max((sum(remaining) + waiting) / jobs, *remaining, 0.0)
        return f"{words}; about {duration(longest * seconds / operations)} left"


def _operations(config: Config) -> float:
    """Return the work of a training in an arbitrary unit: steps x tokens per batch x parameters."""
    size = parameter_count(config.model, config.model.vocab_size or config.data.vocab_size)
    return float(config.train.max_steps * config.data.batch_tokens * size)
