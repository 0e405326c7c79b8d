"""The report of Table 3: the claims of section 6.2, the effect of each change, and all figures with the paper's."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from transduce.config.recipes import find_recipe, table3
from transduce.config.schema import Config, architecture
from transduce.evaluation.page import duration
from transduce.evaluation.study_charts import Change, changes_height, changes_svg
from transduce.evaluation.study_report import Block, Figure, Report, Section, Table
from transduce.studies.comparison import (
    NOT_RUN,
    ClaimVerdict,
    Difference,
    Samples,
    as_factor,
    as_points,
    claim_verdict,
    mean_and_range,
    overall,
    seeds_of,
)
from transduce.studies.results import Entry, Results, config_of
from transduce.studies.table3_paper import CLAIMS, PAPER, SMALLEST_FACTOR, Claim

SCORES = {"small": "bleu", "paper": "bleu_compound_split"}  # the BLEU in the table; the paper's has compounds split
BLEU_IN_WORDS = {
    "small": "sacreBLEU 13a",
    "paper": "tokenised BLEU with compounds split (`bleu_compound_split`), the paper's",
}
SCALES = {"small": "small scale", "paper": "the paper's scale"}
RECIPE = {"small": "small-table3-", "paper": "vaswani2017-table3-"}

SIZES = ("d256", "d1024", "ff1024", "ff4096", "big")  # the rows that can have a separate text, a larger one
LARGE = "larger"  # prefix of its hashes in results.json
LARGE_BASE = "base-large"  # the base model on that text


def recipe_of(row: str, scale: str) -> str:
    """Return the name of the recipe of a row."""
    return RECIPE[scale] + ("base" if row == LARGE_BASE else row)


@dataclass(frozen=True)
class Row:
    """The results of a row. entries: of the seeds that are done, from results.json. score: one of `SCORES`."""

    name: str
    entries: Sequence[Entry]
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

    def means(self, figure: str) -> list[float]:
        """Return a figure of the mean of checkpoints, of the seeds that have one."""
        return [entry["valid_mean"][figure] for entry in self.entries if "valid_mean" in entry]


def table(results: Results) -> dict[str, Row]:
    """Return every row of Table 3, in its order, with its results; a row that was not run has none."""
    score = SCORES[results.settings["scale"]]
    names = [*PAPER]
    if any(key.startswith(LARGE) for key in results.settings):
        names.insert(1, LARGE_BASE)
    return {name: Row(name, results.done(name), score) for name in names}


def report(results: Results) -> Report:
    """Return the report: the claims, the effect of each change here and in the paper, and all figures."""
    study = _Study(table(results))
    scale, rows = results.settings["scale"], study.rows
    missing = [title(row.name) for row in rows.values() if not row.entries]
    count = sum(len(row.entries) for row in rows.values())
    lead = f"The variations on the Transformer, at {_scale(scale, rows['base'])}: {count} trainings of "
    lead += f"{len(rows) - len(missing)} of {len(rows)} rows done."
    effects: list[Block] = [_effects(study)]
    if rows["base"].entries:
        effects += [_changes("BLEU", study), _changes("perplexity", study)]
    effects.append(
        "Perplexity is per token of the development text and depends on the vocabulary, so compare it with the other "
        f"rows here, not with the paper's. BLEU is {BLEU_IN_WORDS[scale]}, of beam search on the same text. Text and "
        "scale differ from the paper's: compare differences, not figures. Label smoothing raises perplexity by design."
    )
    return Report(
        f"Table 3 at {scale} scale",
        lead,
        [
            Section("The claims of section 6.2", [*(f"{study.sentence(claim)}." for claim in CLAIMS), study.method()]),
            Section("The effect of each change", effects),
            Section("Every row", [_figures(study, scale), *_not_run(results, missing)]),
        ],
    )


def title(name: str) -> str:
    """Return the title of a row."""
    return "base, larger text" if name == LARGE_BASE else PAPER[name].title


def _scale(scale: str, base: Row) -> str:
    """Return the scale in words, with the sizes and steps of the base row that was trained."""
    if not base.entries:
        return SCALES[scale]
    config, steps = base.config, base.entries[0].get("steps")
    sizes = architecture(config.model) if config else "settings that were not recorded"
    return f"{SCALES[scale]}, where base has {sizes}" + (f" and {steps:,} steps" if steps else "")


# ---- differences from base ---------------------------------------------------------------------------------------


class _Study:
    """The rows, with the noise between seeds of each figure, pooled over the rows.

    A figure is "BLEU", "perplexity", or "mean perplexity", of the mean of checkpoints. Perplexities are logarithms.
    """

    def __init__(self, rows: dict[str, Row]) -> None:
        self.rows = rows
        self.changed = [name for name in rows if name not in ("base", LARGE_BASE)]
        self.samples = {
            "BLEU": Samples({name: row.bleus for name, row in rows.items()}),
            "perplexity": Samples({name: [*map(math.log, row.perplexities)] for name, row in rows.items()}),
            "mean perplexity": Samples({name: [*map(math.log, row.means("perplexity"))] for name, row in rows.items()}),
        }

    def base_of(self, name: str) -> str:
        """Return the base row that was trained on the text of row `name`."""
        return LARGE_BASE if name in SIZES and LARGE_BASE in self.rows else "base"

    def change(self, name: str, figure: str) -> Difference | None:
        """Return the difference of a row from its base in a figure; None if one of them was not run."""
        return self.samples[figure].change(name, self.base_of(name))

    def sentence(self, claim: Claim) -> str:
        """Return the claim with its verdict and, if it is about several rows, the rows by their verdicts."""
        groups: dict[ClaimVerdict, list[str]] = {}
        missing = []
        for name, effect in claim.effects.items():
            change = self.change(name, "perplexity")
            if change is None:
                missing.append(PAPER[name].changed)
                continue
            verdict = claim_verdict(effect, change, math.log(SMALLEST_FACTOR))
            groups.setdefault(verdict, []).append(f"{PAPER[name].changed} (perplexity {as_factor(change)})")
        not_run = [f"not run: {', '.join(missing)}"] if missing else []
        if not groups:
            return f"{claim.sentence}: inconclusive, {not_run[0]}"
        verdicts = [f"{verdict}: {', '.join(names)}" for verdict, names in groups.items()]
        if len(claim.effects) == 1:
            return f"{claim.sentence}: {verdicts[0]}"
        return f"{claim.sentence}: {overall(groups)}. By row: {'; '.join([*verdicts, *not_run])}"

    def method(self) -> str:
        """Return the rule of the verdicts, with the spread between seeds."""
        spread = self.samples["perplexity"].spread
        known = "is unknown so far" if spread is None else f"is {100 * spread.deviation:.1f} % of perplexity"
        known += "" if spread is None else f", with {spread.freedom} degrees of freedom"
        return (
            "The last checkpoint of each training, as in the paper. In brackets is the 95 % interval (Student's t) of "
            "the factor between a row and base. A claim holds if the whole interval is on its side of 1, and does not "
            "hold if the whole interval is on the other side. Nearly identical means within "
            f"{100 * SMALLEST_FACTOR - 100:.0f} %. A claim about several rows holds if it holds for all that were run, "
            "and does not hold if it does not for one of them. The standard deviation between seeds "
            f"{known}.{self._texts() if LARGE_BASE in self.rows else ''}"
        )

    def _texts(self) -> str:
        """Return the sentences on the larger text: its rows, and the text that the spread between seeds is from."""
        several = [name for name, row in self.rows.items() if len(row.entries) > 1]
        on_large = [name for name in several if name == LARGE_BASE or name in SIZES]
        text = " The rows of another size were trained on a larger text, and are compared with base on that text."
        if several and not on_large:
            text += (
                " No row of the larger text has several seeds: its intervals take the spread of the smaller text, from "
                f"{', '.join(map(title, several))}. If seeds differ more there, they are too narrow."
            )
        elif several:
            text += (
                " The spread is pooled over both texts: of the larger one, "
                f"{', '.join(map(title, on_large))} {'has' if len(on_large) == 1 else 'have'} several seeds."
            )
        return text


def _effects(study: _Study) -> Table:
    head = ["change", "perplexity: paper", "here, 95 % interval", "here, mean of checkpoints"]
    head += ["BLEU: paper", "here, 95 % interval"]
    lines = []
    quiet = set()
    base = PAPER["base"]
    for number, name in enumerate(study.changed):
        change = study.change(name, "perplexity")
        if change is None:
            quiet.add(number)
        lines.append(
            [
                title(name),
                f"x {PAPER[name].perplexity / base.perplexity:.3f}",
                as_factor(change) or NOT_RUN,
                as_factor(study.change(name, "mean perplexity")),
                f"{PAPER[name].bleu - base.bleu:+.1f}",
                as_points(study.change(name, "BLEU")) or NOT_RUN,
            ]
        )
    return Table(head, lines, quiet=frozenset(quiet), words=frozenset(range(6)))


def _changes(figure: str, study: _Study) -> Figure:
    changes = []
    samples = study.samples[figure].values
    for name in study.changed:
        base = samples[study.base_of(name)]
        here = [value - statistics.fmean(base) for value in samples[name] if base]
        published = PAPER[name].bleu - PAPER["base"].bleu
        if figure != "BLEU":
            published = 100 * (PAPER[name].perplexity / PAPER["base"].perplexity - 1)
            here = [100 * math.expm1(value) for value in here]
        changes.append(Change(title(name), published, here))
    alt = "; ".join(
        f"{change.name}: {change.in_paper:+.1f} in the paper, "
        + (f"{statistics.fmean(change.in_runs):+.1f} here" if change.in_runs else "not run here")
        for change in changes
    )
    note = "points; right is better" if figure == "BLEU" else "per cent; left is better"
    legend = [("in the paper", "there"), ("here", "here")]
    drawing, height = changes_svg(changes), changes_height(len(changes))
    return Figure(f"Change of {figure} from base", drawing, height, alt, note, legend, margins=(132, 36))


# ---- all figures -------------------------------------------------------------------------------------------------


def _figures(study: _Study, scale: str) -> Table:
    rows = study.rows
    penalties = {name: _brevity(row) for name, row in rows.items()}
    has_penalties = any(penalties.values())
    has_means = any(row.means("perplexity") for row in rows.values())
    head = ["row", "here", "perplexity", "BLEU", *["brevity penalty"] * has_penalties]
    head += ["perplexity, mean of checkpoints", "BLEU, mean of checkpoints"] * has_means
    head += ["seeds", "parameters", "perplexity in the paper", "BLEU", "parameters", "processor time"]
    lines = []
    quiet = set()
    for number, (name, row) in enumerate(rows.items()):
        paper = PAPER["base" if name == LARGE_BASE else name]
        theirs = [f"{paper.perplexity:.2f}", f"{paper.bleu:.1f}", f"{paper.parameters} M" if paper.parameters else ""]
        means = [mean_and_range(row.means(figure)) for figure in ("perplexity", row.score)] if has_means else []
        if row.entries:
            cost = duration(statistics.fmean(entry["cpu_seconds"] for entry in row.entries))
            seeds = seeds_of(row.entries)
            parameters = f"{row.entries[0]['parameters'] / 1e6:.2f} M"
            scores = [mean_and_range(row.perplexities), mean_and_range(row.bleus)]
            ours = [*scores, *[penalties[name]] * has_penalties, *means, seeds, parameters]
        else:
            cost, ours = "", [NOT_RUN, NOT_RUN, *[""] * has_penalties, *means, "", ""]
            quiet.add(number)
        lines.append([title(name), _settings_here(row, scale), *ours, *theirs, cost])
    return Table(head, lines, quiet=frozenset(quiet), words=frozenset({0, 1}))


def _settings_here(row: Row, scale: str) -> str:
    """Return the settings that a row changes, as it was trained, or else as in its recipe; for base, its sizes."""
    config = row.config if row.entries else find_recipe(recipe_of(row.name, scale))()
    if config is None:
        return "not recorded"
    values = {**dataclasses.asdict(config.model), **dataclasses.asdict(config.train)}
    return ", ".join(f"{key} {values.get(key)}" for key in table3.ROWS.get(row.name) or table3.BASE)


def _brevity(row: Row) -> str:
    """Return the mean brevity penalty of the seeds that have it; "" if none has it, as in results of 0.1.0."""
    brevities = [entry.get("valid", {}).get("brevity", {}).get(row.score) for entry in row.entries]
    penalties = [brevity["penalty"] for brevity in brevities if brevity]
    return f"{statistics.fmean(penalties):.3f}" if penalties else ""


def _not_run(results: Results, missing: Sequence[str]) -> list[str]:
    """Return the notes below the table of figures: the rows that were not run, and the trainings that failed."""
    note = "A figure of several seeds is their mean, with the lowest and the highest. Processor time is per training."
    return [note, *([f"Not run: {', '.join(missing)}."] if missing else []), *results.failures()]
