"""The report of `study experts`: perplexity and FLOPs of mixtures of experts beside the dense network."""

import math
import statistics
from typing import Any

from transduce.evaluation.page import duration
from transduce.evaluation.study_report import Report, Section, Table
from transduce.studies.effects import Difference, difference, noise
from transduce.studies.results import Results
from transduce.studies.words import as_factor, mean_and_range

TITLES = {
    "dense": "dense",
    "dense-wide": "dense, 4 times as wide",
    "switch": "Switch: 1 of 8",
    "switch-free": "the same, without its loss for the balance",
    "top-2": "Mixtral's: 2 of 8 of half the width",
    "noisy-2": "noisy top-k: 2 of 8 of half the width",
}


def report(results: Results) -> Report:
    """Return the report of the results so far."""
    study, sizes = _Study(results), results.settings["sizes"]
    done = [entry for entry in results.entries.values() if entry["status"] == "done"]
    cost = duration(sum(entry["cpu_seconds"] for entry in done))
    lead = (
        "Small language models with a mixture of experts in each layer, beside the dense network: "
        f"{len(done)} of {len(results.entries)} trainings done, {cost} of processor time."
    )
    lead = " ".join([lead, *results.failures()])
    sections = [
        Section("Perplexity and FLOPs", [study.sentence(), study.table(), BALANCE]),
        Section("Method", [method(sizes), VERDICT]),
    ]
    return Report("Mixtures of experts", lead, sections)


BALANCE = (
    "FLOPs are those of the products of a training step, forward and backward, for a token. The share of an expert is "
    "that of the last evaluated tokens, over the share of each if all had the same: 1 is even, and at most 8 of one "
    "expert, or 4 of two. The figures are means over layers and seeds of the highest and of the lowest."
)
VERDICT = (
    "A row is better or worse if the whole 95 % interval of the factor (Student's t, with the spread of the logarithm "
    "between seeds pooled over all rows) is on one side of 1. A figure is the mean of the seeds, with the lowest and "
    "the highest."
)


def method(sizes: dict[str, Any]) -> str:
    """Return the method in words."""
    shape = f"{sizes['n_layers']} layers, d_model {sizes['d_model']}, {sizes['n_heads']} heads"
    return (
        f"A decoder of {shape}, with RoPE, the norm before each part, GELU, dropout {sizes['dropout']:g} and a "
        f"vocabulary of at most {sizes['vocab_size']:,}. The dense network has 4 d_model units. All rows have the same "
        f"batches of {sizes['rows']} segments of {sizes['segment']} tokens, {sizes['steps']:,} steps, and no choice of "
        "settings of their own. Switch has a capacity of 1.25 in training. The factor of its loss and of Mixtral's is "
        "0.01, that of the two losses of noisy top-k 0.1."
    )


class _Study:
    """The results of a study as the parts of its report."""

    def __init__(self, results: Results) -> None:
        done = [entry for entry in results.entries.values() if entry["status"] == "done"]
        self.entries = {row: [entry for entry in done if entry["row"] == row] for row in TITLES}
        self.noise = noise([self.logarithms(row) for row in TITLES])

    def logarithms(self, row: str) -> list[float]:
        """Return the logarithm of the perplexity of each seed."""
        return [math.log(entry["perplexity"]) for entry in self.entries[row]]

    def change(self, row: str) -> Difference | None:
        """Return the difference of the logarithm of the perplexity from that of the dense row."""
        if row == "dense" or not self.entries[row] or not self.entries["dense"]:
            return None
        return difference(self.logarithms(row), self.logarithms("dense"), self.noise)

    def sentence(self) -> str:
        """Return which rows are better and which worse than the dense one."""
        groups: dict[str, list[str]] = {"better": [], "worse": [], "cannot be told": []}
        for row, title in TITLES.items():
            change = self.change(row)
            if change is None:
                continue
            low, high = change.interval or (-math.inf, math.inf)
            groups["better" if high < 0 else "worse" if low > 0 else "cannot be told"].append(title)
        parts = [f"{verb}: {', '.join(titles)}" for verb, titles in groups.items() if titles]
        return (
            f"Beside the dense network after as many steps, {'; '.join(parts)}." if parts else "Nothing to compare yet."
        )

    def table(self) -> Table:
        """Return the table of perplexities and costs."""
        head = [
            "network",
            "parameters",
            "MFLOPs a token",
            "perplexity",
            "over dense",
            "highest share",
            "lowest",
            "seeds",
        ]
        lines, quiet = [], set[int]()
        for row, title in TITLES.items():
            entries = self.entries[row]
            if not entries:
                quiet.add(len(lines))
                lines.append([title, "not run", *[""] * (len(head) - 2)])
                continue
            cells = [
                f"{entries[0]['parameters']:,}",
                f"{statistics.fmean(entry['flops_per_token'] for entry in entries) / 1e6:.1f}",
                mean_and_range([entry["perplexity"] for entry in entries]),
                as_factor(self.change(row)),
                *(_share(entries, one) for one in (max, min)),
            ]
            lines.append([title, *cells, str(len(entries))])
        return Table(head, lines, quiet=frozenset(quiet))


def _share(entries: list[dict[str, Any]], extreme: Any) -> str:
    values = [extreme(layer) for entry in entries for layer in entry.get("shares", [])]
    return f"{statistics.fmean(values):.2f}" if values else ""
