"""The report of Table 2: quality against cost, the Transformers and their rivals, costs, and the paper's figures."""

import math

from transduce.config.schema import architecture
from transduce.evaluation.page import duration
from transduce.evaluation.study_charts import Points, curves_figure, progress_svg
from transduce.evaluation.study_report import NOT_RUN, Block, Figure, Report, Table
from transduce.studies.comparison import Difference, Row, Samples, as_factor, as_points, factor, report_of
from transduce.studies.curves import CostCurve, crossings
from transduce.studies.results import JsonObject, Results, config_of
from transduce.studies.table2_costs import Budget, Budgets, cost_name
from transduce.studies.table2_search import SYSTEMS

NAMES = {"time": "time", "flops": "FLOPs"}
FIGURES = ("BLEU", "perplexity")

# BLEU English-German and English-French on newstest2014, and training FLOPs of each, from the paper; "" where it has
# none. The paper's FLOPs are estimates: training time times the sustained speed of the processor.
PAPER = {
    "ByteNet": ("23.75", "", "", ""),
    "Deep-Att + PosUnk": ("", "39.2", "", "1.0e20"),
    "GNMT + RL": ("24.6", "39.92", "2.3e19", "1.4e20"),
    "ConvS2S": ("25.16", "40.46", "9.6e18", "1.5e20"),
    "MoE": ("26.03", "40.56", "2.0e19", "1.2e20"),
    "Deep-Att + PosUnk, ensemble": ("", "40.4", "", "8.0e20"),
    "GNMT + RL, ensemble": ("26.30", "41.16", "1.8e20", "1.1e21"),
    "ConvS2S, ensemble": ("26.36", "41.29", "7.7e19", "1.2e21"),
    "Transformer, base": ("27.3", "38.1", "3.3e18", "3.3e18"),
    "Transformer, big": ("28.4", "41.8", "2.3e19", "2.3e19"),
}
# Training FLOPs of `vaswani2017-base` and `vaswani2017-big`, counted as ours, with pairs of 25 + 25 tokens.
COUNTED = {"base": 9.5e17, "big": 9.7e18}


def report(results: Results) -> Report:
    """Return the report of the results so far."""
    study = _Table2Study(results)
    figures = [study.progress(cost, name) for cost in NAMES for name in FIGURES]
    return report_of(
        results,
        verdicts=" ".join(study.verdict(cost) for cost in NAMES),
        scores=[study.scores(cost) for cost in NAMES],
        figures=[figure for figure in figures if figure],
        crossings=study.crossings_in_words(),
        pairs=study.pairs(),
        systems="; ".join(study.settings(system) for system in SYSTEMS),
        costs=study.costs(),
        quotations=[[f"{name} (quoted)", *row] for name, row in PAPER.items()],
        counted="; ".join(map(_counted, COUNTED)),
    )


def _counted(name: str) -> str:
    """Return the counted training FLOPs of a model, and their share of the paper's estimate."""
    flops, estimate = COUNTED[name], PAPER[f"Transformer, {name}"][2]
    return f"{name} {_short(flops)}, {100 * flops / float(estimate):.0f} % of {estimate}"


def _short(flops: float) -> str:
    """Return FLOPs in the paper's form: 2.06e13."""
    return f"{flops:.2g}".replace("e+", "e") if flops >= 1e16 else f"{flops:.2e}".replace("e+", "e")


class _Table2Study:
    """The results of a study as the parts of its report."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.budgets = Budgets(results)
        self.all_budgets = self.budgets.all()
        self.entries = {system: Row(self.budgets.entries(system)) for system in SYSTEMS}
        self.titles = {system: self._title(system) for system in SYSTEMS}
        self.curves = {(cost, figure): self._curves(cost, figure) for cost in NAMES for figure in FIGURES}
        self.crossings = {pair: crossings(curves) for pair, curves in self.curves.items()}

    def _title(self, system: str) -> str:
        """Return the name of a system; a Transformer's has the order of its norms, as it was trained."""
        configs = [config_of(entry) for entry in self.entries[system]]
        norms = {config.model.norm for config in configs if config and config.model.kind == "transformer"}
        return f"Transformer ({' and '.join(sorted(norms))}-norm)" if norms else SYSTEMS[system]

    def limit(self, budget: Budget) -> str:
        return f"{budget.limit:,.0f} s" if budget.cost == "time" else f"{_short(budget.limit)} FLOPs"

    def all_of(self, cost: str) -> list[Budget]:
        return [budget for budget in self.all_budgets if budget.cost == cost]

    def verdict(self, cost: str) -> str:
        """Return the sentence that compares the Transformers with their rivals at the whole budget of a cost."""
        budgets = self.all_of(cost)
        if not budgets or not all(self.budgets.points(system, budgets[-1]) for system in SYSTEMS):
            return f"Not all systems have been evaluated at equal {NAMES[cost]}."
        words, samples = [], self.samples(budgets[-1], "BLEU")
        for system in ("post-norm", "pre-norm"):
            changes = {name: samples.change(system, name) for name in RIVALS}
            verdicts = [
                f"{IN_WORDS[change.verdict(more_is_better=True)]} the {self.titles[name]}"
                for name, change in changes.items()
                if change
            ]
            words.append(f"the {self.titles[system]} is {' and '.join(verdicts)}")
        return f"Here, by BLEU after {self.limit(budgets[-1])}, {'; '.join(words)}."

    # ---- at the budgets ------------------------------------------------------------------------------------------

    def samples(self, budget: Budget, figure: str) -> Samples:
        """Return a figure of each seed at a budget; the logarithm of a perplexity, negative, so that more is better."""
        points = {system: self.budgets.points(system, budget) for system in SYSTEMS}
        return Samples({system: [_height(point, figure) for point in seeds] for system, seeds in points.items()})

    def scores(self, cost: str) -> Table:
        """Return the table of BLEU and perplexity of each system at the budgets of a cost."""
        budgets = self.all_of(cost)
        head = [f"at equal {NAMES[cost]}"]
        head += [f"{figure}, {self.limit(budget)}" for figure in FIGURES for budget in budgets]
        rows = []
        for system in SYSTEMS:
            points = [self.budgets.points(system, budget) for budget in budgets]
            cells = [Row(seeds).range(figure.lower()) for figure in FIGURES for seeds in points]
            if budgets and not any(points):
                cells[0] = NOT_RUN
            rows.append([self.titles[system], *cells])
        quiet = frozenset(number for number, row in enumerate(rows) if NOT_RUN in row or not any(row[1:]))
        return Table(head, rows, quiet=quiet)

    def pairs(self) -> Table:
        rows = []
        for budget in [budgets[-1] for budgets in map(self.all_of, NAMES) if budgets]:
            samples = {figure: self.samples(budget, figure) for figure in FIGURES}
            for system, other in PAIRS:
                changes = {figure: samples[figure].change(system, other) for figure in FIGURES}
                cells = [cell for figure, change in changes.items() for cell in _cells(change, figure)]
                rows.append([f"{self.titles[system]} and {self.titles[other]}", self.limit(budget), *cells])
        head = ["systems", "budget", "BLEU", "by BLEU", "perplexity", "by perplexity"]
        return Table(head, rows, words=frozenset(range(6)))

    # ---- curves --------------------------------------------------------------------------------------------------

    def _curves(self, cost: str, figure: str) -> dict[str, CostCurve]:
        """Return the curve of each system by its title: of the validation text, at the steps that all seeds have."""
        curves = {}
        for system in SYSTEMS if self.all_budgets else ():
            seeds = [{point["step"]: point for point in entry["curve"]} for entry in self.entries[system]]
            steps = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
            values = [[_height(seed[step], figure, "valid_") for step in steps] for seed in seeds]
            if len(steps) > 1:
                unit = self.budgets.step_cost(system, cost)
                curves[self.titles[system]] = CostCurve([step * unit for step in steps], values)
        return curves

    def progress(self, cost: str, figure: str) -> Figure | None:
        """Return the figure of a score against cost, with a curve for each system; None without curves."""
        unit, name = (1e12, "TFLOP") if cost == "flops" else (1.0, "seconds")
        curves = self.curves[cost, figure]
        if not curves:
            return None
        points = {
            system: [(x / unit, _shown(y, figure)) for x, y in zip(curve.costs, curve.mean(), strict=True)]
            for system, curve in curves.items()
        }
        rings = [(ring.cost / unit, _shown(ring.value, figure)) for ring in self.crossings[cost, figure]]
        better = "higher" if figure == "BLEU" else "lower"
        note = f"validation; {better} is better; rings are crossings"
        drawing = progress_svg(points, rings, is_logarithmic=figure != "BLEU")
        return curves_figure(f"{figure} by {name}", note, drawing, points, _after)

    def crossings_in_words(self) -> list[Block]:
        paragraphs: list[Block] = []
        for cost in NAMES if self.all_budgets else ():
            for figure in FIGURES:
                words = [
                    f"{crossing.leader} passes {crossing.other} at {self.limit(Budget(cost, crossing.cost))} "
                    f"({figure} {_shown(crossing.value, figure):.2f})"
                    for crossing in self.crossings[cost, figure]
                ]
                text = "; ".join(words) or "no system passes another by more than the spread of the seeds"
                paragraphs.append(f"Crossings of {figure} by {NAMES[cost]}: {text}.")
        return paragraphs

    # ---- settings and costs --------------------------------------------------------------------------------------

    def settings(self, system: str) -> str:
        """Return a system with its sizes, steps and peak of the learning rate, as it was trained."""
        entries = self.entries[system]
        config = entries.config()
        if config is None:
            return f"{self.titles[system]}: {'settings not recorded' if entries else NOT_RUN}"
        train = config.train
        return (
            f"{self.titles[system]}: {architecture(config)}, {train.max_steps:,} steps, lr_factor "
            f"{train.lr_factor:g}, {train.warmup_steps:,} steps of warm-up, dropout {config.model.dropout:g}"
        )

    def costs(self) -> list[list[str]]:
        """Return the rows of the table of the costs."""
        rows = []
        for system in SYSTEMS:
            entries = self.entries[system]
            cost = self.results.entries.get(cost_name(system), {})
            if not entries or cost.get("status") != "done":
                rows.append([self.titles[system], NOT_RUN])
                continue
            seconds = cost["seconds_per_step"]
            rows.append(
                [
                    self.titles[system],
                    entries.millions(),
                    _short(cost["flops_per_step"]),
                    _short(cost["flops_per_target_token"]),
                    f"{min(seconds):.3f}",
                    f"{max(seconds):.3f}",
                    f"{cost['flops_per_step'] / min(seconds) / 1e9:.1f}",
                    f"{entries[0]['steps']:,}",
                    entries.seeds(),
                    duration(entries.mean("cpu_seconds")),
                ]
            )
        return rows


# ---- words and numbers -------------------------------------------------------------------------------------------

RIVALS = ("recurrent", "convolutional")
PAIRS = (*((system, rival) for system in ("post-norm", "pre-norm") for rival in RIVALS), ("pre-norm", "post-norm"))

IN_WORDS = {
    "better": "better than",
    "worse": "worse than",
    "inconclusive": "not conclusively different from",
}


def _cells(change: Difference | None, figure: str) -> list[str]:
    """Return the cells of a difference: the figure with its interval, and the verdict."""
    if change is None:
        return [NOT_RUN, ""]
    text = as_points(change) if figure == "BLEU" else as_factor(-change)
    return [text, change.verdict(more_is_better=True)]


def _height(scores: JsonObject, figure: str, prefix: str = "") -> float:
    """Return BLEU, or the negative logarithm of the perplexity, so that more is better. prefix: of the keys."""
    return scores[f"{prefix}bleu"] if figure == "BLEU" else -math.log(scores[f"{prefix}perplexity"])


def _after(points: Points) -> str:
    return ", ".join(f"{y:.2f} after {x:,.1f}" for x, y in points)


def _shown(value: float, figure: str) -> float:
    """Return the value of a curve as its figure."""
    return value if figure == "BLEU" else factor(-value)
