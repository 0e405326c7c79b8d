"""Results of studies that nobody trained, for tests of reports."""

from pathlib import Path
from typing import Any

from transduce.config.schema import with_value
from transduce.recipes import find_recipe
from transduce.studies.entries import encode_config
from transduce.studies.results import Results, provenance
from transduce.studies.table2 import SEEDS, points, trainings
from transduce.studies.table2_budgets import cost_name, point_name
from transduce.studies.table2_search import SYSTEMS, first_stage, second_stage

SECONDS = {"post-norm": 0.3, "pre-norm": 0.3, "recurrent": 0.22, "convolutional": 0.25}
# Perplexity over steps: scale and exponent. The pre-norm Transformer starts worst and ends best.
PERPLEXITY = {
    "post-norm": (900, 0.55),
    "pre-norm": (3_000, 0.75),
    "recurrent": (200, 0.4),
    "convolutional": (90, 0.3),
}


def table2_results(folder: Path) -> Results:
    """Return the complete results of Table 2, in a folder."""
    results = Results(folder / "results.json", "table2", {"scale": "small", "language": "en"}, [provenance()])
    for training in trainings():
        config = with_value(find_recipe(f"small-table2-{training.row}")(), "train.seed", training.seed)
        steps = config.train.max_steps
        curve = [_scores(training.row, training.seed, step, "valid_") for step in range(500, steps + 1, 500)]
        results.entries[training.name] = {
            **_training(training.row, training.seed, steps),
            "config": encode_config(config),
            "curve": curve,
        }
    for system in SYSTEMS:
        cost = {"flops_per_step": 25_000_000_000, "flops_per_target_token": 12_500_000}
        rounds = [SECONDS[system] + 0.05, SECONDS[system]]
        results.entries[cost_name(system)] = {"status": "done", "row": system, **cost, "seconds_per_step": rounds}
    for training, step in points(results):
        figures = _scores(training.row, training.seed, step) | {"chrf": 50.0, "averaged": 5}
        entry = {"status": "done", "row": training.row, "seed": training.seed, **figures}
        results.entries[point_name(training.name, step)] = entry
    return results


def search_results(folder: Path) -> Results:
    """Return the complete results of the search of Table 2, in a folder. Best: wide, lr_factor 1.2, dropout 0.1."""
    results = Results(folder / "results.json", "table2-search", {"language": "en"}, [provenance()])
    for stage in (first_stage, lambda: second_stage(results)):
        for candidate in stage():
            training = candidate.training()
            loss = abs(candidate.lr_factor - 1.2) + (candidate.shape == "deep") + candidate.dropout
            entry = _training(training.row, 1, 600) | {"perplexity": 10 + loss}
            results.entries[training.name] = entry
    return results


COSTS_OF_PARSER = {"parameters": 1_850_000, "steps": 3_600, "seconds": 900.0, "cpu_seconds": 720.0}


def table4_results(folder: Path) -> Results:
    """Return results of Table 4, in a folder: two seeds of base and of the top-down form, d192 not run."""
    results = Results(folder / "results.json", "table4", {"number of training trees": 18_951}, [provenance()])
    f1 = {"n2": 67.0, "n6": 71.2, "d64": 62.0, "data20": 55.0, "data50": 65.0}
    seeds = [("base", 1, 70.0), ("base", 2, 70.4), *((row, 1, value) for row, value in f1.items())]
    for row, seed, value in [*seeds, ("topdown", 1, 71.8), ("topdown", 2, 72.2)]:
        config = find_recipe(f"small-table4-{row}" if row in ("n2", "n6", "d64") else "small-table4-base")()
        scores = {"precision": value + 1, "recall": value - 1, "f1": value, "exact": 20.0, "tagging": 90.0}
        results.entries[f"{row}-{seed}"] = {
            **COSTS_OF_PARSER,
            "status": "done",
            "row": row,
            "seed": seed,
            "f1": value,
            "config": encode_config(with_value(config, "train.seed", seed)),
            "curve": [{"step": step, "valid_f1": value * step / 3_600} for step in range(600, 3_601, 600)],
            "valid": {"sentences": 300, "valid": 300, **scores},
        }
    results.entries["d192-1"] = {"status": "not run"}
    return results


def _training(row: str, seed: int, steps: int) -> dict[str, Any]:
    costs = {"parameters": 2_100_000, "seconds": 2_000.0, "cpu_seconds": 1_900.0, "steps": steps, "threads": 1}
    return {"status": "done", "row": row, "seed": seed, "perplexity": 6.0, "bleu": 30.0, **costs}


def _scores(system: str, seed: int, step: int, prefix: str = "") -> dict[str, Any]:
    """Return step, perplexity and BLEU; the seeds differ by 1 % and 0.2 BLEU."""
    scale, exponent = PERPLEXITY[system]
    perplexity = (1 + scale * step**-exponent) * (1 + 0.01 * (seed - SEEDS[1]))
    bleu = max(0.0, 45 - 10 * perplexity**0.5 + 0.2 * seed)
    return {"step": step, f"{prefix}perplexity": perplexity, f"{prefix}bleu": bleu}
