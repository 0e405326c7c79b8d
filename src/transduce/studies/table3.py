"""Table 3: every row as a training, and what its change does beside what it did in the paper."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transduce.errors import UserError, nearest
from transduce.evaluation.page import duration
from transduce.evaluation.study_charts import Change, changes_height, changes_svg
from transduce.evaluation.study_report import Figure, Report, Section, Table, write_report
from transduce.recipes import find_recipe, table3
from transduce.studies.results import Results, open_results
from transduce.studies.trainings import Cell, Texts, run_cells

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

# The order of the trainings (row, seed), so that a study that is stopped early shows most: a first spread, then one row
# of each kind, a better spread, and the dearest rows last.
THRICE = ("base", "n2", "dropout0")
ONCE = ("h1", "dk16", "d256", "smoothing0", "learned", "ff1024", "dropout0.2", "smoothing0.2", "n4", "h4", "ff4096")
ONCE_LATER = ("dk32", "h16", "n8", "h32")
DEAREST = ("d1024", "big")
PLAN = (
    *((row, seed) for seed in (1, 2) for row in THRICE),
    *((row, 1) for row in (*ONCE, *ONCE_LATER)),
    *((row, 3) for row in THRICE),
    *((row, 1) for row in DEAREST),
)


def cells(scale: Scale, rows: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> list[Cell]:
    """The trainings of the table, in the order in which they run.

    rows: None means all. seeds: of each row; None means those of `PLAN`.
    Raises UserError for a row that the table does not have.
    """
    unknown = [row for row in rows or () if row not in PAPER]
    if unknown:
        raise UserError(
            *(f"--rows {row}: Table 3 has no such row{nearest(row, PAPER)}" for row in unknown),
            f"its rows are {' '.join(PAPER)}",
        )
    order = dict.fromkeys(row for row, _ in PLAN)
    plan = PLAN if seeds is None else [(row, seed) for seed in seeds for row in order]
    return [Cell(row, seed, RECIPE[scale] + row) for row, seed in plan if rows is None or row in rows]


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
    try:
        run_cells(wanted, texts, results, jobs=jobs)
    finally:
        if results.cells:
            write_report(out, report(results), results.sessions)
    return results


# ---- what came of it ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What is known of a row. cells: those of its seeds that are done, as results.json has them."""

    name: str
    cells: list[dict[str, Any]]

    @property
    def perplexities(self) -> list[float]:
        return [cell["perplexity"] for cell in self.cells]

    @property
    def bleus(self) -> list[float]:
        return [cell["bleu"] for cell in self.cells]


def table(results: Results) -> dict[str, Row]:
    """Every row of Table 3, in its order, with what was found; also those that were not run."""
    done = [cell for cell in results.cells.values() if cell["status"] == "done"]
    return {name: Row(name, [cell for cell in done if cell["row"] == name]) for name in PAPER}


T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # Student's t, 95 %, by degrees of freedom from 1


@dataclass(frozen=True)
class Noise:
    """How far seeds lie apart: the standard deviation, and by how many degrees of freedom it is known."""

    deviation: float
    freedom: int

    def interval(self, several: int, others: int) -> float:
        """Half the 95 % interval of a difference between a mean of `several` seeds and one of `others`."""
        t = T95[min(self.freedom, len(T95)) - 1]
        return t * self.deviation * math.sqrt(1 / several + 1 / others)


def noise(samples: Sequence[Sequence[float]]) -> Noise | None:
    """The noise of a figure by all rows that have several seeds; None if there is no such row."""
    several = [values for values in samples if len(values) > 1]
    if not several:
        return None
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in several)
    return Noise(math.sqrt(squares / freedom), freedom)


def effect(values: Sequence[float], base: Sequence[float], spread: Noise | None) -> str:
    """What a change does to a figure of which more is better: "helps", "hurts", or neither that can be told.

    Within noise: by less than the 95 % interval of the difference. spread: between seeds; None if not known.
    """
    if spread is None:
        return "spread unknown"
    difference = statistics.fmean(values) - statistics.fmean(base)
    if abs(difference) <= spread.interval(len(values), len(base)):
        return "within noise"
    return "helps" if difference > 0 else "hurts"


def _published_effect(difference: float, smallest: float) -> str:
    """The same for the paper's figures, of which no spread is known: a difference of one last digit is none."""
    return "no change" if abs(difference) <= smallest else "helps" if difference > 0 else "hurts"


def report(results: Results) -> Report:
    """The table beside the paper's, and what each change does here and there."""
    rows, scale = table(results), results.asked["scale"]
    missing = [row.name for row in rows.values() if not row.cells]
    trained = sum(len(row.cells) for row in rows.values())
    lead = f"The variations on the Transformer, at {SCALES[scale]}: {trained} trainings of {len(cells(scale))} done"
    lead += f"; {len(missing)} of {len(rows)} rows not run." if missing else ", every row at least once."
    noises = noise([row.bleus for row in rows.values()]), noise([_goodness(row) for row in rows.values()])
    parts: list[str | Table | Figure] = [_comparison(rows, *noises)]
    if rows["base"].cells:
        parts += [_changes("BLEU", rows), _changes("perplexity", rows)]
    parts += [
        "A change hurts or helps if it moves a figure by more than the 95 % interval of the difference (Student's t), "
        f"by the spread between seeds{_spread(*noises)}. The paper gives no spread; there a difference of 0.1 BLEU or "
        "2 % of perplexity counts as no change. Smoothing raises perplexity by design.",
        "Perplexity is per token of the development text, and depends on the vocabulary: it compares with the other "
        "rows here, not with the paper's. BLEU is sacreBLEU 13a by beam search on the same text, from the last "
        "checkpoint, as the paper has its own; text and scale differ, so the differences compare, not the figures.",
    ]
    return Report(
        f"Table 3 at {scale} scale",
        lead,
        [
            Section("Does each change do what it did there?", parts),
            Section("Every row", [_figures(rows, scale), *_not_run(results, missing)]),
        ],
    )


SCALES = {
    "small": "small scale, with a quarter of the widths, half of the layers and 800 steps",
    "paper": "the paper's scale",
}


def _goodness(row: Row) -> list[float]:
    """Perplexity as a figure of which more is better, and equal factors are equal differences."""
    return [-math.log(value) for value in row.perplexities]


def _comparison(rows: dict[str, Row], bleu_noise: Noise | None, log_noise: Noise | None) -> Table:
    """For each row what its change did in the paper, and what it does here."""
    base, there = rows["base"], PAPER["base"]
    head = ["change", "BLEU: paper", "here", "as there?", "perplexity: paper", "here", "as there?"]
    lines, quiet = [], set()
    for number, (name, row) in enumerate((name, row) for name, row in rows.items() if name != "base"):
        paper = PAPER[name]
        bleu_change, factor = paper.bleu - there.bleu, paper.perplexity / there.perplexity
        said = [
            _published_effect(bleu_change, 0.1 + 1e-9),
            _published_effect(-math.log(factor), math.log(1.02)),
        ]
        if row.cells and base.cells:
            found = [
                effect(row.bleus, base.bleus, bleu_noise),
                effect(_goodness(row), _goodness(base), log_noise),
            ]
            moved = [
                f"{statistics.fmean(row.bleus) - statistics.fmean(base.bleus):+.2f} {found[0]}",
                f"x {math.exp(statistics.fmean(_goodness(base)) - statistics.fmean(_goodness(row))):.3f} {found[1]}",
            ]
            agree = [_agree(*pair) for pair in zip(said, found, strict=True)]
        else:
            moved, agree = ["not run", "not run"], ["", ""]
            quiet.add(number)
        lines.append(
            [
                _title(name),
                f"{bleu_change:+.1f} {said[0]}",
                moved[0],
                agree[0],
                f"x {factor:.3f} {said[1]}",
                moved[1],
                agree[1],
            ]
        )
    return Table(head, lines, quiet=frozenset(quiet), words=frozenset(range(7)))


def _agree(there: str, here: str) -> str:
    """Whether a change does what it did there; where either has no clear effect, nothing can be told."""
    if here not in ("helps", "hurts") or there == "no change":
        return "cannot be told"
    return "yes" if there == here else "no"


def _title(name: str) -> str:
    paper = PAPER[name]
    return f"({paper.group}) {paper.changed}" if paper.group else paper.changed


def _spread(bleu: Noise | None, log_perplexity: Noise | None) -> str:
    if bleu is None or log_perplexity is None:
        return ", which is not known yet"
    return (
        f" (standard deviation {bleu.deviation:.2f} BLEU, {100 * log_perplexity.deviation:.1f} % of "
        f"perplexity, with {bleu.freedom} degrees of freedom)"
    )


def _changes(figure: str, rows: dict[str, Row]) -> Figure:
    """How far each row is from base in one figure, there and here."""
    base, changes = rows["base"], []
    for name, row in rows.items():
        if name == "base":
            continue
        if figure == "BLEU":
            middle = statistics.fmean(base.bleus)
            change = Change(_title(name), PAPER[name].bleu - PAPER["base"].bleu, [v - middle for v in row.bleus])
        else:
            middle = math.exp(-statistics.fmean(_goodness(base)))
            there = 100 * (PAPER[name].perplexity / PAPER["base"].perplexity - 1)
            change = Change(_title(name), there, [100 * (v / middle - 1) for v in row.perplexities])
        changes.append(change)
    alt = "; ".join(
        f"{change.name}: {change.there:+.1f} there, "
        + (f"{statistics.fmean(change.here):+.1f} here" if change.here else "not run here")
        for change in changes
    )
    note = "points; right is better" if figure == "BLEU" else "per cent; left is better"
    legend = [("in the paper", "there"), ("here", "here")]
    drawing, height = changes_svg(changes), changes_height(len(changes))
    return Figure(f"Change of {figure} from base", drawing, height, alt, note, legend, margins=(132, 36))


def _figures(rows: dict[str, Row], scale: str) -> Table:
    """The figures themselves."""
    head = ["row", "here", "perplexity", "BLEU", "seeds", "parameters"]
    head += ["perplexity in the paper", "BLEU", "parameters"]
    head += ["processor time"]
    lines, quiet = [], set()
    for number, (name, row) in enumerate(rows.items()):
        paper = PAPER[name]
        quoted = [f"{paper.perplexity:.2f}", f"{paper.bleu:.1f}", f"{paper.parameters} M" if paper.parameters else ""]
        if row.cells:
            cost = duration(statistics.fmean(cell["cpu_seconds"] for cell in row.cells))
            seeds = " ".join(str(cell["seed"]) for cell in sorted(row.cells, key=lambda cell: cell["seed"]))
            parameters = f"{row.cells[0]['parameters'] / 1e6:.2f} M"
            own = [_with_spread(row.perplexities), _with_spread(row.bleus), seeds, parameters]
        else:
            own, cost = ["not run", "not run", "", ""], ""
            quiet.add(number)
        lines.append([_title(name), _here(name, scale), *own, *quoted, cost])
    return Table(head, lines, quiet=frozenset(quiet), words=frozenset({0, 1}))


def _here(name: str, scale: str) -> str:
    """What a row changes, as it is at this scale; of base, its sizes."""
    config = find_recipe(RECIPE[scale] + name)()
    values = {**dataclasses.asdict(config.model), **dataclasses.asdict(config.train)}
    return ", ".join(f"{key} {values[key]}" for key in table3.ROWS[name] or table3.BASE)


def _with_spread(values: Sequence[float]) -> str:
    """The mean, and of several values how far the lowest and the highest are."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _not_run(results: Results, missing: Sequence[str]) -> list[str]:
    """What is missing, and why."""
    failed = [f"{name}: {cell['why']}" for name, cell in results.cells.items() if cell["status"] == "failed"]
    said = ["Figures of several seeds are their mean, with the lowest and the highest. Processor time is for one."]
    if missing:
        said.append(f"Not run: {', '.join(missing)}.")
    if failed:
        said.append(f"Failed: {'; '.join(failed)}.")
    return said
