"""The budgets of Table 2: shares of the cost of the cheapest training, in time and in FLOPs."""

from dataclasses import dataclass
from typing import Any

from transduce.config.schema import Config
from transduce.studies.results import Results, config_of
from transduce.studies.table2_search import SYSTEMS

SHARES = (0.15, 0.3, 0.6, 1.0)
COSTS = {"time": "seconds_per_step", "flops": "flops_per_step"}  # name of a cost: what it counts in the cost entry


def cost_name(system: str) -> str:
    """Return the name of the entry with the cost of a step of a system."""
    return f"{system}-cost"


@dataclass(frozen=True)
class Budget:
    """A limit of a cost. cost: a key of `COSTS`. limit: in seconds or FLOPs."""

    cost: str
    limit: float


class Budgets:
    """The budgets of a study, from the cost of a step of each system and the length of its trainings."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.configs = {system: self._config(system) for system in SYSTEMS}

    def all(self) -> list[Budget]:
        """Return every budget; none as long as the cost of a system is not known."""
        steps = {system: config.train.max_steps for system, config in self.configs.items() if config}
        if len(steps) < len(SYSTEMS):
            return []
        totals = {cost: [n * self.step_cost(system, cost) for system, n in steps.items()] for cost in COSTS}
        return [Budget(cost, share * min(values)) for cost, values in totals.items() for share in SHARES]

    def step_cost(self, system: str, cost: str) -> float:
        """Return the cost of a step of a system. Seconds are those of the round that was disturbed least."""
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

    def points(self, system: str, budget: Budget) -> list[dict[str, Any]]:
        """Return the scores of all seeds of a system at `budget`, with their seed."""
        step = self.step(system, budget)
        return [
            {"seed": entry["seed"], **point}
            for entry in self.entries(system)
            for point in entry.get("points", [])
            if point["step"] == step
        ]

    def entries(self, system: str) -> list[dict[str, Any]]:
        """Return the trainings of a system that are done."""
        return [entry for entry in self.results.done(system) if "curve" in entry]

    def _config(self, system: str) -> Config | None:
        """Return the configuration whose cost was measured; None if none was, or by 0.1.0."""
        name = cost_name(system)
        return config_of(self.results.entries[name]) if self.results.is_done(name) else None
