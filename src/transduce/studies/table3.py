"""Table 3: train every row, and compare the effect of its change with its effect in the paper."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transduce.config.schema import Config, architecture
from transduce.errors import UserError, nearest
from transduce.evaluation.metrics import missing_scores
from transduce.evaluation.page import duration
from transduce.evaluation.study_charts import Change, changes_height, changes_svg
from transduce.evaluation.study_report import Figure, Report, Section, Table, write_report
from transduce.recipes import find_recipe, table3
from transduce.studies.effects import Noise, effect, noise, published_effect, verdict
from transduce.studies.entries import config_of
from transduce.studies.results import Results, open_results
from transduce.studies.schedule import refuse_outdated, run_trainings
from transduce.studies.trainings import Texts, Training

Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Published:
    """A row of the paper: perplexity per token and BLEU on the development set, and parameters in millions or None."""

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

# The order of the trainings (row, seed) gives a study that is stopped early as much as possible: first a spread
# between seeds, then one row of each kind, then a better spread, and last the most expensive rows.
THREE_SEEDS = ("base", "n2", "dropout0")
ONE_SEED = ("h1", "dk16", "d256", "smoothing0", "learned", "ff1024", "dropout0.2", "smoothing0.2", "n4", "h4", "ff4096")
ONE_SEED_LATER = ("dk32", "h16", "n8", "h32")
EXPENSIVE = ("d1024", "big")
PLAN = (
    *((row, seed) for seed in (1, 2) for row in THREE_SEEDS),
    *((row, 1) for row in (*ONE_SEED, *ONE_SEED_LATER)),
    *((row, 3) for row in THREE_SEEDS),
    *((row, 1) for row in EXPENSIVE),
)


def trainings(scale: Scale, rows: Sequence[str] | None = None, seeds: Sequence[int] | None = None) -> list[Training]:
    """Return the trainings of the table, in their order of execution.

    rows: None means all. seeds: of each row; None means the seeds in `PLAN`.
    Raises UserError for a row that is not in the table.
    """
    unknown = [row for row in rows or () if row not in PAPER]
    if unknown:
        names = ", ".join(PAPER)
        raise UserError(*(f"--rows={row}: expected one of {names}{nearest(row, PAPER)}" for row in unknown))
    order = dict.fromkeys(row for row, _ in PLAN)
    plan = PLAN if seeds is None else [(row, seed) for seed in seeds for row in order]
    return [Training(row, seed, RECIPE[scale] + row) for row, seed in plan if rows is None or row in rows]


def run_table3(
    texts: Texts,
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
    results = open_results(out, "table3", {"scale": scale, "language": texts.language, **texts.read()})
    refuse_outdated(_other_trainings(scale, selection, results), results)
    try:
        run_trainings(selection, texts, results, jobs=jobs, rerun=rerun)
    finally:
        if results.entries:
            write_report(out, report(results), results.sessions)
    return results


def _other_trainings(scale: Scale, selection: Sequence[Training], results: Results) -> list[Training]:
    """Return the trainings that have results, and are shown in the report, but are not in `selection`."""
    pairs = [(entry["row"], entry["seed"]) for entry in results.entries.values() if entry["status"] == "done"]
    done = [Training(row, seed, RECIPE[scale] + row) for row, seed in pairs if row in PAPER]
    return [training for training in done if training not in selection]


# ---- results -----------------------------------------------------------------------------------------------------

SCORES = {"small": "bleu", "paper": "bleu_compound_split"}  # the BLEU in the table; the paper's has compounds split


@dataclass(frozen=True)
class Row:
    """The results of a row. entries: of the seeds that are done, from results.json. score: one of `SCORES`."""

    name: str
    entries: list[dict[str, Any]]
    score: str = "bleu"

    @property
    def config(self) -> Config | None:
        """The configuration of the first seed; None if the row was not run, or if its entry does not have it."""
        return config_of(self.entries[0]) if self.entries else None

    @property
    def perplexities(self) -> list[float]:
        return [entry["perplexity"] for entry in self.entries]

    @property
    def bleus(self) -> list[float]:
        return [entry["valid"][self.score] if self.score != "bleu" else entry["bleu"] for entry in self.entries]


def table(results: Results) -> dict[str, Row]:
    """Return every row of Table 3, in its order, with its results; a row that was not run has none."""
    score = SCORES[results.settings["scale"]]
    entries = [entry for entry in results.entries.values() if entry["status"] == "done"]
    return {name: Row(name, [entry for entry in entries if entry["row"] == name], score) for name in PAPER}


def report(results: Results) -> Report:
    """Return the report: the effect of each change here and in the paper, and all figures with the paper's."""
    rows = table(results)
    scale = results.settings["scale"]
    missing = [row.name for row in rows.values() if not row.entries]
    count = sum(len(row.entries) for row in rows.values())
    lead = f"The variations on the Transformer, at {_scale(scale, rows['base'])}: {count} trainings of "
    lead += f"{len(trainings(scale))} done"
    lead += f"; {len(missing)} of {len(rows)} rows not run." if missing else ", every row at least once."
    noises = noise([row.bleus for row in rows.values()]), noise([_goodness(row) for row in rows.values()])
    blocks: list[str | Table | Figure] = [_comparison(rows, *noises)]
    if rows["base"].entries:
        blocks += [_changes("BLEU", rows), _changes("perplexity", rows)]
    blocks += [
        "A change hurts or helps if it moves a figure by more than the 95 % interval of the difference (Student's t), "
        f"by the spread between seeds{_spread(*noises)}. The paper gives no spread: a difference there of at most "
        f"{SMALLEST_BLEU} BLEU or {100 * SMALLEST_FACTOR - 100:.0f} % of perplexity counts as no change. Such a change "
        'is "yes, none" if it is as small here, "no" if it is larger here and beyond noise, and otherwise unclear. '
        "Label smoothing raises perplexity by design.",
        "Perplexity is per token of the development text and depends on the vocabulary, so compare it with the other "
        f"rows here, not with the paper's. BLEU is {BLEU_IN_WORDS[scale]}, of beam search on the same text, from the "
        "last checkpoint, as in the paper. Text and scale differ from the paper's: compare differences, not figures.",
    ]
    return Report(
        f"Table 3 at {scale} scale",
        lead,
        [
            Section("Does each change have the same effect as in the paper?", blocks),
            Section("Every row", [_figures(rows, scale), *_not_run(results, missing)]),
        ],
    )


BLEU_IN_WORDS = {
    "small": "sacreBLEU 13a",
    "paper": "tokenised BLEU with compounds split (`bleu_compound_split`), the paper's",
}
SMALLEST_BLEU, SMALLEST_FACTOR = 0.1, 1.02  # the largest differences in the paper that count as no change


def _scale(scale: Scale, base: Row) -> str:
    """Return the scale in words, with the sizes and steps of the base row that was trained."""
    name = {"small": "small scale", "paper": "the paper's scale"}[scale]
    if not base.entries:
        return name
    config, steps = base.config, base.entries[0].get("steps")
    sizes = architecture(config.model) if config else "settings that were not recorded"
    return f"{name}, where base has {sizes}" + (f" and {steps:,} steps" if steps else "")


def _goodness(row: Row) -> list[float]:
    """Return -log(perplexity) of each seed: larger is better, and equal factors are equal differences."""
    return [-math.log(value) for value in row.perplexities]


def _comparison(rows: dict[str, Row], bleu_noise: Noise | None, log_noise: Noise | None) -> Table:
    """Return the table of the effect of each change in the paper and here."""
    base, paper_base = rows["base"], PAPER["base"]
    limits = SMALLEST_BLEU + 1e-9, math.log(SMALLEST_FACTOR)
    head = ["change", "BLEU: paper", "here", "same effect?", "perplexity: paper", "here", "same effect?"]
    lines = []
    quiet = set()
    for number, (name, row) in enumerate((name, row) for name, row in rows.items() if name != "base"):
        paper = PAPER[name]
        bleu_change, factor = paper.bleu - paper_base.bleu, paper.perplexity / paper_base.perplexity
        in_paper = [published_effect(bleu_change, limits[0]), published_effect(-math.log(factor), limits[1])]
        changes, agreement = ["not run", "not run"], ["", ""]
        if row.entries and base.entries:
            in_study = [effect(row.bleus, base.bleus, bleu_noise), effect(_goodness(row), _goodness(base), log_noise)]
            differences = [
                statistics.fmean(row.bleus) - statistics.fmean(base.bleus),
                statistics.fmean(_goodness(row)) - statistics.fmean(_goodness(base)),
            ]
            changes = [f"{differences[0]:+.2f} {in_study[0]}", f"x {math.exp(-differences[1]):.3f} {in_study[1]}"]
            agreement = [verdict(*pair) for pair in zip(in_paper, in_study, differences, limits, strict=True)]
        else:
            quiet.add(number)
        lines.append(
            [
                _title(name),
                f"{bleu_change:+.1f} {in_paper[0]}",
                changes[0],
                agreement[0],
                f"x {factor:.3f} {in_paper[1]}",
                changes[1],
                agreement[1],
            ]
        )
    return Table(head, lines, quiet=frozenset(quiet), words=frozenset(range(7)))


def _title(name: str) -> str:
    paper = PAPER[name]
    return f"({paper.group}) {paper.changed}" if paper.group else paper.changed


def _spread(bleu: Noise | None, log_perplexity: Noise | None) -> str:
    if bleu is None or log_perplexity is None:
        return ", which is unknown so far"
    return (
        f" (standard deviation {bleu.deviation:.2f} BLEU, {100 * log_perplexity.deviation:.1f} % of "
        f"perplexity, with {bleu.freedom} degrees of freedom)"
    )


def _changes(figure: str, rows: dict[str, Row]) -> Figure:
    """Return the drawing of the difference of each row from base in one figure, in the paper and here."""
    base = rows["base"]
    changes = []
    for name, row in rows.items():
        if name == "base":
            continue
        if figure == "BLEU":
            middle = statistics.fmean(base.bleus)
            change = Change(_title(name), PAPER[name].bleu - PAPER["base"].bleu, [v - middle for v in row.bleus])
        else:
            middle = math.exp(-statistics.fmean(_goodness(base)))
            paper_change = 100 * (PAPER[name].perplexity / PAPER["base"].perplexity - 1)
            change = Change(_title(name), paper_change, [100 * (v / middle - 1) for v in row.perplexities])
        changes.append(change)
    alt = "; ".join(
        f"{change.name}: {change.in_paper:+.1f} in the paper, "
        + (f"{statistics.fmean(change.in_runs):+.1f} here" if change.in_runs else "not run here")
        for change in changes
    )
    note = "points; right is better" if figure == "BLEU" else "per cent; left is better"
    legend = [("in the paper", "there"), ("here", "here")]
    drawing, height = changes_svg(changes), changes_height(len(changes))
    return Figure(f"Change of {figure} from base", drawing, height, alt, note, legend, margins=(132, 36))


def _figures(rows: dict[str, Row], scale: str) -> Table:
    """Return the table of all figures beside the paper's."""
    penalties = {name: _brevity(row) for name, row in rows.items()}
    has_penalties = any(penalties.values())
    head = ["row", "here", "perplexity", "BLEU", *["brevity penalty"] * has_penalties, "seeds", "parameters"]
    head += ["perplexity in the paper", "BLEU", "parameters", "processor time"]
    lines = []
    quiet = set()
    for number, (name, row) in enumerate(rows.items()):
        paper = PAPER[name]
        theirs = [f"{paper.perplexity:.2f}", f"{paper.bleu:.1f}", f"{paper.parameters} M" if paper.parameters else ""]
        if row.entries:
            cost = duration(statistics.fmean(entry["cpu_seconds"] for entry in row.entries))
            seeds = " ".join(str(seed) for seed in sorted(entry["seed"] for entry in row.entries))
            parameters = f"{row.entries[0]['parameters'] / 1e6:.2f} M"
            scores = [_with_spread(row.perplexities), _with_spread(row.bleus)]
            ours = [*scores, *[penalties[name]] * has_penalties, seeds, parameters]
        else:
            cost, ours = "", ["not run", "not run", *[""] * has_penalties, "", ""]
            quiet.add(number)
        lines.append([_title(name), _settings_here(row, scale), *ours, *theirs, cost])
    return Table(head, lines, quiet=frozenset(quiet), words=frozenset({0, 1}))


def _settings_here(row: Row, scale: str) -> str:
    """Return the settings that a row changes, as it was trained, or else as in its recipe; for base, its sizes."""
    config = row.config if row.entries else find_recipe(RECIPE[scale] + row.name)()
    if config is None:
        return "not recorded"
    values = {**dataclasses.asdict(config.model), **dataclasses.asdict(config.train)}
    return ", ".join(f"{key} {values.get(key)}" for key in table3.ROWS[row.name] or table3.BASE)


def _brevity(row: Row) -> str:
    """Return the mean brevity penalty of the seeds that have it; "" if none has it, as in results of 0.1.0."""
    brevities = [entry.get("valid", {}).get("brevity", {}).get(row.score) for entry in row.entries]
    penalties = [brevity["penalty"] for brevity in brevities if brevity]
    return f"{statistics.fmean(penalties):.3f}" if penalties else ""


def _with_spread(values: Sequence[float]) -> str:
    """Return the mean, and for several values also the lowest and the highest."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _not_run(results: Results, missing: Sequence[str]) -> list[str]:
    """Return the notes below the table of figures: the rows that were not run, and the trainings that failed."""
    failures = [f"{name}: {entry['why']}" for name, entry in results.entries.items() if entry["status"] == "failed"]
    notes = [
        "A figure of several seeds is their mean, with the lowest and the highest. Processor time is per training."
    ]
    if missing:
        notes.append(f"Not run: {', '.join(missing)}.")
    if failures:
        notes.append(f"Failed: {'; '.join(failures)}.")
    return notes
