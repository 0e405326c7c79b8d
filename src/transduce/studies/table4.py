"""Table 4: train parsers on a treebank, and compare them with the paper's.

The paper's table has one parser, of 4 layers. The rows here vary it: layers, d_model, the part of the treebank that it
is trained on, and the linear form of the trees. All rows have the same number of steps. The texts of the trainings are

    treebank -> OUT/runs/texts/train.words, train.symbols        all training trees
                               train-20.words, train-20.symbols  a part of them
                               train.top-down.symbols            all of them, in the top-down form

The models are evaluated on the trees themselves, not on symbols.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, TypedDict

from msgspec import Meta

from transduce.config.recipes.studies import table4
from transduce.data.text import FilePair, file_sha256
from transduce.evaluation.study_charts import Curves, Points, curves_figure, progress_svg
from transduce.evaluation.study_report import NOT_RUN, Block, Figure, Report, Table, rows_table
from transduce.parsing.labelled_f1 import read_gold
from transduce.parsing.linearize import TreeForm, linearize
from transduce.parsing.trees import Tree, sentence_of
from transduce.storage.atomic_folder import write_file
from transduce.studies.comparison import as_points, report_of, rows_of, samples_of
from transduce.studies.results import Figures, JsonObject, Percent, PositiveInt, Results, Study, figures_type
from transduce.studies.runner import reported
from transduce.studies.schedule import run_trainings
from transduce.studies.trainings import TRAINING, Texts, Training

# ---- treebanks and their texts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Treebanks:
    """Files with brackets of the Penn Treebank. test: None if the study has no test trees."""

    train: Path
    valid: Path
    test: Path | None = None

    def read(self) -> tuple[Figures, dict[str, list[Tree]]]:
        """Return the settings of a study that identify the treebanks, and the trees of each, by "train" and so on.

        Raises UserError for a file that cannot be read, or that is no treebank.
        """
        paths = {"train": self.train, **self.gold()}
        trees = {name: read_gold(path) for name, path in paths.items()}
        hashes = {f"{name} trees": file_sha256(path) for name, path in paths.items()}
        return {**hashes, "number of training trees": len(trees["train"])}, trees

    def gold(self) -> dict[str, Path]:
        """Return the files of the trees that models are evaluated on."""
        return {"valid": self.valid, **({"test": self.test} if self.test else {})}


@dataclass(frozen=True)
class Variant:
    """The training text of a row: a part of the treebank, in a linear form of its trees."""

    percent: int = 100
    form: TreeForm = "by-word"

    def part_of(self, trees: Sequence[Tree]) -> list[Tree]:
        """Return a random part of the trees, in their order. It is always the same, and contains smaller parts."""
        order = random.Random(1).sample(range(len(trees)), len(trees))
        return [trees[i] for i in sorted(order[: self.size(len(trees))])]

    def size(self, n_trees: int) -> int:
        """Return the number of trees in the part of `n_trees` trees: at least 1."""
        return max(1, round(n_trees * self.percent / 100))


@dataclass(frozen=True)
class TreeTexts(Texts):
    """The texts of a training: words and symbols. gold: the files of the trees that its model is evaluated on."""

    gold: Mapping[str, Path] = field(default_factory=dict)

    headline: ClassVar[Mapping[str, str]] = {"f1": "F1"}

    def evaluations(self) -> dict[str, list[str]]:
        """Return the arguments of `transduce evaluate MODEL` for the validation trees and the test trees."""
        return {name: ["--trees", str(path), "--json"] for name, path in self.gold.items()}

    def figures(self, output: JsonObject) -> JsonObject:
        """Return the scores and the counts behind them, which are the whole output of an evaluation."""
        return output


def write_tree_texts(
    trees: Mapping[str, Sequence[Tree]], variant: Variant, gold: Mapping[str, Path], folder: Path
) -> TreeTexts:
    """Write the texts of a variant to `folder`, and return them. trees: from `Treebanks.read`. gold: of `TreeTexts`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "train" if variant.percent == 100 else f"train-{variant.percent}"
    train = _write(folder / name, variant.part_of(trees["train"]), variant.form)
    return TreeTexts(train, _write(folder / "valid", trees["valid"], variant.form), gold=gold)


def _write(path: Path, trees: Sequence[Tree], form: TreeForm) -> FilePair:
    """Write words and symbols of the trees to files whose names begin with `path`."""
    ending = "symbols" if form == "by-word" else f"{form}.symbols"
    words, symbols = Path(f"{path}.words"), Path(f"{path}.{ending}")
    write_file(words, "".join(f"{sentence_of(tree.words)}\n" for tree in trees).encode())
    write_file(symbols, "".join(f"{' '.join(linearize(tree, form))}\n" for tree in trees).encode())
    return words, symbols


# The order of the trainings (row, seed) gives a study that is stopped early as much as possible.
PLAN = (
    *((row, 1) for row in ("base", "topdown", "data20", "n2")),
    ("base", 2),
    *((row, 1) for row in ("data50", "d64", "n6")),
    ("topdown", 2),
    ("d192", 1),
)
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
# The rows with a separate training text.
VARIANTS = {"data20": Variant(20), "data50": Variant(50), "topdown": Variant(form="top-down")}


# ---- entries in results.json -------------------------------------------------------------------------------------


# valid: the number of outputs that are a tree over the words of the gold tree.
TREE_SCORES = figures_type(
    "f1",
    sentences=PositiveInt,
    valid=Annotated[int, Meta(ge=0, le=1 << 62)],
    precision=Percent,
    recall=Percent,
    exact=Percent,
    tagging=Percent,
)
PARSER = figures_type(
    "f1",
    "steps",
    curve=list[figures_type("step", valid_f1=Percent)],
    valid=TREE_SCORES,
    optional={"test": TREE_SCORES},
)
Table4Settings = TypedDict("Table4Settings", {"number of training trees": PositiveInt})
STUDY = Study("table4", lambda name, settings: [TRAINING, PARSER], Table4Settings)

# ---- the study ---------------------------------------------------------------------------------------------------


def trainings() -> list[Training]:
    """Return the trainings of the table, in their order of execution."""
    return [Training(row, seed, f"small-table4-{row if row in table4.ROWS else 'base'}") for row, seed in PLAN]


def run_table4(
    banks: Treebanks, out: Path, selection: Sequence[Training], *, jobs: int | None = None, rerun: bool = False
) -> Results:
    """Train and evaluate the rows of `selection` that are not yet in OUT/results.json, and write the report.

    selection: `trainings()`, or others of its rows. jobs, rerun: as in `schedule.run_trainings`.
    """
    settings, trees = banks.read()
    results = STUDY.open(out, settings)
    with reported(results, report):
        folder = out / "runs" / "texts"
        variants = (Variant(), *VARIANTS.values())
        texts = {variant: write_tree_texts(trees, variant, banks.gold(), folder) for variant in variants}
        by_row = {row: texts[variant] for row, variant in VARIANTS.items()}
        run_trainings(selection, texts[Variant()], results, jobs=jobs, rerun=rerun, other_data=by_row)
    return results


# ---- the report --------------------------------------------------------------------------------------------------

LEARNING = ("base", "topdown", "n2", "data20")  # the rows whose progress is drawn

SCORES = {"precision": "precision", "recall": "recall", "exact": "exact match", "tagging": "tagging accuracy"}
IN_WORDS = {"valid": "validation trees", "test": "test trees"}

WSJ, SEMI = "WSJ only, discriminative", "semi-supervised"

# Parser, training, and F1 on section 23 of the Wall Street Journal.
PAPER = (
    ("Vinyals & Kaiser et al. (2014)", WSJ, 88.3),
    ("Petrov et al. (2006)", WSJ, 90.4),
    ("Zhu et al. (2013)", WSJ, 90.4),
    ("Dyer et al. (2016)", WSJ, 91.7),
    ("Transformer (4 layers)", WSJ, 91.3),
    ("Zhu et al. (2013)", SEMI, 91.3),
    ("Huang & Harper (2009)", SEMI, 91.3),
    ("McClosky et al. (2006)", SEMI, 92.1),
    ("Vinyals & Kaiser et al. (2014)", SEMI, 92.1),
    ("Transformer (4 layers)", SEMI, 92.7),
    ("Luong et al. (2015)", "multi-task", 93.0),
    ("Dyer et al. (2016)", "generative", 93.3),
)


def report(results: Results) -> Report:
    """Return the report of the results so far."""
    study = _Table4Study(results)
    return report_of(
        results,
        lead=study.lead(),
        effects=study.effects(),
        spread=study.spread(),
        scores=study.figures(),
        missing=[title for row, title in TITLES.items() if not study.entries[row]],
        drawings=study.drawings(),
        costs=study.costs(),
        paper=study.paper(),
    )


class _Table4Study:
    """The results as parts of the report. A text is "valid" or "test"."""

    def __init__(self, results: Results) -> None:
        self.done = results.done()
        self.entries = rows_of(results, TITLES)
        self.n_trees: int = results.settings["number of training trees"]
        self.texts = [text for text in IN_WORDS if any(text in entry for entry in self.done)] or ["valid"]
        self.f1 = {text: samples_of(results, TITLES, text, "f1") for text in IN_WORDS}

    def lead(self) -> str:
        n_rows = sum(map(bool, self.entries.values()))
        lead = f"The parser of section 6.3 on another treebank, of {self.n_trees:,} training trees: {len(self.done)} "
        lead += f"trainings of {n_rows} of {len(TITLES)} rows done."
        for entry in self.entries["base"][:1]:
            lead += f" Base has {self.entries['base'].sizes()} and {entry['steps']:,} steps."
            for text in self.texts:
                lead += f" The {IN_WORDS[text]} are {entry[text]['sentences']:,}." if text in entry else ""
        return lead

    def effects(self) -> Table:
        head = [cell for text in self.texts for cell in (f"F1, {IN_WORDS[text]}, 95 % interval", "compared with base")]
        lines = []
        for row in (row for row in TITLES if row != "base"):
            cells = [TITLES[row]]
            for text in self.texts:
                change = self.f1[text].change(row, "base")
                cells += [as_points(change), change.verdict(more_is_better=True)] if change else [NOT_RUN, ""]
            lines.append(cells)
        quiet = frozenset(number for number, cells in enumerate(lines) if cells[1] == NOT_RUN)
        return Table(["change", *head], lines, quiet=quiet, words=frozenset(range(1 + len(head))))

    def spread(self) -> str:
        """Return the standard deviation between seeds in words."""
        spread = self.f1["valid"].spread
        if spread is None:
            return "is unknown, since no row has two seeds. So every difference is inconclusive"
        degrees = "degree" if spread.freedom == 1 else "degrees"
        return f"is {spread.deviation:.2f} on the validation trees, with {spread.freedom} {degrees} of freedom"

    def figures(self) -> Table:
        """Return the table of the scores of all rows."""
        has_test = "test" in self.texts
        head = ["row", "training trees", "seeds", "F1", *SCORES.values(), "valid trees"]
        head += ["F1, test trees", "valid trees, test"] * has_test
        lines = []
        for row, title in TITLES.items():
            f1, *scores = (self.entries[row].range("valid", key) for key in ("f1", *SCORES))
            cells = [f"{self.n_trees_of(row):,}", self.entries[row].seeds(), f1 or NOT_RUN, *scores]
            test = [self.entries[row].range("test", "f1"), self.valid_trees(row, "test")] * has_test
            lines.append([title, *cells, self.valid_trees(row, "valid"), *test])
        return rows_table(head, lines)

    def n_trees_of(self, row: str) -> int:
        """Return the number of training trees of a row."""
        return VARIANTS.get(row, Variant()).size(self.n_trees)

    def valid_trees(self, row: str, text: str) -> str:
        """Return the number of outputs that are a tree over the words of the gold tree, in all seeds of a row."""
        counts = [sum(self.entries[row].values(text, key)) for key in ("valid", "sentences")]
        return " of ".join(f"{count:,}" for count in counts) if counts[1] else ""

    def costs(self) -> list[list[str]]:
        """Return the rows of the table of the costs."""
        return [
            [
                TITLES[row],
                entries.sizes(),
                entries.millions(),
                f"{entries[0]['steps']:,}",
                f"{entries.mean('seconds'):,.0f}",
                f"{entries.mean('cpu_seconds'):,.0f}",
            ]
            for row, entries in self.entries.items()
            if entries
        ]

    def drawings(self) -> list[Block]:
        """Return the drawings of F1 against the training trees, and against the steps; none without their rows."""
        points = [
            (float(self.n_trees_of(row)), statistics.fmean(self.f1["valid"].values[row]))
            for row in ("data20", "data50", "base")
            if self.entries[row]
        ]
        curves = {
            TITLES[row]: [(float(point["step"]), point["valid_f1"]) for point in entry["curve"]]
            for row in LEARNING
            for entry in self.entries[row][:1]
            if entry["curve"]
        }
        drawings: list[Block] = []
        if len(points) > 1:
            drawings.append(_drawing("F1 by training trees", "validation trees, beam search", {"base": points}))
        if curves:
            drawings.append(_drawing("F1 by steps", "validation trees, greedy search, first seed", curves))
        return drawings

    def paper(self) -> Table:
        lines = [[parser, training, f"{f1:.1f}", "quoted, WSJ section 23"] for parser, training, f1 in PAPER]
        for row, title in TITLES.items():
            for text in self.texts:
                if f1 := self.entries[row].range(text, "f1"):
                    cells = ["this treebank only", f1, f"{IN_WORDS[text]}, not WSJ"]
                    lines.append([f"this study: {title}", *cells])
        quiet = frozenset(range(len(PAPER)))
        return Table(["parser", "training", "F1", "evaluated on"], lines, quiet=quiet, words=frozenset({0, 1, 3}))


def _drawing(title: str, note: str, curves: Curves) -> Figure:
    def words(points: Points) -> str:
        return ", ".join(f"{f1:.2f} at {x:,.0f}" for x, f1 in points)

    return curves_figure(title, note, progress_svg(curves, is_logarithmic=False), curves, words)
