"""Table 4: train parsers on a treebank, and set them beside the paper's.

The paper's table has one parser, of 4 layers. The rows here vary it: layers, d_model, the part of the treebank that it
is trained on, and the linear form of the trees. All rows have the same number of steps.
"""

from collections.abc import Sequence
from pathlib import Path

from transduce.config.recipes import table4
from transduce.evaluation.study_report import write_report
from transduce.studies.results import Results, open_results
from transduce.studies.schedule import run_trainings
from transduce.studies.table4_report import VARIANTS, report
from transduce.studies.trainings import Training
from transduce.studies.treebanks import Treebanks, Variant, write_tree_texts

# The order of the trainings (row, seed) gives a study that is stopped early as much as possible.
PLAN = (
    *((row, 1) for row in ("base", "topdown", "data20", "n2")),
    ("base", 2),
    *((row, 1) for row in ("data50", "d64", "n6")),
    ("topdown", 2),
    ("d192", 1),
)


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
    results = open_results(out, "table4", settings)
    try:
        folder = out / "runs" / "texts"
        texts = {one: write_tree_texts(trees, one, banks.gold(), folder) for one in (Variant(), *VARIANTS.values())}
        by_row = {row: texts[variant] for row, variant in VARIANTS.items()}
        run_trainings(selection, texts[Variant()], results, jobs=jobs, rerun=rerun, other_data=by_row)
    finally:
        if results.entries:
            write_report(out, report(results), results.sessions)
    return results
