"""Table 3: every row as a training, beside the paper's figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transduce.errors import UserError, nearest
from transduce.study.cells import Cell, Texts, run_cells
from transduce.study.results import Results, open_results

Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Published:
    """What the paper has in a row: development perplexity per token, BLEU, and parameters in millions if it says so."""

    group: str
    changed: str
    perplexity: float
    bleu: float
    parameters: int | None = None


PAPER = {
    "base": Published("", "base", 4.92, 25.8, 65),
    "h1": Published("A", "h = 1", 5.29, 24.9),
    "h4": Published("A", "h = 4", 5.00, 25.5),
    "h16": Published("A", "h = 16", 4.91, 25.8),
    "h32": Published("A", "h = 32", 5.01, 25.4),
    "dk16": Published("B", "d_k = 16", 5.16, 25.1, 58),
    "dk32": Published("B", "d_k = 32", 5.01, 25.4, 60),
    "n2": Published("C", "N = 2", 6.11, 23.7, 36),
    "n4": Published("C", "N = 4", 5.19, 25.3, 50),
    "n8": Published("C", "N = 8", 4.88, 25.5, 80),
    "d256": Published("C", "d_model = 256", 5.75, 24.5, 28),
    "d1024": Published("C", "d_model = 1024", 4.66, 26.0, 168),
    "ff1024": Published("C", "d_ff = 1024", 5.12, 25.4, 53),
    "ff4096": Published("C", "d_ff = 4096", 4.75, 26.2, 90),
    "dropout0": Published("D", "dropout 0", 5.77, 24.6),
    "dropout0.2": Published("D", "dropout 0.2", 4.95, 25.5),
    "smoothing0": Published("D", "smoothing 0", 4.67, 25.3),
    "smoothing0.2": Published("D", "smoothing 0.2", 5.47, 25.7),
    "learned": Published("E", "learned positions", 4.92, 25.7),
    "big": Published("", "big", 4.33, 26.4, 213),
}
RECIPE = {"small": "small-table3-", "paper": "vaswani2017-table3-"}

# Three seeds where a spread is asked for; then one row of each kind, so that a study that is stopped early shows most.
THRICE = ("base", "n2", "dropout0")
ORDER = (
    *(THRICE),
    *("h1", "dk16", "d256", "smoothing0", "learned", "ff1024", "dropout0.2", "smoothing0.2", "n4", "h4", "ff4096"),
    *("dk32", "h16", "n8", "h32", "d1024", "big"),
)


def cells(scale: Scale, rows: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> list[Cell]:
    """The trainings of the table, in the order in which they run.

    rows: None means all. seeds: of each row; None means 1, 2 and 3 for the rows of `THRICE`, 1 for the others.
    Raises UserError for a row that the table does not have.
    """
    unknown = [row for row in rows or () if row not in PAPER]
    if unknown:
        raise UserError(
            *(f"--rows {row}: Table 3 has no such row{nearest(row, PAPER)}" for row in unknown),
            f"its rows are {' '.join(PAPER)}",
        )
    chosen = [row for row in ORDER if rows is None or row in rows]
    made = [
        Cell(row, seed, RECIPE[scale] + row)
        for row in chosen
        for seed in seeds or ((1, 2, 3) if row in THRICE else (1,))
    ]
    return made if seeds else sorted(made, key=lambda cell: (cell.row not in THRICE, cell.seed))


def run_table3(
    texts: Texts,
    out: Path,
    *,
    scale: Scale = "small",
    rows: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    jobs: int | None = None,
) -> Results:
    """Train and judge the cells of the table that are not yet in OUT/results.json; see `run_cells`."""
    wanted = cells(scale, rows, seeds)
    results = open_results(out, "table3", {"scale": scale, "language": texts.language, **texts.read()})
    run_cells(wanted, texts, results, jobs=jobs)
    return results
