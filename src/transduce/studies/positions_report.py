"""The report of `study positions`: perplexities at lengths up to several times that of the training."""

import math
from typing import Any

from transduce.evaluation.page import duration
from transduce.evaluation.study_report import Report, Section, Table
from transduce.studies.effects import Difference, paired_difference
from transduce.studies.results import Results
from transduce.studies.words import as_factor, mean_and_range

TITLES = {
    "sinusoids": "sinusoids",
    "learned": "learned",
    "rope": "RoPE",
    "rope-linear": "RoPE (linear)",
    "rope-ntk": "RoPE (NTK)",
    "rope-dynamic": "RoPE (dynamic NTK)",
    "rope-yarn": "RoPE (YaRN)",
    "alibi": "ALiBi",
    "t5": "T5's bias",
    "shaw": "Shaw",
    "transformer-xl": "Transformer-XL",
}


def report(results: Results) -> Report:
    """Return the report of the results so far."""
    study, sizes = _Study(results), results.settings["sizes"]
    done = [entry for entry in results.entries.values() if entry["status"] == "done"]
    cost = duration(sum(entry["cpu_seconds"] for entry in done))
    lead = (
        f"Small language models, trained on segments of {sizes['segment']} tokens and evaluated on up to "
        f"{sizes['lengths'][-1]}: {len(done)} of {len(results.entries)} trainings done, {cost} of processor time."
    )
    lead = " ".join([lead, *results.failures()])
    return Report(
        "Positions beyond the training length",
        lead,
        [
            Section("Perplexity by length", [study.sentence(), study.table(), SCALED]),
            Section("Method", [method(sizes), VERDICT]),
        ],
    )


SCALED = (
    "The rows of scaled RoPE are the models of the row RoPE with other frequencies, without more training. Linear, NTK "
    "and YaRN scale by the longest length over that of the training, at all lengths. Dynamic NTK scales by the length "
    "at hand."
)
VERDICT = (
    "A row gets better or worse if the whole 95 % interval of the factor is on one side of 1. The interval is "
    "Student's, of the logarithms of the factors of the row's seeds. A figure is the mean of the seeds, with the "
    "lowest and the highest."
)


def method(sizes: dict[str, Any]) -> str:
    """Return the method in words."""
    shape = f"{sizes['n_layers']} layers, d_model {sizes['d_model']}, {sizes['n_heads']} heads"
    return (
        f"A decoder of {shape}, with the norm before each part, GELU, dropout {sizes['dropout']:g} and a vocabulary of "
        f"at most {sizes['vocab_size']:,}. Transformer-XL has the norm after each part, ReLU, and a memory of "
        f"{sizes['segment']} tokens in training. All rows have the same batches of {sizes['rows']} segments, "
        f"{sizes['steps']:,} steps, and no choice of settings of their own. The validation text is cut into blocks of "
        "each length. So all lengths evaluate the same tokens, and differ in what is before them. Transformer-XL reads "
        "a block in segments, and remembers all of it. Learned rows of positions that no segment reaches keep their "
        "random values. The buckets of T5's bias end at the length of a segment, so that the training reaches all."
    )


class _Study:
    """The results of a study as the parts of its report."""

    def __init__(self, results: Results) -> None:
        self.lengths: list[int] = results.settings["sizes"]["lengths"]
        done = [entry for entry in results.entries.values() if entry["status"] == "done"]
        self.curves = {row: self._curves([entry["points"].get(row, []) for entry in done]) for row in TITLES}

    def _curves(self, points_of_seeds: list[list[dict[str, float]]]) -> list[list[float]]:
        """Return the perplexities at all lengths of the seeds that have them."""
        values = [{point["length"]: point["perplexity"] for point in points} for points in points_of_seeds]
        return [[one[n] for n in self.lengths] for one in values if one.keys() >= {*self.lengths}]

    def change(self, row: str) -> Difference | None:
        """Return the difference of the logarithm of the perplexity at the longest length from that at the shortest."""
        changes = [math.log(curve[-1] / curve[0]) for curve in self.curves[row]]
        return paired_difference(changes) if changes else None

    def sentence(self) -> str:
        """Return which rows get better and which worse with the length."""
        groups: dict[str, list[str]] = {"get better": [], "get worse": [], "cannot be told": []}
        for row, title in TITLES.items():
            change = self.change(row)
            if change is None:
                continue
            low, high = change.interval or (-math.inf, math.inf)
            groups["get better" if high < 0 else "get worse" if low > 0 else "cannot be told"].append(title)
        parts = [f"{verb}: {', '.join(titles)}" for verb, titles in groups.items() if titles]
        ends = f"{self.lengths[0]} to {self.lengths[-1]} tokens"
        return f"From {ends}, these {'; '.join(parts)}." if parts else "No training is done yet."

    def table(self) -> Table:
        """Return the table of perplexities."""
        head = ["positions", *map(str, self.lengths), f"{self.lengths[-1]} over {self.lengths[0]}", "seeds"]
        lines, quiet = [], set[int]()
        for row, title in TITLES.items():
            curves = self.curves[row]
            if not curves:
                quiet.add(len(lines))
                lines.append([title, "not run", *[""] * (len(head) - 2)])
                continue
            cells = [mean_and_range([curve[i] for curve in curves]) for i in range(len(self.lengths))]
            lines.append([title, *cells, as_factor(self.change(row)), str(len(curves))])
        return Table(head, lines, quiet=frozenset(quiet))
