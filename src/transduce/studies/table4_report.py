"""The report of Table 4: what differs from base, the figures of every row, and the paper's table beside them."""

import statistics
from collections.abc import Sequence
from typing import Any

from transduce.config.schema import architecture
from transduce.evaluation.study_charts import COLOURS, progress_svg
from transduce.evaluation.study_report import Block, Figure, Report, Section, Table
from transduce.studies.effects import Difference, Noise, difference, noise
from transduce.studies.entries import config_of
from transduce.studies.results import Results
from transduce.studies.table4_paper import PAPER
from transduce.studies.treebanks import Variant
from transduce.studies.words import as_points, mean_and_range

TITLES = {
    "base": "base",
    "n2": "2 layers",
    "n6": "6 layers",
    "d64": "d_model 64",
    "d192": "d_model 192",
    "data20": "20 % of the trees",
    "data50": "50 % of the trees",
    "topdown": "top-down form",
}
# The rows with a training text of their own.
VARIANTS = {"data20": Variant(20), "data50": Variant(50), "topdown": Variant(form="top-down")}
LEARNING = ("base", "topdown", "n2", "data20")  # the rows whose progress is drawn

SCORES = {"precision": "precision", "recall": "recall", "exact": "exact match", "tagging": "tagging accuracy"}
NOT_RUN = "not run"

WARNING = (
    "The treebanks differ. The paper's figures, which are quoted, are those of section 23 of the Wall Street Journal "
    "(WSJ), after a training on about 40,000 of its sentences. The figures of this study are those of the treebank "
    "in the command below. F1 on one treebank cannot be compared with F1 on another, so this table does not tell "
    "whether a parser here is better or worse than one of the paper."
)
LIMITS = (
    "The interval covers what the seed changes: initialisation, dropout and the order of the batches. It does not "
    "cover the choice of the sentences. All rows have the same steps, so a part of the trees is seen more often, and "
    "a row that learns faster looks better. More steps could change the order of the rows. The learning rate was not "
    "searched for each row."
)


def report(results: Results) -> Report:
    """Return the report of the results so far."""
    study = _Study(results)
    missing = [title for row, title in TITLES.items() if not study.entries(row)]
    notes = [
        "A figure of several seeds is their mean, with the lowest and the highest. Seconds include the evaluations."
    ]
    notes += [f"Not run: {', '.join(missing)}."] if missing else []
    notes += results.failures()
    return Report(
        "Table 4 at small scale",
        study.lead(),
        [
            Section("The effect of each change", [study.effects(), study.method(), LIMITS]),
            Section("Every row", [study.figures(), *notes, *study.drawings(), study.costs()]),
            Section("Beside the paper's table", [WARNING, study.paper()]),
        ],
    )


class _Study:
    """The results as parts of the report. A text is "valid" or "test"."""

    def __init__(self, results: Results) -> None:
        self.done = [entry for entry in results.entries.values() if entry["status"] == "done"]
        self.n_trees: int = results.settings["number of training trees"]
        self.texts = [text for text in ("valid", "test") if any(text in entry for entry in self.done)] or ["valid"]

    def entries(self, row: str) -> list[dict[str, Any]]:
        """Return the seeds of a row that are done."""
        return [entry for entry in self.done if entry["row"] == row]

    def values(self, row: str, key: str, text: str = "valid") -> list[float]:
        """Return a score of each seed of a row."""
        return [entry[text][key] for entry in self.entries(row) if text in entry]

    def lead(self) -> str:
        rows = [row for row in TITLES if self.entries(row)]
        lead = f"The parser of section 6.3 on another treebank, of {self.n_trees:,} training trees: {len(self.done)} "
        lead += f"trainings of {len(rows)} of {len(TITLES)} rows done."
        for entry in self.entries("base")[:1]:
            lead += f" Base has {_sizes(entry)} and {entry['steps']:,} steps."
            for text in self.texts:
                lead += f" The {_in_words(text)} are {entry[text]['sentences']:,}." if text in entry else ""
        return lead

    # ---- differences from base -----------------------------------------------------------------------------------

    def noise(self, text: str) -> Noise | None:
        """Return the spread of F1 between seeds, pooled over the rows."""
        return noise([self.values(row, "f1", text) for row in TITLES])

    def change(self, row: str, text: str) -> Difference | None:
        """Return the difference of a row from base in F1; None if one of them was not run."""
        values, base = self.values(row, "f1", text), self.values("base", "f1", text)
        return difference(values, base, self.noise(text)) if values and base else None

    def effects(self) -> Table:
        """Return the table of the difference of each row from base."""
        lines, quiet = [], set()
        for number, row in enumerate(name for name in TITLES if name != "base"):
            changes = [self.change(row, text) for text in self.texts]
            if changes[0] is None:
                quiet.add(number)
            cells = [cell for change in changes for cell in (as_points(change) or NOT_RUN, _compared(change))]
            lines.append([TITLES[row], *cells])
        head = [cell for text in self.texts for cell in (f"F1, {_in_words(text)}, 95 % interval", "compared with base")]
        return Table(["change", *head], lines, quiet=frozenset(quiet), words=frozenset(range(1 + len(head))))

    def method(self) -> str:
        """Return the rule of the comparison, with the spread between seeds."""
        spread = self.noise("valid")
        if spread is None:
            known = "is unknown, since no row has two seeds. So no difference can be told"
        else:
            degrees = "degree" if spread.freedom == 1 else "degrees"
            known = f"is {spread.deviation:.2f} on the validation trees, with {spread.freedom} {degrees} of freedom"
        return (
            "The difference of F1 from base, in points. A row is better or worse if the whole 95 % interval "
            "(Student's t, with the spread between seeds pooled over the rows that have several) is on one side of 0. "
            f"The standard deviation between seeds {known}. A row of one seed has no spread of its own."
        )

    # ---- all figures ---------------------------------------------------------------------------------------------

    def figures(self) -> Table:
        """Return the table of the scores of all rows."""
        has_test = "test" in self.texts
        head = ["row", "training trees", "seeds", "F1", *SCORES.values(), "valid trees"]
        head += ["F1, test trees", "valid trees, test"] * has_test
        lines, quiet = [], set()
        for number, (row, title) in enumerate(TITLES.items()):
            trees = f"{VARIANTS.get(row, Variant()).size(self.n_trees):,}"
            seeds = " ".join(str(seed) for seed in sorted(entry["seed"] for entry in self.entries(row)))
            scores = [mean_and_range(self.values(row, key)) for key in ("f1", *SCORES)]
            test = [mean_and_range(self.values(row, "f1", "test")), self.valid_trees(row, "test")] if has_test else []
            if not self.entries(row):
                quiet.add(number)
                scores[0] = NOT_RUN
            lines.append([title, trees, seeds, *scores, self.valid_trees(row, "valid"), *test])
        return Table(head, lines, quiet=frozenset(quiet))

    def costs(self) -> Table:
        """Return the table of the model of each row that was run, and its costs."""
        lines = [
            [
                TITLES[row],
                _sizes(entries[0]),
                f"{entries[0]['parameters'] / 1e6:.2f} M",
                f"{entries[0]['steps']:,}",
                f"{statistics.fmean(entry['seconds'] for entry in entries):,.0f}",
                f"{statistics.fmean(entry['cpu_seconds'] for entry in entries):,.0f}",
            ]
            for row in TITLES
            if (entries := self.entries(row))
        ]
        head = ["row", "model", "parameters", "steps", "seconds", "processor seconds"]
        return Table(head, lines, words=frozenset({0, 1}))

    def valid_trees(self, row: str, text: str) -> str:
        """Return the number of outputs that are a tree over the words of the gold tree, in all seeds of a row."""
        scores = [entry[text] for entry in self.entries(row) if text in entry]
        counts = (sum(one[key] for one in scores) for key in ("valid", "sentences"))
        return " of ".join(f"{count:,}" for count in counts) if scores else ""

    def drawings(self) -> list[Block]:
        """Return the drawings of F1 against the training trees, and against the steps; none without their rows."""
        parts = {"data20": VARIANTS["data20"], "data50": VARIANTS["data50"], "base": Variant()}
        points = [
            (float(variant.size(self.n_trees)), statistics.fmean(self.values(row, "f1")))
            for row, variant in parts.items()
            if self.entries(row)
        ]
        curves = {
            TITLES[row]: [(float(point["step"]), point["valid_f1"]) for point in entry["curve"]]
            for row in LEARNING
            for entry in self.entries(row)[:1]
            if entry["curve"]
        }
        drawings: list[Block] = []
        if len(points) > 1:
            drawings.append(_drawing("F1 by training trees", "validation trees, beam search", {"base": points}))
        if curves:
            drawings.append(_drawing("F1 by steps", "validation trees, greedy search, first seed", curves))
        return drawings

    # ---- the paper -----------------------------------------------------------------------------------------------

    def paper(self) -> Table:
        """Return the paper's table, and below it base and the other rows of this study."""
        lines = [[row.parser, row.training, f"{row.f1:.1f}", "quoted, WSJ section 23"] for row in PAPER]
        for row, title in TITLES.items():
            for text in self.texts:
                f1 = mean_and_range(self.values(row, "f1", text))
                if f1:
                    lines.append([f"this study: {title}", "this treebank only", f1, f"{_in_words(text)}, not WSJ"])
        quiet = frozenset(range(len(PAPER)))
        return Table(["parser", "training", "F1", "evaluated on"], lines, quiet=quiet, words=frozenset({0, 1, 3}))


def _in_words(text: str) -> str:
    return {"valid": "validation trees", "test": "test trees"}[text]


def _sizes(entry: dict[str, Any]) -> str:
    """Return the sizes of the model of an entry."""
    config = config_of(entry)
    return architecture(config.model) if config else "settings that were not recorded"


def _compared(change: Difference | None) -> str:
    """Return whether a row is better or worse than base, by the interval of its difference."""
    if change is None:
        return ""
    if change.interval is None:
        return "cannot be told"
    low, high = change.interval
    return "better" if low > 0 else "worse" if high < 0 else "cannot be told"


def _drawing(title: str, note: str, curves: dict[str, list[tuple[float, float]]]) -> Figure:
    """Return curves of F1 with their title."""
    alt = "; ".join(
        f"{name}: " + ", ".join(f"{f1:.2f} at {x:,.0f}" for x, f1 in points) for name, points in curves.items()
    )
    legend: Sequence[tuple[str, str]] = list(zip(curves, COLOURS, strict=False))
    return Figure(title, progress_svg(curves, is_logarithmic=False), 280, alt, note, legend)
