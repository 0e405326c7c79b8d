"""The report of `study claims`: three sentences of the paper, each with its evidence."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from transduce.config.schema import architecture
from transduce.evaluation.page import duration
from transduce.evaluation.study_report import Report, Section, Table
from transduce.studies.effects import Difference, difference, factor, noise, verdict
from transduce.studies.entries import config_of
from transduce.studies.results import Results
from transduce.studies.scaling import WIDTHS, row_of
from transduce.studies.words import as_factor, as_points, mean_and_range

POSITIONS = ("sinusoids", "learned")
SMOOTHING = ("smoothing0.1", "smoothing0")

Figures = Callable[[dict[str, Any]], float]


def report(results: Results) -> Report:
    """Return the report of the results so far."""
    study = _Study(results)
    failures = [f"{name}: {entry['why']}" for name, entry in results.entries.items() if entry["status"] == "failed"]
    done = [entry for entry in results.entries.values() if entry["status"] == "done"]
    cost = duration(sum(entry["cpu_seconds"] for entry in done))
    lead = f"Three sentences of the paper as experiments on a small text: {len(done)} trainings done, {cost} of "
    lead += f"processor time. The model is {study.model()}."
    lead += f" Failed: {'; '.join(failures)}." if failures else ""
    return Report(
        "Claims of the paper at small scale",
        lead,
        [
            Section("Section 3.2.1: the factor 1/sqrt(d_k)", [study.scaling_sentence(), study.scaling(), SOFTMAX]),
            Section("Section 3.5: sinusoids on longer text", [study.positions_sentence(), study.positions(), LONGER]),
            Section("Section 5.4: label smoothing", [study.smoothing_sentence(), study.smoothing()]),
            Section("Method", [METHOD]),
        ],
    )


SOFTMAX = (
    "Without the factor, the scores of a row have a variance of d_k, if a component of a query and one of a key have "
    "variance 1; the column of components has the product of these variances. The gradient is the Frobenius norm of "
    "the Jacobian of the softmax, which is 0 where one weight is 1. Variance and gradient are means over all heads, "
    "layers and rows of the first validation sentences, at the start of the training and at its end."
)
LONGER = (
    "Both models were trained on the half of the pairs with the fewest words. The longer pairs of the validation text "
    "have a source of more than 1.4 times the words of the longest of these. Learned positions that no training pair "
    "reaches keep their random values."
)
METHOD = (
    "A sentence holds, or does not hold, if the whole 95 % interval of the difference (Student's t, with the spread "
    "between seeds pooled over the rows of the experiment) is on one side of no difference. A figure of several seeds "
    "is their mean, with the lowest and the highest. Perplexity is per token of the validation text, unsmoothed. BLEU "
    "is sacreBLEU 13a, of beam search."
)


def _log_perplexity(entry: dict[str, Any]) -> float:
    return math.log(entry["perplexity"])


def _log_perplexity_of_longer(entry: dict[str, Any]) -> float:
    return math.log(entry["test"]["perplexity"])


class _Study:
    """The results of a study as the parts of its report."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def entries(self, row: str) -> list[dict[str, Any]]:
        """Return the seeds of a row that are done."""
        return [one for one in self.results.entries.values() if one["status"] == "done" and one.get("row") == row]

    def change(self, row: str, base: str, rows: Sequence[str], figure: Figures) -> Difference | None:
        """Return the difference of a row from another in a figure, with the noise of `rows`; None without results."""
        values = {name: [figure(entry) for entry in self.entries(name)] for name in rows}
        if not values[row] or not values[base]:
            return None
        return difference(values[row], values[base], noise(list(values.values())))

    def model(self) -> str:
        """Return the sizes of the model in words."""
        configs = [config_of(entry) for row in (*SMOOTHING, *POSITIONS) for entry in self.entries(row)]
        return next((architecture(config.model) for config in configs if config), "not trained yet")

    # ---- §3.2.1 --------------------------------------------------------------------------------------------------

    def scaling_sentence(self) -> str:
        rows = [row_of(width, has_factor) for width in WIDTHS for has_factor in (True, False)]
        parts = []
        for width in WIDTHS:
            change = self.change(row_of(width, False), row_of(width, True), rows, _log_perplexity)
            parts.append(f"d_k {width}: {_is_worse(change)}")
        ratio = "perplexity without it, divided by that with it"
        return f"Without the factor, learning is worse ({ratio}). For {'; for '.join(parts)}."

    def scaling(self) -> Table:
        """Return the table of the softmax and of the perplexity for each d_k."""
        head = ["d_k", "factor", "components, start", "variance of scores, start", "end", "gradient, start", "end"]
        head += ["perplexity", "seeds"]
        lines = []
        quiet = set()
        for width in WIDTHS:
            for has_factor in (True, False):
                entries = self.entries(row_of(width, has_factor))
                cells = ["not run", *[""] * 6]
                if entries:
                    softmax = [
                        f"{statistics.fmean(entry[f'softmax_{when}'][name] for entry in entries):.3g}"
                        for name, when in SOFTMAX_COLUMNS
                    ]
                    cells = [*softmax, mean_and_range([entry["perplexity"] for entry in entries]), _seeds(entries)]
                else:
                    quiet.add(len(lines))
                lines.append([str(width), "1/sqrt(d_k)" if has_factor else "none", *cells])
        return Table(head, lines, quiet=frozenset(quiet), words=frozenset({0, 1}))

    # ---- §3.5 ----------------------------------------------------------------------------------------------------

    def positions_sentence(self) -> str:
        change = self.change("learned", "sinusoids", POSITIONS, _log_perplexity_of_longer)
        on_short = self.change("learned", "sinusoids", POSITIONS, _log_perplexity)
        return (
            "Sinusoids may allow the model to extrapolate to sequences longer than those of the training, compared "
            "with learned positions (perplexity of learned positions, divided by that of sinusoids, on longer pairs). "
            f"This {_is_worse(change)}. On short pairs: {as_factor(on_short) or 'not run'}."
        )

    def positions(self) -> Table:
        """Return the table of the scores on short and on longer pairs."""
        head = ["positions", "perplexity, short pairs", "longer pairs", "ratio", "BLEU, short pairs", "longer pairs"]
        lines = []
        quiet = set()
        for number, row in enumerate(POSITIONS):
            entries = self.entries(row)
            if not entries:
                quiet.add(number)
                lines.append([row, "not run", *[""] * 5])
                continue
            ratios = [_log_perplexity_of_longer(entry) - _log_perplexity(entry) for entry in entries]
            lines.append(
                [
                    row,
                    mean_and_range([entry["perplexity"] for entry in entries]),
                    mean_and_range([entry["test"]["perplexity"] for entry in entries]),
                    f"{factor(statistics.fmean(ratios)):.2f}",
                    mean_and_range([entry["bleu"] for entry in entries]),
                    mean_and_range([entry["test"]["bleu"] for entry in entries]),
                    _seeds(entries),
                ]
            )
        return Table([*head, "seeds"], lines, quiet=frozenset(quiet))

    # ---- §5.4 ----------------------------------------------------------------------------------------------------

    def smoothing_sentence(self) -> str:
        smoothed, plain = SMOOTHING
        is_measured = all("accuracy" in entry for row in SMOOTHING for entry in self.entries(row))
        perplexity = self.change(smoothed, plain, SMOOTHING, _log_perplexity)
        accuracy = self.change(smoothed, plain, SMOOTHING, lambda entry: entry["accuracy"]) if is_measured else None
        bleu = self.change(smoothed, plain, SMOOTHING, lambda entry: entry["bleu"])
        return (
            f"Label smoothing hurts perplexity: {_is_worse(perplexity)}. It improves accuracy: "
            f"{_is_improved(accuracy, ' %')}. It improves BLEU: {_is_improved(bleu, '')}."
        )

    def smoothing(self) -> Table:
        """Return the table of perplexity, accuracy and BLEU with and without label smoothing."""
        lines = []
        quiet = set()
        for number, row in enumerate(SMOOTHING):
            entries = self.entries(row)
            cells = ["not run", *[""] * 3]
            if entries:
                keys = ("perplexity", "accuracy", "bleu")
                cells = [mean_and_range([one[key] for one in entries if key in one]) for key in keys]
                cells.append(_seeds(entries))
            else:
                quiet.add(number)
            lines.append([row.removeprefix("smoothing"), *cells])
        head = ["label smoothing", "perplexity", "accuracy, %", "BLEU", "seeds"]
        return Table(head, lines, quiet=frozenset(quiet))


SOFTMAX_COLUMNS = (
    ("components", "start"),
    *((name, when) for name in ("variance", "gradient") for when in ("start", "end")),
)


def _is_worse(change: Difference | None) -> str:
    """Return the verdict on the claim that a perplexity rises, with its change. change: of the logarithm."""
    return f"{verdict('hurts', change, 0.0)} ({as_factor(change)})" if change else "cannot be told, not run"


def _is_improved(change: Difference | None, unit: str) -> str:
    """Return the verdict on the claim that a figure of which more is better rises, with its change."""
    return f"{verdict('helps', -change, 0.0)} ({as_points(change)}{unit})" if change else "cannot be told, not run"


def _seeds(entries: Sequence[dict[str, Any]]) -> str:
    return " ".join(str(seed) for seed in sorted(entry["seed"] for entry in entries))
