"""The budgets of Table 2: shares of the cost of the cheapest training, in time and in FLOPs."""

from dataclasses import dataclass
from typing import Any

from transduce.studies.entries import config_of
from transduce.studies.results import Results
from transduce.studies.table2_search import SYSTEMS

SHARES = (0.15, 0.3, 0.6, 1.0)
COSTS = {"time": "seconds_per_step", "flops": "flops_per_step"}  # name of a cost: what it counts in the cost entry


def cost_name(system: str) -> str:
    """Return the name of the entry with the cost of a step of a system."""
    return f"{system}-cost"


def point_name(training: str, step: int) -> str:
    """Return the name of the entry with the scores of a training after `step`."""
    return f"{training}-step-{step}"


@dataclass(frozen=True)
class Budget:
    """A limit of a cost. cost: a key of `COSTS`. limit: in seconds or FLOPs."""

    cost: str
    limit: float


class Budgets:
    """The budgets of a study, from the lengths of its trainings and the costs of their steps."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def all(self) -> list[Budget]:
        """Return every budget; none as long as a system has no training or no cost."""
        totals: dict[str, list[float]] = {cost: [] for cost in COSTS}
        for system in SYSTEMS:
            entry = self._training(system)
            if entry is None or not self.results.is_done(cost_name(system)):
                return []
            for cost, values in totals.items():
                values.append(entry["steps"] * self.step_cost(system, cost))
        return [Budget(cost, share * min(values)) for cost, values in totals.items() for share in SHARES]

    def step_cost(self, system: str, cost: str) -> float:
        """Return the cost of a step of a system. Seconds are those of the round that was disturbed least."""
        value = self.results.entries[cost_name(system)][COSTS[cost]]
        return min(value) if cost == "time" else value

    def step(self, system: str, budget: Budget) -> int:
        """Return the step of the last checkpoint of a system within `budget`, or of its first one."""
        entry = self._training(system)
        config = config_of(entry or {})
        every = config.train.checkpoint_every_steps if config else 1
        steps = budget.limit / self.step_cost(system, budget.cost) * (1 + 1e-9)
        return max(1, int(steps) // every) * every

    def points(self, system: str, budget: Budget) -> list[dict[str, Any]]:
        """Return the entries of all seeds of a system at `budget` that have been evaluated."""
        step = self.step(system, budget)
        entries = [self.results.entries.get(point_name(name, step), {}) for name in self._trainings(system)]
        return [entry for entry in entries if entry.get("status") == "done"]

    def entries(self, system: str) -> list[dict[str, Any]]:
        """Return the trainings of a system that are done."""
        return list(self._trainings(system).values())

    def _trainings(self, system: str) -> dict[str, dict[str, Any]]:
        entries = self.results.entries.items()
        done = {name: entry for name, entry in entries if entry["status"] == "done" and entry.get("row") == system}
        return {name: entry for name, entry in done.items() if "steps" in entry}

    def _training(self, system: str) -> dict[str, Any] | None:
        return next(iter(self.entries(system)), None)
