"""The report of `study claims`: three sentences of the paper, each with its evidence."""

import math
import statistics
from collections.abc import Iterable

from transduce.config.schema import Config, architecture
from transduce.evaluation.study_report import NOT_RUN, Report
from transduce.studies.claims_models import WIDTHS, row_of
from transduce.studies.comparison import Difference, Row, as_factor, as_points, report_of, samples_of
from transduce.studies.results import Results, config_of

POSITIONS = ("sinusoids", "learned")
RELATIVE = "relative"
SMOOTHING = ("smoothing0.1", "smoothing0")


def report(results: Results) -> Report:
    """Return the report of the results so far."""
    study = _ClaimsStudy(results)
    accuracy = study.change(*SMOOTHING, "accuracy") if study.has_accuracy() else None
    return report_of(
        results,
        model=study.model(),
        widths="; for ".join(f"d_k {width}: {study.scaling_verdict(width)}" for width in WIDTHS),
        scaling=study.scaling(),
        extrapolation=_is_worse(study.change("learned", "sinusoids", "test", "perplexity")),
        on_short=as_factor(study.change("learned", "sinusoids", "perplexity")) or NOT_RUN,
        relative=as_factor(study.change(RELATIVE, "sinusoids", "test", "perplexity")) or NOT_RUN,
        positions=study.positions(),
        pairs=study.pairs(),
        smoothed_perplexity=_is_worse(study.change(*SMOOTHING, "perplexity")),
        accuracy=_is_improved(accuracy, " %"),
        bleu=_is_improved(study.change(*SMOOTHING, "bleu"), ""),
        smoothing=study.smoothing(),
        schedules=study.schedules(),
    )


class _ClaimsStudy:
    """The results of a study as the parts of its report."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def entries(self, row: str) -> Row:
        return Row(self.results.done(row))

    def diverged(self, row: str) -> int:
        entries = self.results.entries.items()
        return sum(self.results.has_diverged(name) for name, entry in entries if entry.get("row") == row)

    def change(self, row: str, base: str, *keys: str) -> Difference | None:
        """Return the difference of a row from another, with the noise of these two rows; None without results.

        keys: the path of the figure. The difference of a perplexity is of its logarithm.
        """
        return samples_of(self.results, (row, base), *keys).change(row, base)

    def configs(self, rows: Iterable[str]) -> list[Config]:
        """Return the configurations of the trainings of some rows, as far as they were recorded."""
        configs = [config_of(entry) for row in rows for entry in self.entries(row)]
        return [config for config in configs if config]

    def model(self) -> str:
        configs = self.configs((*SMOOTHING, *POSITIONS))
        return architecture(configs[0]) if configs else "not trained yet"

    def schedules(self) -> str:
        """Return the steps and the warm-up of the trainings of each claim, as they were trained."""
        claims = {
            "the factor": [row_of(width, has_factor) for width in WIDTHS for has_factor in (True, False)],
            "longer text": [*POSITIONS, RELATIVE],
            "label smoothing": SMOOTHING,
        }
        parts = []
        for claim, rows in claims.items():
            lengths = sorted({(config.train.max_steps, config.train.warmup_steps) for config in self.configs(rows)})
            words = [f"{steps:,} steps, {warmup:,} of them warm-up" for steps, warmup in lengths]
            parts.append(f"{claim}: {' or '.join(words) or 'not recorded'}")
        words = "; ".join(parts)
        return words[0].upper() + words[1:]

    # ---- §3.2.1 --------------------------------------------------------------------------------------------------

    def scaling_verdict(self, width: int) -> str:
        """Return the verdict for a d_k, with the trainings that diverged: all of one row decide without an interval."""
        rows = {"without the factor": row_of(width, False), "with it": row_of(width, True)}
        without, with_factor = rows.values()
        change = self.change(without, with_factor, "perplexity")
        counts = {words: self.diverged(row) for words, row in rows.items()}
        if change or not any(counts.values()):
            verdict = _is_worse(change)
        elif self.entries(with_factor) and not counts["with it"]:
            verdict = "holds"
        elif self.entries(without) and not counts["without the factor"]:
            verdict = "does not hold"
        else:
            verdict = "inconclusive"
        notes = [
            f"{count} of {count + len(self.entries(row))} trainings diverged {words}"
            for (words, row), count in zip(rows.items(), counts.values(), strict=True)
            if count
        ]
        return ", ".join([verdict, *notes])

    def scaling(self) -> list[list[str]]:
        lines = []
        for width in WIDTHS:
            for has_factor in (True, False):
                row = row_of(width, has_factor)
                entries = self.entries(row)
                cells = ["diverged" if self.diverged(row) else NOT_RUN]
                if entries:
                    softmax = [entries.values(f"softmax_{when}", name) for name, when in SOFTMAX_COLUMNS]
                    cells = [f"{statistics.fmean(figures):.3g}" for figures in softmax]
                    cells += [entries.range("perplexity"), entries.seeds()]
                lines.append([str(width), "1/sqrt(d_k)" if has_factor else "none", *cells])
        return lines

    # ---- §3.5 ----------------------------------------------------------------------------------------------------

    def pairs(self) -> str:
        """Return the sentence on the pairs of the trainings and of the evaluations."""
        settings = self.results.settings
        if "short training pairs" not in settings:
            return "The numbers of pairs were not recorded."
        return (
            f"All were trained on the {settings['short training pairs']:,} pairs with at most "
            f"{settings['most pieces of short pairs']} pieces on both sides. The {settings['longer pairs']:,} longer "
            f"pairs of the validation text have at least {settings['least pieces of longer pairs']} pieces on both "
            f"sides; {settings['new positions, %']:g} % of their target tokens are at positions that no training pair "
            "reaches."
        )

    def positions(self) -> list[list[str]]:
        lines = []
        for row in (*POSITIONS, RELATIVE):
            entries = self.entries(row)
            cells = [NOT_RUN]
            if entries:
                short, longer = (entries.values(*text, "perplexity") for text in TEXTS)
                ratio = statistics.fmean(math.log(y) - math.log(x) for x, y in zip(short, longer, strict=True))
                perplexities, bleus = ([entries.range(*text, key) for text in TEXTS] for key in ("perplexity", "bleu"))
                cells = [*perplexities, f"{math.exp(ratio):.2f}", *bleus, entries.seeds()]
            lines.append([row, *cells])
        return lines

    # ---- §5.4 ----------------------------------------------------------------------------------------------------

    def has_accuracy(self) -> bool:
        return all("accuracy" in entry for row in SMOOTHING for entry in self.entries(row))

    def smoothing(self) -> list[list[str]]:
        lines = []
        for row in SMOOTHING:
            entries = self.entries(row)
            scores = [entries.range(key) for key in ("perplexity", "accuracy", "bleu")]
            cells = [*scores, entries.seeds()] if entries else [NOT_RUN]
            lines.append([row.removeprefix("smoothing"), *cells])
        return lines


TEXTS: tuple[tuple[str, ...], ...] = ((), ("test",))  # keys of the scores on short and on longer pairs
SOFTMAX_COLUMNS = (
    ("components", "start"),
    *((name, when) for name in ("variance", "gradient") for when in ("start", "end")),
)


def _is_worse(change: Difference | None) -> str:
    """Return the verdict on the claim that a perplexity rises, with its change. change: of the logarithm."""
    return f"{change.claim_verdict('hurts')} ({as_factor(change)})" if change else UNKNOWN


def _is_improved(change: Difference | None, unit: str) -> str:
    """Return the verdict on the claim that a figure of which more is better rises, with its change."""
    return f"{(-change).claim_verdict('helps')} ({as_points(change)}{unit})" if change else UNKNOWN


UNKNOWN = "inconclusive, not run"
