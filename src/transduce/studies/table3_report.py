"""The report of Table 3: the claims of section 6.2, the effect of each change, and all figures with the paper's."""

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from transduce.config.recipes import find_recipe
from transduce.config.recipes.studies import table3
from transduce.evaluation.page import duration
from transduce.evaluation.study_charts import Change, changes_height, changes_svg
from transduce.evaluation.study_report import NOT_RUN, Figure, Report, Table, rows_table
from transduce.studies.comparison import Difference, Effect, as_factor, as_points, report_of, rows_of, samples_of
from transduce.studies.results import Results

SCORES = {"small": "bleu", "paper": "bleu_compound_split"}  # the BLEU in the table; the paper's has compounds split
BLEU_IN_WORDS = {
    "small": "sacreBLEU 13a",
    "paper": "tokenised BLEU with compounds split (`bleu_compound_split`), the paper's",
}
SCALES = {"small": "small scale", "paper": "the paper's scale"}
RECIPE = {"small": "small-table3-", "paper": "vaswani2017-table3-"}

LARGE = "larger"  # prefix of its hashes in results.json
LARGE_BASE = "base-large"  # the base model on that text


# ---- the paper ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedModel:
    """A row of the paper: perplexity per token and BLEU on the development set, and parameters in millions or None."""

    group: str
    changed: str
    perplexity: float
    bleu: float
    parameters: int | None = None


PAPER = {
    "base": PublishedModel("", "base", 4.92, 25.8, 65),
    "h1": PublishedModel("A", "h = 1", 5.29, 24.9),
    "h4": PublishedModel("A", "h = 4", 5.00, 25.5),
    "h16": PublishedModel("A", "h = 16", 4.91, 25.8),
    "h32": PublishedModel("A", "h = 32", 5.01, 25.4),
    "dk16": PublishedModel("B", "d_k = 16", 5.16, 25.1, 58),
    "dk32": PublishedModel("B", "d_k = 32", 5.01, 25.4, 60),
    "n2": PublishedModel("C", "N = 2", 6.11, 23.7, 36),
    "n4": PublishedModel("C", "N = 4", 5.19, 25.3, 50),
    "n8": PublishedModel("C", "N = 8", 4.88, 25.5, 80),
    "d256": PublishedModel("C", "d_model = 256", 5.75, 24.5, 28),
    "d1024": PublishedModel("C", "d_model = 1024", 4.66, 26.0, 168),
    "ff1024": PublishedModel("C", "d_ff = 1024", 5.12, 25.4, 53),
    "ff4096": PublishedModel("C", "d_ff = 4096", 4.75, 26.2, 90),
    "dropout0": PublishedModel("D", "dropout 0", 5.77, 24.6),
    "dropout0.2": PublishedModel("D", "dropout 0.2", 4.95, 25.5),
    "smoothing0": PublishedModel("D", "smoothing 0", 4.67, 25.3),
    "smoothing0.2": PublishedModel("D", "smoothing 0.2", 5.47, 25.7),
    "learned": PublishedModel("E", "learned positions", 4.92, 25.7),
    "big": PublishedModel("", "big", 4.33, 26.4, 213),
}
TITLES = {name: f"({row.group}) {row.changed}" if row.group else row.changed for name, row in PAPER.items()}
TITLES[LARGE_BASE] = "base, larger text"

SIZES = ("d256", "d1024", "ff1024", "ff4096", "big")  # the rows that can have a separate text, a larger one
BIGGER: dict[str, Effect] = {
    row: "helps" if (PAPER[row].parameters or 0) > (PAPER["base"].parameters or 0) else "hurts"
    for row in ("n2", "n4", "n8", *SIZES)
}
# The claimed effects of rows, compared with base, by the names of the sentences in the report.
CLAIMS: dict[str, dict[str, Effect]] = {
    "single_head": {"h1": "hurts"},
    "many_heads": {"h32": "hurts"},
    "key_size": {"dk16": "hurts", "dk32": "hurts"},
    "bigger": BIGGER,
    "dropout": {"dropout0": "hurts"},
    "learned": {"learned": "none"},
}
SMALLEST_FACTOR = 1.02  # of perplexity: the largest difference that counts as nearly identical

# ---- the report --------------------------------------------------------------------------------------------------


def recipe_of(row: str, scale: str) -> str:
    """Return the name of the recipe of a row."""
    return RECIPE[scale] + ("base" if row == LARGE_BASE else row)


def report(results: Results) -> Report:
    """Return the report: the claims, the effect of each change here and in the paper, and all figures."""
    study = _Table3Study(results)
    missing = [row for row in study.rows if not study.entries[row]]
    count = sum(map(len, study.entries.values()))
    figures = [_changes("BLEU", study), _changes("perplexity", study)] if study.entries["base"] else []
    return report_of(
        results,
        scale_in_words=study.scale_in_words(),
        n_done=count,
        n_trained=len(study.rows) - len(missing),
        n_rows=len(study.rows),
        **{name: study.verdict(effects) for name, effects in CLAIMS.items()},
        smallest=100 * SMALLEST_FACTOR - 100,
        spread=study.spread(),
        texts=study.texts() if LARGE_BASE in study.rows else "",
        effects=_effects(study),
        figures=figures,
        bleu=BLEU_IN_WORDS[study.scale],
        table=_figures(study),
        missing=[TITLES[row] for row in missing],
    )


# ---- differences from base ---------------------------------------------------------------------------------------


class _Table3Study:
    """The rows with their entries and figures, and with the noise between seeds, pooled over the rows.

    A figure is "BLEU" or "perplexity", or "mean BLEU" or "mean perplexity", of the mean of checkpoints.
    paths: the keys of a figure in an entry. samples: perplexities are logarithms.
    """

    def __init__(self, results: Results) -> None:
        self.scale: str = results.settings["scale"]
        self.score = SCORES[self.scale]
        self.rows = [*PAPER]
        if any(key.startswith(LARGE) for key in results.settings):
            self.rows.insert(1, LARGE_BASE)
        self.changed = [row for row in self.rows if row not in ("base", LARGE_BASE)]
        self.entries = rows_of(results, self.rows)
        self.paths = {
            "perplexity": ("perplexity",),
            "BLEU": ("bleu",) if self.score == "bleu" else ("valid", self.score),
            "mean perplexity": ("valid_mean", "perplexity"),
            "mean BLEU": ("valid_mean", self.score),
        }
        self.samples = {name: samples_of(results, self.rows, *path) for name, path in self.paths.items()}

    def scale_in_words(self) -> str:
        """Return the scale in words, with the sizes and steps of the base row that was trained."""
        entries = self.entries["base"]
        if not entries:
            return SCALES[self.scale]
        steps = entries[0].get("steps")
        sizes = f"{SCALES[self.scale]}, where base has {entries.sizes()}"
        return sizes + (f" and {steps:,} steps" if steps else "")

    def base_of(self, name: str) -> str:
        """Return the base row that was trained on the text of row `name`."""
        return LARGE_BASE if name in SIZES and LARGE_BASE in self.rows else "base"

    def change(self, name: str, figure: str) -> Difference | None:
        """Return the difference of a row from its base in a figure; None if one of them was not run."""
        return self.samples[figure].change(name, self.base_of(name))

    def verdict(self, effects: Mapping[str, Effect]) -> str:
        """Return the verdict on a claim about effects and, if they are of several rows, the rows by their verdicts."""
        groups: dict[str, list[str]] = {}
        verdicts, missing = [], []
        for name, effect in effects.items():
            if change := self.change(name, "perplexity"):
                verdicts.append(change.claim_verdict(effect, math.log(SMALLEST_FACTOR)))
                words = f"{PAPER[name].changed} (perplexity {as_factor(change)})"
                groups.setdefault(verdicts[-1], []).append(words)
            else:
                missing.append(PAPER[name].changed)
        parts = [f"{verdict}: {', '.join(names)}" for verdict, names in groups.items()]
        parts += [f"not run: {', '.join(missing)}"] if missing else []
        if not verdicts:
            return f"inconclusive, {parts[0]}"
        return parts[0] if len(effects) == 1 else f"{overall(verdicts)}. By row: {'; '.join(parts)}"

    def spread(self) -> str:
        """Return the standard deviation between seeds in words."""
        spread = self.samples["perplexity"].spread
        if spread is None:
            return "is unknown so far"
        return f"is {100 * spread.deviation:.1f} % of perplexity, with {spread.freedom} degrees of freedom"

    def texts(self) -> str:
        """Return the sentences on the larger text: its rows, and the text that the spread between seeds is from."""
        several = [row for row, entries in self.entries.items() if len(entries) > 1]
        on_large = [TITLES[row] for row in several if row == LARGE_BASE or row in SIZES]
        text = " The rows of another size were trained on a larger text, and are compared with base on that text."
        if several and not on_large:
            text += (
                " No row of the larger text has several seeds: its intervals take the spread of the smaller text, from "
                f"{', '.join(TITLES[row] for row in several)}. If seeds differ more there, they are too narrow."
            )
        elif several:
            text += (
                " The spread is pooled over both texts: of the larger one, "
                f"{', '.join(on_large)} {'has' if len(on_large) == 1 else 'have'} several seeds."
            )
        return text


def overall(verdicts: Collection[str]) -> str:
    """Return the verdict on a claim about several rows: it holds for all of them, or does not hold for at least one."""
    if all(verdict == "holds" for verdict in verdicts):
        return "holds"
    return "does not hold" if "does not hold" in verdicts else "inconclusive"


def _effects(study: _Table3Study) -> list[list[str]]:
    """Return the rows of the table of the effects."""
    base = PAPER["base"]
    return [
        [
            TITLES[row],
            f"x {PAPER[row].perplexity / base.perplexity:.3f}",
            as_factor(study.change(row, "perplexity")) or NOT_RUN,
            as_factor(study.change(row, "mean perplexity")),
            f"{PAPER[row].bleu - base.bleu:+.1f}",
            as_points(study.change(row, "BLEU")) or NOT_RUN,
        ]
        for row in study.changed
    ]


def _changes(figure: str, study: _Table3Study) -> Figure:
    changes = []
    samples = study.samples[figure].values
    for name in study.changed:
        base = samples[study.base_of(name)]
        here = [value - statistics.fmean(base) for value in samples[name] if base]
        published = PAPER[name].bleu - PAPER["base"].bleu
        if figure != "BLEU":
            published = 100 * (PAPER[name].perplexity / PAPER["base"].perplexity - 1)
            here = [100 * math.expm1(value) for value in here]
        changes.append(Change(TITLES[name], published, here))
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


def _figures(study: _Table3Study) -> Table:
    paths, penalty = study.paths, ("valid", "brevity", study.score, "penalty")
    has_penalties = any(entries.values(*penalty) for entries in study.entries.values())
    has_means = any(entries.values(*paths["mean perplexity"]) for entries in study.entries.values())
    head = ["row", "here", "perplexity", "BLEU", *["brevity penalty"] * has_penalties]
    head += ["perplexity, mean of checkpoints", "BLEU, mean of checkpoints"] * has_means
    head += ["seeds", "parameters", "perplexity in the paper", "BLEU", "parameters", "processor time"]
    lines = []
    for row, entries in study.entries.items():
        paper = PAPER["base" if row == LARGE_BASE else row]
        lines.append(
            [
                TITLES[row],
                _settings_here(row, study),
                *(entries.range(*paths[name]) or NOT_RUN for name in ("perplexity", "BLEU")),
                *[f"{entries.mean(*penalty):.3f}" if entries.values(*penalty) else ""] * has_penalties,
                *[entries.range(*paths[name]) for name in ("mean perplexity", "mean BLEU")][: 2 * has_means],
                entries.seeds(),
                entries.millions(),
                f"{paper.perplexity:.2f}",
                f"{paper.bleu:.1f}",
                f"{paper.parameters} M" if paper.parameters else "",
                duration(entries.mean("cpu_seconds")) if entries else "",
            ]
        )
    return rows_table(head, lines, words=frozenset({0, 1}))


def _settings_here(row: str, study: _Table3Study) -> str:
    """Return the settings that a row changes, as it was trained, or else as in its recipe; for base, its sizes."""
    entries = study.entries[row]
    config = entries.config() if entries else find_recipe(recipe_of(row, study.scale))()
    if config is None:
        return "not recorded"
    values = {**dataclasses.asdict(config.model), **dataclasses.asdict(config.train)}
    return ", ".join(f"{key} {values.get(key)}" for key in table3.ROWS.get(row) or table3.BASE)
