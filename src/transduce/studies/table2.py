"""Table 2: the Transformer compared with an LSTM and a convolutional model, at equal cost.

    costs of a step -> budgets -> trainings -> the mean of the checkpoints within each budget -> the test text

Each system is trained with the settings of its search (`table2_search`), with three seeds and the same batches. The
budgets are shares of the cost of the cheapest training, in time and in FLOPs. Time is the number of steps, times the
seconds of a step, which are measured before any training starts. Only the models within the budgets see the test text.
A training is complete in results.json as soon as it has ended, so a study may lose OUT/runs between two trainings.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transduce.errors import UserError
from transduce.storage.run_request import TrainRequest
from transduce.studies.results import (
    Cost,
    JsonObject,
    Percent,
    Perplexity,
    PositiveInt,
    Results,
    Study,
    figures_type,
    list_type,
)
from transduce.studies.runner import reported
from transduce.studies.schedule import refuse_outdated, run_trainings
from transduce.studies.table2_costs import Budgets, cost_name, measure_costs
from transduce.studies.table2_report import report
from transduce.studies.table2_search import SYSTEMS
from transduce.studies.trainings import TRAINING, TRANSLATION, Point, Texts, Training

SEEDS = (1, 2, 3)
AVERAGED_SHARE = 0.2  # of the steps so far: the mean is over the checkpoints of the last fifth

CURVE_POINT = figures_type("step", valid_perplexity=Perplexity, valid_bleu=Percent)
# The scores of the mean of checkpoints up to a step, on the test text. averaged: the number of checkpoints.
POINT = figures_type("step", "bleu", "perplexity", chrf=Percent, averaged=PositiveInt)
# Trainings of 0.1.0 have no points, and their costs no configuration.
SYSTEM = figures_type("steps", curve=list[CURVE_POINT], optional={"points": list[POINT]})
STEP_COST = figures_type(
    "row",
    flops_per_step=Cost,
    flops_per_target_token=Cost,
    seconds_per_step=list_type(Cost),
    optional={"config": JsonObject},
)
STUDY = Study("table2", lambda name, _: [STEP_COST] if name.endswith("-cost") else [TRAINING, TRANSLATION, SYSTEM])


def trainings() -> list[Training]:
    """Return the trainings of the table. A study that is stopped early has as many whole seeds as possible."""
    return [Training(system, seed, f"small-table2-{system}") for seed in SEEDS for system in SYSTEMS]


def run_table2(texts: Texts, out: Path, *, jobs: int | None = None, rerun: bool = False) -> Results:
    """Measure the costs, then train the systems that are not yet in OUT/results.json, and evaluate them.

    jobs, rerun: as in `schedule.run_trainings`. Raises UserError if there is no test text.
    """
    if texts.test is None:
        raise UserError("--test: expected a test text, on which Table 2 evaluates the systems; give --test SRC REF")
    hashes = texts.read()
    results = STUDY.open(out, {"scale": "small", "language": texts.language, **hashes})
    with reported(results, report):
        if not rerun:
            refuse_outdated(trainings(), results)
        add_costs(texts, results)
        run_trainings(with_points(trainings(), results), texts, results, jobs=jobs, rerun=rerun)
    return results


def add_costs(texts: Texts, results: Results) -> None:
    """Measure the cost of a step of each system, all in turn, unless results.json has the costs of today's recipes."""
    first = {training.row: training for training in reversed(trainings())}
    if all(results.is_current(cost_name(system), training.config()) for system, training in first.items()):
        return
    runs = results.path.parent / "runs"
    requests = [
        TrainRequest(
            training.recipe, texts.train, texts.valid, runs / cost_name(system), training.all_settings(), resume=True
        )
        for system, training in first.items()
    ]
    costs = measure_costs(requests)
    results.start_session([])
    for system, cost in zip(first, costs, strict=True):
        results.record(cost_name(system), "done", row=system, **cost)


def with_points(plan: Sequence[Training], results: Results) -> list[Training]:
    """Return the trainings with their points: the last checkpoint within each budget."""
    budgets = Budgets(results)
    return [
        replace(training, points=tuple(_point(step, training) for step in budgets.steps(training.row)))
        for training in plan
    ]


def _point(step: int, training: Training) -> Point:
    """Return the point at `step`, with the checkpoints of the last fifth of the steps up to it."""
    every = training.config().train.checkpoint_every_steps
    return Point(step, sum((1 - AVERAGED_SHARE) * step < training for training in range(every, step + 1, every)))
