"""Results of studies that nobody trained, for tests of reports."""

import math
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from transduce.config.recipes import find_recipe
from transduce.config.schema import with_value
from transduce.studies import attention, experts, positions, scaling_laws, table2, table2_search, table4
from transduce.studies.positions import points as length_points
from transduce.studies.results import Results, encode_config, provenance
from transduce.studies.scaling_laws import SWEEP
from transduce.studies.table2 import SEEDS, trainings, with_points
from transduce.studies.table2_costs import cost_name
from transduce.studies.table2_search import SYSTEMS, waiting

SIZES = positions.STUDY.sizes
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
    results = Results(folder / "results.json", table2.STUDY, {"scale": "small", "language": "en"}, [provenance()])
    for system in SYSTEMS:
        results.entries[cost_name(system)] = {
            "status": "done",
            "row": system,
            "config": encode_config(find_recipe(f"small-table2-{system}")()),
            "flops_per_step": 25_000_000_000,
            "flops_per_target_token": 12_500_000,
            "seconds_per_step": [SECONDS[system] + 0.05, SECONDS[system]],
        }
    for training in with_points(trainings(), results):
        config = with_value(find_recipe(f"small-table2-{training.row}")(), "train.seed", training.seed)
        steps = config.train.max_steps
        curve = [_scores(training.row, training.seed, step, "valid_") for step in range(500, steps + 1, 500)]
        scores = [_scores(training.row, training.seed, point.step) | {"chrf": 50.0} for point in training.points]
        results.entries[training.name] = {
            **_training(training.row, training.seed, steps),
            "config": encode_config(config),
            "curve": curve,
            "points": [
                values | {"averaged": point.averaged} for values, point in zip(scores, training.points, strict=True)
            ],
        }
    return results


def search_results(folder: Path) -> Results:
    """Return the complete results of the search of Table 2, in a folder. Best: deep, 1.8e-3, dropout 0.2."""
    results = Results(folder / "results.json", table2_search.STUDY, {"language": "en"}, [provenance()])
    while batch := waiting(results):
        for candidate in batch:
            training = candidate.training()
            loss = abs(math.log2(candidate.peak / 1.8e-3)) + (candidate.shape == "wide") + abs(candidate.dropout - 0.2)
            entry = _training(training.row, 1, 1_000) | {"perplexity": 10 + loss}
            results.entries[training.name] = entry
    return results


COSTS = {"parameters": 1_850_000, "steps": 3_600, "seconds": 900.0, "cpu_seconds": 720.0}


def table4_results(folder: Path) -> Results:
    """Return results of Table 4, in a folder: two seeds of base and of the top-down form, d192 not run."""
    results = Results(folder / "results.json", table4.STUDY, {"number of training trees": 18_951}, [provenance()])
    f1 = {"n2": 67.0, "n6": 71.2, "d64": 62.0, "data20": 55.0, "data50": 65.0}
    seeds = [("base", 1, 70.0), ("base", 2, 70.4), *((row, 1, value) for row, value in f1.items())]
    for row, seed, value in [*seeds, ("topdown", 1, 71.8), ("topdown", 2, 72.2)]:
        config = find_recipe(f"small-table4-{row}" if row in ("n2", "n6", "d64") else "small-table4-base")()
        scores = {"precision": value + 1, "recall": value - 1, "f1": value, "exact": 20.0, "tagging": 90.0}
        results.entries[f"{row}-{seed}"] = {
            **COSTS,
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


def attention_results(folder: Path) -> Results:
    """Return results of the study of attention, in a folder: two lengths, exact attention and a window."""
    settings = {"sizes": to_builtins(attention.SIZES)}
    results = Results(folder / "results.json", attention.STUDY, settings, [provenance()])
    for n in (256, 1_024):
        costs = {"forward_seconds": 0.001 * n, "backward_seconds": 0.002 * n, "peak_bytes": 4_096 * n}
        forms = dict.fromkeys(("fused", "reference", "window", "performer", "fused-both", "linformer"), costs)
        forms |= dict.fromkeys(("layer-llama", "layer-tpa"), {**costs, "cache_bytes_per_token": 4_096})
        results.entries[f"costs-{n}"] = {"status": "done", "n": n, "forms": forms}
    for row, seed, loss in (("fused", 1, 4.0), ("fused", 2, 4.1), ("window", 1, 4.2)):
        figures = {"row": row, "seed": seed, "loss": loss, "parameters": 1_172_608, "cpu_seconds": 280.0}
        results.entries[f"{row}-{seed}"] = {"status": "done", **figures}
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


LENGTHS = {  # perplexities at 64, 128, 256 and 512 tokens
    "sinusoids": (90.0, 95.0, 140.0, 260.0),
    "rope": (80.0, 82.0, 110.0, 180.0),
    "rope-yarn": (81.0, 78.0, 77.0, 80.5),
    "alibi": (82.0, 78.0, 75.0, 73.0),
}


def positions_results(folder: Path) -> Results:
    """Return results of the study of positions, in a folder: two seeds of three trainings, the others not run."""
    results = Results(folder / "results.json", positions.STUDY, {"sizes": to_builtins(SIZES)}, [provenance()])
    for row, curves in {"sinusoids": ["sinusoids"], "rope": ["rope", "rope-yarn"], "alibi": ["alibi"]}.items():
        for seed in (1, 2):
            values = {name: [x + seed for x in LENGTHS[name][:-1]] for name in curves}
            values = {name: [*short, LENGTHS[name][-1] + (-1) ** seed] for name, short in values.items()}
            results.entries[f"{row}-{seed}"] = {
                **COSTS,
                "status": "done",
                "row": row,
                "seed": seed,
                "points": {name: length_points(SIZES.lengths, losses) for name, losses in values.items()},
            }
    results.entries["shaw-1"] = {"status": "not run"}
    return results


def experts_results(folder: Path) -> Results:
    """Return results of the study of experts, in a folder: two seeds of three rows, the others not run."""
    results = Results(folder / "results.json", experts.STUDY, {"sizes": to_builtins(experts.SIZES)}, [provenance()])
    for row, value in {"dense": 60.0, "switch": 50.0, "noisy-2": 70.0}.items():
        for seed in (0, 2):
            shares = {"shares": [[1.5, 1.0, 0.5], [1.0, 0.5, 1.5]]} if row != "dense" else {}
            results.entries[f"{row}-{seed}"] = {
                **COSTS,
                "parameters": 4_900_000 if shares else 1_300_000,
                "status": "done",
                "row": row,
                "seed": seed,
                "perplexity": value + seed,
                "flops_per_token": 8_100_000 if shares else 8_000_000,
                **shares,
            }
    results.entries["top-2-1"] = {"status": "not run"}
    return results


def scaling_results(folder: Path, count: int = 35) -> Results:
    """Return results of the study of scaling laws, in a folder: the first `count` trainings, the others not run.

    The losses are 2 + 60 / N^0.35 + 300 / D^0.38, one in 200 more or less, with N without embeddings.
    """
    results = Results(folder / "results.json", scaling_laws.STUDY, {"sweep": to_builtins(SWEEP)}, [provenance()])
    for number, cell in enumerate(sorted(SWEEP.trainings(), key=lambda cell: (cell.d_model, cell.tokens))):
        size = 12 * cell.n_layers * cell.d_model**2
        embeddings = (SWEEP.vocab_size + SWEEP.segment) * cell.d_model
        loss = (2 + 60 / size**0.35 + 300 / cell.tokens**0.38) * (1 + 0.005 * (-1) ** (number // 2))
        results.entries[cell.name] = {
            "status": "done",
            "row": cell.row,
            "tokens": cell.tokens,
            "seed": 1,
            "flops": 6 * (size + SWEEP.vocab_size * cell.d_model) * cell.tokens,
            "n_layers": cell.n_layers,
            "d_model": cell.d_model,
            "parameters": size + embeddings,
            "embeddings": embeddings,
            "steps": cell.tokens // 1_024,
            "loss": loss,
            "seconds": 100.0,
            "cpu_seconds": 90.0,
        }
        if number >= count:
            results.entries[cell.name] = {"status": "not run"}
    return results
