"""Table 3: train the rows, and test the claims of section 6.2 (`table3_report`).

The rows of another size can have a separate text, a larger one: on a small text, a larger model overfits. The base
model is then trained on both texts, and each row is compared with the base of its text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transduce.errors import UserError, nearest
from transduce.evaluation.metrics import missing_scores
from transduce.studies.results import Figures, Percent, Results, Study, figures_type
from transduce.studies.runner import reported
from transduce.studies.schedule import refuse_outdated, run_trainings
from transduce.studies.table3_report import LARGE, LARGE_BASE, PAPER, SIZES, recipe_of, report
from transduce.studies.trainings import TRAINING, TRANSLATION, Texts, Training

Scale = Literal["small", "paper"]

AVERAGED = 5  # newest checkpoints; the paper's table is without a mean, so the mean is a second column

# The order of the trainings (row, seed) gives a study that is stopped early as much as possible: first a spread
# between seeds, then one row of each kind, then a better spread, and last the most expensive rows.
SMALL_PLAN = (
    *(("base", seed) for seed in (1, 2)),
    *((row, 1) for row in ("h1", "dk16", "n2", "dropout0", LARGE_BASE, "d256", "ff4096", "smoothing0", "learned")),
    *((row, 1) for row in ("n4", "ff1024", "d1024")),
    *((row, 2) for row in ("n2", "dropout0")),
)
THREE_SEEDS = ("base", "n2", "dropout0")
ONE_SEED = ("h1", "dk16", "d256", "smoothing0", "learned", "ff1024", "dropout0.2", "smoothing0.2", "n4", "h4", "ff4096")
PAPER_PLAN = (
    *((row, seed) for seed in (1, 2) for row in THREE_SEEDS),
    *((row, 1) for row in (*ONE_SEED, "dk32", "h16", "n8", "h32")),
    *((row, 3) for row in THREE_SEEDS),
    *((row, 1) for row in (LARGE_BASE, "d1024", "big")),
)
PLANS = {"small": SMALL_PLAN, "paper": PAPER_PLAN}

# At the paper's scale the table shows the paper's BLEU.
PAPER_SCORES = figures_type(bleu_compound_split=Percent)
PAPER_FIGURES = figures_type(valid=PAPER_SCORES, optional={"valid_mean": PAPER_SCORES})


def _entry_types(name: str, settings: Figures) -> list[type]:
    types = [TRAINING, TRANSLATION]
    return [*types, PAPER_FIGURES] if settings["scale"] == "paper" else types


STUDY = Study("table3", _entry_types, figures_type(scale=str))


def trainings(
    scale: Scale,
    rows: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    *,
    has_large_text: bool = False,
) -> list[Training]:
    """Return the trainings of the table, in their order of execution.

    rows: None means the rows of the plan, ["all"] every row. seeds: of each row; None means the seeds of the plan,
    or 1. has_large_text: the rows of another size have a separate text and a separate base.
    Raises UserError for a row that is not in the table.
    """
    names = [*PAPER, *([LARGE_BASE] if has_large_text else [])]
    unknown = [row for row in rows or () if row not in (*names, "all")]
    if unknown:
        expected = ", ".join([*names, "all"])
        raise UserError(*(f"--rows={row}: expected one of {expected}{nearest(row, names)}" for row in unknown))
    plan = [(row, seed) for row, seed in PLANS[scale] if row in names]
    planned = list(dict.fromkeys(row for row, _ in plan))
    others = [row for row in names if row not in planned]
    selection = planned if rows is None else [row for row in (*planned, *others) if row in rows or "all" in rows]
    if seeds is not None:
        plan = [(row, seed) for seed in seeds for row in (*planned, *others)]
    else:
        plan += [(row, 1) for row in others]
    return [_training(row, seed, scale) for row, seed in plan if row in selection]


def _training(row: str, seed: int, scale: Scale) -> Training:
    return Training(row, seed, recipe_of(row, scale), averaged=AVERAGED)


@dataclass(frozen=True)
class Table3Texts(Texts):
    """The texts of all rows. large: the texts of the rows of another size; None: the same texts."""

    large: Texts | None = None

    def read(self) -> dict[str, str]:
        """Return the hashes of all texts, by their names. Raises UserError as `Texts.read`."""
        larger = self.large.read() if self.large else {}
        return super().read() | {f"{LARGE} {name}": value for name, value in larger.items()}


def run_table3(
    texts: Table3Texts,
    out: Path,
    selection: Sequence[Training],
    *,
    scale: Scale = "small",
    jobs: int | None = None,
    rerun: bool = False,
) -> Results:
    """Train and evaluate the rows of `selection` that are not yet in OUT/results.json, and write the report.

    selection: from `trainings`, at this scale. jobs, rerun: as in `schedule.run_trainings`.
    """
    if scale == "paper" and (missing := missing_scores()):
        raise UserError(f"--scale=paper: expected the BLEU of the paper, bleu_compound_split; {missing}")
    results = STUDY.open(out, {"scale": scale, "language": texts.language, **texts.read()})
    refuse_outdated(_other_trainings(scale, selection, results), results)
    other_texts: dict[str, Texts] = {row: texts.large for row in (LARGE_BASE, *SIZES)} if texts.large else {}
    with reported(results, report):
        run_trainings(selection, texts, results, jobs=jobs, rerun=rerun, other_data=other_texts)
    return results


def _other_trainings(scale: Scale, selection: Sequence[Training], results: Results) -> list[Training]:
    """Return the trainings that have results, and are shown in the report, but are not in `selection`."""
    pairs = [(entry["row"], entry["seed"]) for entry in results.done()]
    others = [_training(row, seed, scale) for row, seed in pairs if row in PAPER or row == LARGE_BASE]
    return [training for training in others if training not in selection]
