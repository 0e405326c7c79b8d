"""The report of a run: RUN/report.html, one page with the curves, scores and settings of a training.

    log.jsonl -> history (`run_history.py`) -> charts -> page

The page (template run_report.html) loads no other file. It can be read without its script, on paper and on a phone, and
follows the reader's light or dark scheme. This module does not import torch, whose import takes seconds.
"""

import dataclasses
import html
import json
import math
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from transduce.config.files import from_json
from transduce.config.kinds import TASKS
from transduce.config.overrides import format_value
from transduce.config.schema import Config, architecture, kind_in_words, sections
from transduce.errors import UserError
from transduce.evaluation.charts import Curve, chart_svg, kind, thin
from transduce.evaluation.model_size import parameter_count
from transduce.evaluation.page import duration, fill_page, write_page
from transduce.evaluation.run_history import FIGURES, History, best_step, read_history, seconds_since_report, status
from transduce.training.progress import BUSY

POLICY = "style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_MOST_ROWS = 50  # of a table
_MONTHS = "January February March April May June July August September October November December".split()


@dataclass(frozen=True)
class Chart:
    """The content of a chart: figures by their keys in the log, and the scale of its axis."""

    title: str
    note: str
    keys: tuple[str, ...]
    logarithmic: bool


_OF_TASK = {
    "translation": Chart("BLEU", "validation, greedy search, sacreBLEU", ("valid_bleu",), logarithmic=False),
    "parsing": Chart("F1", "validation, greedy search, EVALB's COLLINS.prm", ("valid_f1",), logarithmic=False),
    "masked_words": Chart("Accuracy", "validation, % of the masked tokens", ("valid_accuracy",), logarithmic=False),
    "diffusion": Chart(
        "Bits per character",
        "validation, an estimated upper bound; the end of a line counts as one",
        ("valid_bits_per_character",),
        logarithmic=True,
    ),
    "spans": Chart("Accuracy", "validation, % of the tokens of the targets", ("valid_accuracy",), logarithmic=False),
    "speech": Chart("Word errors", "validation, % of the words, greedy", ("valid_word_errors",), logarithmic=False),
    "ctc": Chart("Word errors", "validation, % of the words, greedy", ("valid_word_errors",), logarithmic=False),
    "classes": Chart("Accuracy", "validation, % of the sentences", ("valid_accuracy",), logarithmic=False),
    "preferences": Chart("Accuracy", "validation, % of the pairs", ("valid_accuracy",), logarithmic=False),
    "rewards": Chart("Accuracy", "validation, % of the pairs", ("valid_accuracy",), logarithmic=False),
    "language_model": Chart(
        "Bits per character",
        "validation, whatever the tokenizer; the end of a line counts as one",
        ("valid_bits_per_character",),
        logarithmic=True,
    ),
}
_PERPLEXITY = Chart("Perplexity", "validation", ("valid_perplexity",), logarithmic=True)
_CHARTS = (
    Chart(
        "Loss",
        "nats per token; training: smoothed, its entropy not subtracted; with dropout",
        ("loss", "valid_loss"),
        logarithmic=True,
    ),
    _PERPLEXITY,
    Chart("Learning rate", "", ("lr",), logarithmic=False),
    Chart("Gradient norm", "", ("gradient_norm",), logarithmic=True),
    Chart(
        "Speed", "source and target tokens, or samples of sound, per second", ("tokens_per_second",), logarithmic=False
    ),
)


def write_report(run: Path) -> Path:
    """Write RUN/report.html from the current content of RUN, whole or not at all, and return its path.

    Raises UserError if `run` is not a run or a line of its log is damaged, OSError if the page cannot be written.
    """
    path = run / "report.html"
    write_page(path, report(run, time.time()))
    return path


def refresh_report(run: Path) -> list[str]:
    """Write the report. Return a line with the reason if it could not be written, and otherwise no line.

    A report that cannot be written must not stop the training.
    """
    try:
        write_report(run)
    except (OSError, UserError) as problem:
        return [f"no report: {problem}"]
    return []


def report(run: Path, now: float) -> str:
    """Return the page as HTML.

    now: seconds since 1970. A training without a report for a long time counts as interrupted.
    """
    if not (run / "config.json").is_file():
        raise UserError(f"{run}: expected the folder of a training run, with a config.json; give the --out of train")
    if (run / "manifest.json").exists():
        raise UserError(f"{run}: expected the folder of a training run, not a model; give the --out of train")
    config = from_json((run / "config.json").read_bytes(), run / "config.json")
    history = read_history(run)
    best = best_step(config, history)
    state, progress = status(config, history, seconds_since_report(run, now))
    facts = _card_facts(run / "model" / "README.md")
    charts = [_CHARTS[0], _chart_of_task(config.train.task, facts), *_CHARTS[1:]]
    if config.train.task in ("classes", "preferences", "rewards", "speech", "ctc"):
        charts.remove(_PERPLEXITY)  # these have none
    curves = {key: thin(history.curves[key]) for chart in charts for key in chart.keys}
    settings = [_settings(name, getattr(config, name), section()) for name, section in sections(config).items()]
    fields = {
        "name": html.escape(run.resolve().name or str(run.resolve())),
        "essentials": html.escape(_essentials(config)),
        "state": state,
        "progress": progress,
        "percent": f"{100 * min(1, history.last_step / config.train.max_steps):.2f}",
        "headline": _headline(config, history, best),
        "charts": "\n".join(_chart(chart, curves, history, best) for chart in charts),
        "skips": _skips(history),
        "figures": _figures(history, best),
        "card": f"<h2>Model</h2>\n{_facts_table(facts)}" if facts else "",
        "settings": "\n".join(settings),
        "written": _moment(now),
        "quoted": html.escape(shlex.quote(str(run))),
        "points": _points(curves, history.last_step),
    }
    return fill_page("run_report.html", fields, POLICY)


# ---- from history to HTML ----------------------------------------------------------------------------------------


def _essentials(config: Config) -> str:
    """Return kind, sizes and tokenizer of the model in one line."""
    model, data = config.model, config.data
    pieces = model.vocab_size or data.vocab_size
    size = f"{parameter_count(model, pieces) / 1e6:,.1f} M parameters"
    return f"{kind_in_words(config)} of {architecture(config)}; {size}; {data.tokenizer}, {pieces:,} pieces"


def _chart_of_task(task: str, facts: Mapping[str, str]) -> Chart:
    """Return the chart of the score of a task. facts: rows of the model card, with the tokenizer of BLEU at the end."""
    chart = _OF_TASK[task]
    if task != "translation":
        return chart
    signature = re.search(r"\|tok:([\w-]+)\|", facts.get("validation", ""))
    tokenizer = signature[1] if signature else "13a, or zh or char for a script without spaces"
    return dataclasses.replace(chart, note=f"{chart.note} {tokenizer}")


def _headline(config: Config, history: History, best: int | None) -> str:
    """Return the scores of the best evaluation, and the epoch and time of the training."""
    rows = []
    curves = history.curves
    if best is not None:
        task = _OF_TASK[config.train.task]
        names = {task.keys[0]: task.title, "valid_perplexity": "Perplexity", "valid_loss": "Validation loss"}
        at_best = f"best by {config.train.best_by}, step {best:,}"
        rows = [(name, _figure(key, curves[key].at(best)), at_best) for key, name in names.items() if curves[key].steps]
    if curves["loss"].steps:
        rows.append(("Training loss", _figure("loss", curves["loss"].last()), f"step {curves['loss'].steps[-1]:,}"))
    epoch, seconds, speed = (curves[key].last() for key in ("epoch", "seconds", "tokens_per_second"))
    if not math.isnan(epoch):
        rows.append(("Epoch", f"{epoch + 1:,.0f}", f"{history.last_step:,} steps"))
    if not math.isnan(seconds):
        unit = TASKS[config.train.task].unit
        rows.append(("Time in training", duration(seconds), f"{_figure('tokens_per_second', speed)} {unit}/s"))
    share = curves["processor_share"].last()
    if share < BUSY:
        rows.append(("Machine busy", f"{share:.0%}", "of the processor time that the threads could have"))
    items = [f"<div><dt>{name}</dt><dd>{value}</dd><dd>{note}</dd></div>" for name, value, note in rows]
    return "\n".join(['<dl class="headline">', *items, "</dl>"]) if items else ""


def _chart(chart: Chart, curves: dict[str, Curve], history: History, best: int | None) -> str:
    """Return a chart with its title, and its newest figures as a legend."""
    chart_curves = {key: curves[key] for key in chart.keys if curves[key].steps}
    logarithmic = chart.logarithmic and all(value > 0 for curve in chart_curves.values() for _, value in curve.finite())
    note = ", ".join(filter(None, [chart.note, "log scale" if logarithmic else ""]))
    names = {key: f"{kind(key)} " if len(chart.keys) > 1 else "" for key in chart_curves}
    legend = "".join(
        f'<span class="{kind(key)}"><i></i>{names[key]}<b data-key="{key}">{_figure(key, curve.last())}</b></span>'
        for key, curve in chart_curves.items()
    )
    drawing = chart_svg(
        chart_curves,
        last_step=history.last_step,
        logarithmic=logarithmic,
        best_step=best,
        skipped=[step for step, _ in history.skipped],
    )
    label = chart.title.lower().replace(" ", "-")
    return f"""<figure>
<figcaption><h3>{chart.title}</h3><span class="note">{note}</span><div class="legend">{legend}</div></figcaption>
<div class="plot"><svg role="img" aria-labelledby="{label}" aria-describedby="{label}-in-words">
<title id="{label}">{chart.title}</title>
<desc id="{label}-in-words">{" ".join(_in_words(key, curve) for key, curve in chart_curves.items())}</desc>
{drawing}
</svg></div>
</figure>"""


def _in_words(key: str, curve: Curve) -> str:
    """Return a description of a curve for screen readers."""
    points, name = curve.finite(), FIGURES[key][0]
    if not points:
        return f"{name}: no finite value."
    lowest, highest = (choose(points, key=lambda point: point[1]) for choose in (min, max))
    ends = {"first": points[0], "last": points[-1], "lowest": lowest, "highest": highest}
    return f"{name}: " + ", ".join(f"{word} {_figure(key, v)} at step {s:,}" for word, (s, v) in ends.items()) + "."


def _skips(history: History) -> str:
    """Return the table of skipped steps with their reasons, at most the newest `_MOST_ROWS`."""
    if not history.skipped:
        return ""
    rows = {f"step {step:,}": reason for step, reason in history.skipped[-_MOST_ROWS:]}
    count = f"{len(rows):,} of {len(history.skipped):,}" if len(rows) < len(history.skipped) else f"{len(rows):,}"
    return f"""<h2 class="marked">Skipped steps</h2>
<p class="note">{count}, marked on the axes above</p>
{_facts_table(rows)}"""


def _figures(history: History, best: int | None) -> str:
    """Return the table of evaluations, each with the training figures at its step.

    Before the first evaluation the rows are the reports. If there are more than `_MOST_ROWS`, the table has every n-th.
    """
    curves = history.curves
    steps = curves["valid_loss"].steps or curves["loss"].steps
    if not steps:
        return "<p>No report yet.</p>"
    stride = math.ceil(len(steps) / _MOST_ROWS)
    rows = [step for i, step in enumerate(reversed(steps)) if i % stride == 0 or step == best][::-1]
    keys = [key for key in FIGURES if curves[key].steps]
    head = "".join(f'<th scope="col">{name}</th>' for name in ["step", *(FIGURES[key][0] for key in keys)])
    body = "\n".join(_row(step, [_figure(key, curves[key].at(step)) for key in keys], step == best) for step in rows)
    noun = "evaluations" if curves["valid_loss"].steps else "reports"
    count = f"{len(rows):,} of {len(steps):,}" if len(rows) < len(steps) else f"{len(rows):,}"
    return f"""<div class="wide" role="region" aria-label="Figures" tabindex="0"><table>
<caption>{count} {noun}</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table></div>"""


def _row(step: int, cells: list[str], is_best: bool) -> str:
    opening = f'<tr class="best"><th scope="row">{step:,} best' if is_best else f'<tr><th scope="row">{step:,}'
    return f"{opening}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _card_facts(card: Path) -> dict[str, str]:
    """Return the rows of a model card, name to value; none without a card."""
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines() if card.is_file() else []
    rows = [line.strip("| ").split(" | ", 1) for line in lines if line.startswith("| ")]
    return {row[0]: html.unescape(row[1].replace("\\|", "|")) for row in rows if len(row) == 2}


def _facts_table(facts: dict[str, str]) -> str:
    cells = [(html.escape(name), html.escape(value)) for name, value in facts.items()]
    rows = [f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in cells]
    return "\n".join(['<table class="facts">', *rows, "</table>"])


def _settings(name: str, section: Any, default: Any) -> str:
    """Return a section of the configuration, in the form that --set takes; values that are not the default are bold."""
    rows = []
    for key, value in dataclasses.asdict(section).items():
        text = html.escape(format_value(value))
        cell = text if value == getattr(default, key) else f"<b>{text}</b>"
        rows.append(f'<tr><th scope="row">{key}</th><td>{cell}</td></tr>')
    return "\n".join([f"<section><h3>{name}</h3>", "<table>", *rows, "</table></section>"])


def _points(curves: dict[str, Curve], last_step: int) -> str:
    """Return the data of the page's script as JSON: of each curve the steps, and the values in their format."""
    points = {
        key: [list(curve.steps), [_figure(key, value) for value in curve.values]] for key, curve in curves.items()
    }
    return json.dumps({"last": max(last_step, 1), "curves": points}, separators=(",", ":"))


# ---- formats -----------------------------------------------------------------------------------------------------


def _figure(key: str, value: float) -> str:
    """Return a value of the log in the number format of its figure."""
    digits = FIGURES[key][1]
    if math.isnan(value):
        return "not finite"
    return f"{value:.2e}" if digits is None or abs(value) >= 1e9 else f"{value:,.{digits}f}"


def _moment(seconds: float) -> str:
    """Return a time in seconds since 1970 as `21 November 2026, 07:23 UTC`, in every locale."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment.day} {_MONTHS[moment.month - 1]} {moment:%Y, %H:%M} UTC"
