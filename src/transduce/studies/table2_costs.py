"""The cost of a training step of Table 2, in FLOPs and in time on one core, and the budgets that follow from it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import torch

from transduce.data.batches import DataPosition
from transduce.model.build import build
from transduce.storage import run_folder
from transduce.storage.run_request import TrainRequest
from transduce.studies.results import JsonObject, Results, config_of, encode_config
from transduce.studies.table2_search import SYSTEMS
from transduce.train import TranslationTask, prepare
from transduce.training.flops import step_flops
from transduce.training.gradients import Gradients
from transduce.training.halves import threads
from transduce.training.run import Run
from transduce.training.state import TrainingState

SHARES = (0.15, 0.3, 0.6, 1.0)
COSTS = {"time": "seconds_per_step", "flops": "flops_per_step"}  # name of a cost: what it counts in the cost entry
COUNTED = 16  # batches, evenly over an epoch, whose FLOPs are counted
ROUNDS, STEPS = 5, 10  # rounds of a measurement, and steps of each

# ---- budgets -----------------------------------------------------------------------------------------------------


def cost_name(system: str) -> str:
    """Return the name of the entry with the cost of a step of a system."""
    return f"{system}-cost"


@dataclass(frozen=True)
class Budget:
    """A limit of a cost. cost: a key of `COSTS`. limit: in seconds or FLOPs."""

    cost: str
    limit: float


class Budgets:
    """The budgets of a study, from the cost of a step of each system and the length of its trainings.

    configs: the configurations whose cost was measured; None for a system without one, or with a cost of 0.1.0.
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        costs = {system: results.entries[cost_name(system)] for system in SYSTEMS if results.is_done(cost_name(system))}
        self.configs = {system: config_of(costs.get(system, {})) for system in SYSTEMS}

    def all(self) -> list[Budget]:
        """Return every budget; none as long as the cost of a system is not known."""
        steps = {system: config.train.max_steps for system, config in self.configs.items() if config}
        if len(steps) < len(SYSTEMS):
            return []
        totals = {cost: [n * self.step_cost(system, cost) for system, n in steps.items()] for cost in COSTS}
        return [Budget(cost, share * min(values)) for cost, values in totals.items() for share in SHARES]

    def step_cost(self, system: str, cost: str) -> float:
        """Return the cost of a step of a system. Seconds are from the round that was disturbed least."""
        value = self.results.entries[cost_name(system)][COSTS[cost]]
        return min(value) if cost == "time" else value

    def step(self, system: str, budget: Budget) -> int:
        """Return the step of the last checkpoint of a system within `budget`, or of its first one."""
        config = self.configs[system]
        every = config.train.checkpoint_every_steps if config else 1
        steps = budget.limit / self.step_cost(system, budget.cost) * (1 + 1e-9)
        return max(1, int(steps) // every) * every

    def steps(self, system: str) -> list[int]:
        """Return the steps of a system at all budgets, in ascending order."""
        return sorted({self.step(system, budget) for budget in self.all()})

    def points(self, system: str, budget: Budget) -> list[JsonObject]:
        """Return the scores of all seeds of a system at `budget`, with their seed."""
        step = self.step(system, budget)
        return [
            {"seed": entry["seed"], **point}
            for entry in self.entries(system)
            for point in entry.get("points", [])
            if point["step"] == step
        ]

    def entries(self, system: str) -> list[JsonObject]:
        """Return the trainings of a system that are done."""
        return [entry for entry in self.results.done(system) if "curve" in entry]


# ---- measured ----------------------------------------------------------------------------------------------------


def measure_costs(requests: Sequence[TrainRequest]) -> list[JsonObject]:
    """Return for each training its configuration, the FLOPs of a step and of a target token, and the seconds of a step.

    requests: each with a separate folder, in which `train` would start. No weights are written there.

    flops_per_step, flops_per_target_token: means over `COUNTED` batches of the first epoch.
    seconds_per_step: processor seconds on one thread, in each of `ROUNDS` rounds. The trainings take turns, so that
    another program on the machine delays all of them. Raises UserError if a training cannot start.
    """
    with threads(1):
        runs = []
        for request in requests:
            request.check()
            with run_folder.exclusive(request.out):
                runs.append(prepare(request, TranslationTask())[0])
        all_seconds = [_seconds(run) for run in runs]
        rounds = [[next(seconds) for seconds in all_seconds] for _ in range(ROUNDS)]
    seconds = [[round(times[i], 4) for times in rounds] for i in range(len(requests))]
    return [
        {"config": encode_config(run.config), **_flops(run), "seconds_per_step": times}
        for run, times in zip(runs, seconds, strict=True)
    ]


def _flops(run: Run) -> dict[str, int]:
    size = len(run.batches.plan(0))
    model = build(run.config.model).train()
    flops, tokens = [], 0
    for index in sorted({size * i // COUNTED for i in range(COUNTED)}):
        micro_batches, _ = next(run.batches.stream(DataPosition(0, index)))
        flops.append(step_flops(model, micro_batches, run.config.train.label_smoothing))
        tokens += sum(int(batch.tgt_mask.sum()) for batch in micro_batches)
    return {"flops_per_step": round(mean(flops)), "flops_per_target_token": round(sum(flops) / tokens)}


def _seconds(run: Run) -> Iterator[float]:
    """Yield the processor seconds of a step, without end: of `STEPS` each, on the CPU, also beside a GPU.

    Nothing is written.
    """
    model = run.task.build(run.config).train()
    state = TrainingState(model, run.config.train, {})
    gradients = Gradients(model, run.task, run.config.train, torch.device("cpu"), lambda _: None)
    stream = run.batches.stream(DataPosition())

    def step() -> None:
        micro_batches, _ = next(stream)
        state.update(gradients.of(micro_batches, seed=1))
        state.optimizer.zero_grad()

    step()  # the first step compiles kernels and allocates memory
    while True:
        started_at = time.process_time()
        for _ in range(STEPS):
            step()
        yield (time.process_time() - started_at) / STEPS
