"""Table 2: the Transformer compared with an LSTM and a convolutional model, at equal cost.

    trainings -> FLOPs and seconds of a step -> budgets -> the mean of the checkpoints within each -> the test text

Each system is trained with the settings of its search (`table2_search`), with three seeds and the same batches. The
budgets are shares of the cost of the cheapest training, in time and in FLOPs. Time is the number of steps, times the
seconds of a step on a core of its own: a busy machine does not change it. Only the models within the budgets see the
test text.
"""

from pathlib import Path
from typing import Any

from transduce.data.corpora import Corpus
from transduce.decoding.options import DecodingOptions
from transduce.errors import UserError
from transduce.evaluate import TestSet, evaluate_model
from transduce.evaluation.study_report import write_report
from transduce.storage.checkpoints import regular_checkpoints, step_of
from transduce.storage.run_folder import average_run
from transduce.studies.entries import encode_config
from transduce.studies.results import Results, open_results
from transduce.studies.schedule import run_trainings
from transduce.studies.step_costs import measure_costs
from transduce.studies.table2_budgets import Budgets, cost_name, point_name
from transduce.studies.table2_report import report
from transduce.studies.table2_search import SYSTEMS
from transduce.studies.texts import Texts, score_figures
from transduce.studies.trainings import Training, read_config
from transduce.translate import load

SEEDS = (1, 2, 3)
AVERAGED_SHARE = 0.2  # of the steps so far: the mean is over the checkpoints of the last fifth


def trainings() -> list[Training]:
    """Return the trainings of the table. A study that is stopped early has as many whole seeds as possible."""
    return [Training(system, seed, f"small-table2-{system}") for seed in SEEDS for system in SYSTEMS]


def run_table2(texts: Texts, out: Path, *, jobs: int | None = None, rerun: bool = False) -> Results:
    """Train the systems that are not yet in OUT/results.json, then evaluate each within all budgets.

    jobs, rerun: as in `schedule.run_trainings`. Raises UserError if there is no test text, or if a folder in OUT/runs
    that the study still needs is missing.
    """
    if texts.test is None:
        raise UserError("--test: expected a test text, on which Table 2 evaluates the systems; give --test SRC REF")
    hashes = texts.read()
    results = open_results(out, "table2", {"scale": "small", "language": texts.language, **hashes})
    try:
        training_texts = Texts(texts.train, texts.valid, language=texts.language)
        run_trainings(trainings(), training_texts, results, jobs=jobs, rerun=rerun)
        add_costs(results, Corpus(*texts.train))
        for training, step in points(results):
            name = point_name(training.name, step)
            if not is_newer(name, training.name, results):
                figures = evaluate_checkpoint(out / "runs" / training.name, step, texts)
                results.record(name, "done", row=training.row, seed=training.seed, **figures)
    finally:
        if results.entries:
            write_report(out, report(results), results.sessions)
    return results


def add_costs(results: Results, corpus: Corpus) -> None:
    """Measure the cost of a step of each system, all in turn, unless this was done after their trainings."""
    first = {training.row: training.name for training in reversed(trainings())}
    if all(is_newer(cost_name(system), name, results) for system, name in first.items()):
        return
    runs = [results.path.parent / "runs" / name for name in first.values()]
    for system, cost in zip(first, measure_costs(runs, corpus), strict=True):
        results.record(cost_name(system), "done", row=system, **cost)


def points(results: Results) -> list[tuple[Training, int]]:
    """Return each training with the step of its last checkpoint within each budget, without repetitions."""
    budgets = Budgets(results)
    steps = [(one, budgets.step(one.row, budget)) for budget in budgets.all() for one in trainings()]
    return list(dict.fromkeys(steps))


def is_newer(name: str, training: str, results: Results) -> bool:
    """Check whether the entry `name` is done, and is no older than the entry of `training`."""
    ends = [results.entries.get(one, {}).get("ended_at", "") for one in (name, training)]
    return results.is_done(name) and ends[0] >= ends[1]


def evaluate_checkpoint(run: Path, step: int, texts: Texts) -> dict[str, Any]:
    """Return the scores on the test text of the mean of the checkpoints in the last fifth of the steps up to `step`."""
    assert texts.test is not None
    folder = run.with_name(f"{run.name}-step-{step}")
    steps = [step_of(path) for path in regular_checkpoints(run, read_config(run).train.checkpoint_every_steps)]
    count = sum((1 - AVERAGED_SHARE) * step < one <= step for one in steps)
    if not folder.exists():
        average_run(run, last=count, until=step, out=folder)
    translator = load(folder)
    evaluation = evaluate_model(translator, TestSet(*texts.test, texts.language), DecodingOptions())
    return {
        "step": step,
        "averaged": count,
        "config": encode_config(translator.config),
        **score_figures(evaluation.lines, evaluation.perplexity or 0.0, evaluation.systems["model"]),
    }
