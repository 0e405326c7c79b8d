"""The report of a run: RUN/report.html, one page that shows how the training goes.

    log.jsonl -> curves -> charts -> page

The page (report.html beside this file) loads nothing, can be read without its script, on paper and on a phone, and is
light or dark as the reader likes. Nothing here imports torch, so that asking how a training goes takes no time.
"""

import bisect
import dataclasses
import html
import json
import math
import os
import shlex
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

from transduce.config.files import from_json
from transduce.config.schema import SECTIONS, Config, ModelConfig
from transduce.errors import UserError
from transduce.evaluation.charts import Curve, chart_svg, kind, thin
from transduce.storage.run_log import reports
from transduce.version import __version__

_MOST_ROWS = 50  # of a table
_LARGEST = 1e99  # what is larger counts as not finite, what is smaller than its inverse as 0: no axis could show it
_MONTHS = "January February March April May June July August September October November December".split()

# Key in the log: name on the page, and digits after the point (None: with an exponent).
_FIGURES: dict[str, tuple[str, int | None]] = {
    "loss": ("training loss", 3),
    "valid_loss": ("validation loss", 3),
    "valid_perplexity": ("validation perplexity", 2),
    "valid_bleu": ("validation BLEU", 2),
    "lr": ("learning rate", None),
    "gradient_norm": ("gradient norm", 3),
    "tokens_per_second": ("tokens/s", 0),
}
_KEYS = (*_FIGURES, "epoch", "seconds")


@dataclass(frozen=True)
class History:
    """What log.jsonl tells: a curve of each figure, and the steps that were skipped, with the reason."""

    curves: dict[str, Curve]
    skipped: list[tuple[int, str]]
    last_step: int


@dataclass(frozen=True)
class Chart:
    """What a chart shows, and on which scale."""

    title: str
    note: str
    keys: tuple[str, ...]
    logarithmic: bool


_CHARTS = (
    Chart("Loss", "nats a token; training smoothed, with dropout", ("loss", "valid_loss"), logarithmic=True),
    Chart("BLEU", "validation, greedy search, sacreBLEU 13a", ("valid_bleu",), logarithmic=False),
    Chart("Perplexity", "validation", ("valid_perplexity",), logarithmic=True),
    Chart("Learning rate", "", ("lr",), logarithmic=False),
    Chart("Gradient norm", "", ("gradient_norm",), logarithmic=True),
    Chart("Speed", "source and target tokens a second", ("tokens_per_second",), logarithmic=False),
)


def write_report(run: Path) -> Path:
    """Write RUN/report.html from what is in RUN now, whole or not at all, and return its path.

    Raises UserError if `run` is no run or a line of its log is damaged, OSError if the page cannot be written.
    """
    path, building = run / "report.html", run / ".tmp-report.html"
    building.write_text(report(run, time.time()), encoding="utf-8", errors="backslashreplace")
    os.replace(building, path)
    return path


def refresh_report(run: Path) -> list[str]:
    """Write the report if it can be written; if not, say why in a line. A training shall not end for it."""
    try:
        write_report(run)
    except (OSError, UserError) as problem:
        return [f"no report: {problem}"]
    return []


def report(run: Path, now: float) -> str:
    """The page. now: seconds since 1970, by which a training that runs is told from one that fell silent."""
    if not (run / "config.json").is_file():
        raise UserError(f"{run} is no run: it has no config.json; give the folder of a training run, as train's --out")
    config = from_json((run / "config.json").read_bytes(), run / "config.json")
    history = read_history(run)
    best = best_step(config, history)
    state, progress = status(config, history, _silent_seconds(run, now))
    thinned = {key: thin(history.curves[key]) for key in _FIGURES}
    facts = _card_facts(run / "model" / "README.md")
    page = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    return page.substitute(
        name=html.escape(run.resolve().name or str(run.resolve())),
        essentials=html.escape(_essentials(config)),
        state=state,
        progress=progress,
        percent=f"{100 * min(1, history.last_step / config.train.max_steps):.2f}",
        headline=_headline(config, history, best),
        charts="\n".join(_chart(chart, thinned, history, best) for chart in _CHARTS),
        skips=_skips(history),
        figures=_figures(history, best),
        card=f"<h2>Model</h2>\n{_facts_table(facts)}" if facts else "",
        settings="\n".join(_settings(name, getattr(config, name), section()) for name, section in SECTIONS.items()),
        written=_moment(now),
        version=__version__,
        quoted=html.escape(shlex.quote(str(run))),
        points=_points(thinned, history.last_step),
    )


# ---- what the log tells ------------------------------------------------------------------------------------------


def read_history(run: Path) -> History:
    """Read RUN/log.jsonl, also while it is written. UserError names the line that no run writes."""
    curves, skipped, last = {key: Curve() for key in _KEYS}, [], 0
    for number, line in enumerate(reports(run), start=1):
        step = line["step"]
        if not last <= step < 2**53:
            raise UserError(f"{run / 'log.jsonl'}:{number} has step {step} after step {last}, as no run writes it")
        last = step
        if "skipped" in line:
            skipped.append((step, str(line["skipped"])))
        for key in line.keys() & curves.keys():
            curves[key].add(step, _finite(line[key]))
    return History(curves, skipped, last)


def _finite(value: Any) -> float:
    if not isinstance(value, int | float) or not abs(value) < _LARGEST:
        return math.nan
    return float(value) if abs(value) > 1 / _LARGEST else 0.0


def best_step(config: Config, history: History) -> int | None:
    """The step of the best evaluation by `train.best_by`, the first of equals; None without one."""
    by_loss = config.train.best_by == "loss"
    judged = history.curves["valid_loss" if by_loss else "valid_bleu"].finite()
    return min(judged, key=lambda point: point[1] if by_loss else -point[1])[0] if judged else None


def status(config: Config, history: History, silent_seconds: float) -> tuple[str, str]:
    """How the run stands, in a word and in a sentence. silent_seconds: since its last report; inf: it has ended."""
    step, total, best = history.last_step, config.train.max_steps, best_step(config, history)
    where = f"step {step:,} of {total:,}"
    if step == 0:
        return "No report yet", f"the first comes at step {min(config.train.log_every_steps, total):,} of {total:,}"
    if step >= total:
        return "Finished", where
    evaluated = history.curves["valid_loss"].steps
    if best and config.train.patience and len(evaluated) - bisect.bisect(evaluated, best) >= config.train.patience:
        return "Stopped early", f"{where}: no better evaluation since step {best:,}"
    seconds_a_step = _seconds_a_step(history.curves["seconds"])
    if silent_seconds > max(600, 20 * seconds_a_step * config.train.log_every_steps):
        silence = f"no report for {duration(silent_seconds)}; " if silent_seconds < math.inf else ""
        return "Interrupted", f"{where}; {silence}train --resume goes on"
    seconds_left = seconds_a_step * (total - step)
    return "Running", where if math.isnan(seconds_left) else f"{where}, {duration(seconds_left)} left"


def _silent_seconds(run: Path, now: float) -> float:
    """Since the last report; inf if the model was saved after it, which a training does last, also when interrupted."""
    log, model = run / "log.jsonl", run / "model" / "manifest.json"
    if not log.exists():
        return 0.0
    reported_at = log.stat().st_mtime
    return math.inf if model.exists() and model.stat().st_mtime >= reported_at else now - reported_at


def _seconds_a_step(seconds: Curve, recent: int = 20) -> float:
    """By the newest reports; nan without two."""
    points = Curve(seconds.steps[-recent:], seconds.values[-recent:]).finite()
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return math.nan
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


# ---- from history to HTML ----------------------------------------------------------------------------------------


def _essentials(config: Config) -> str:
    """The model in a line."""
    model, data = config.model, config.data
    pieces = model.vocab_size or data.vocab_size
    sizes = f"{model.n_layers} + {model.n_layers} layers, d_model {model.d_model}"
    if model.kind == "transformer":
        sizes += f", d_ff {model.d_ff}, {model.n_heads} heads"
    parameters = f"{parameter_count(model, pieces) / 1e6:,.1f} M parameters"
    return f"{model.kind.capitalize()} of {sizes}; {parameters}; {data.tokenizer}, {pieces:,} pieces"


def parameter_count(model: ModelConfig, vocab_size: int) -> int:
    """The number of trained values, from the sizes alone; a tied matrix counts once."""
    tables = vocab_size * (model.d_model * (3 - model.tie_src_tgt - model.tie_output) + model.output_bias)
    beside = {"transformer": _transformer, "recurrent": _recurrent, "convolutional": _convolutional}
    return tables + beside[model.kind](model)


def _transformer(model: ModelConfig) -> int:
    """The values of a Transformer beside its tables of tokens."""
    d, d_ff, heads = model.d_model, model.d_ff, model.n_heads
    keys, values = heads * (model.d_k or d // heads), heads * (model.d_v or d // heads)
    attention = 2 * d * (keys + values) + (2 * keys + values + d if model.attention_bias else 0)
    ffn, norm = 2 * d * d_ff + d_ff + d, 2 * d
    layers = model.n_layers * (3 * attention + 2 * ffn + 5 * norm) + (2 * norm if model.norm == "pre" else 0)
    positions = (model.max_positions or 0) * d if model.positions == "learned" else 0
    return layers + positions


def _recurrent(model: ModelConfig) -> int:
    """The same of the LSTM: reader and writer by layers, how the writer begins, attention."""
    d, n = model.d_model, model.n_layers
    return n * (6 * d * d + 8 * d) + n * (8 * d * d + 8 * d) + 2 * n * (d * d + d) + d * d + (2 * d * d + d)


def _convolutional(model: ModelConfig) -> int:
    """The same of the convolutions, three positions wide and twice as deep for their gates, and their queries."""
    d = model.d_model
    return model.n_layers * (2 * (6 * d * d + 2 * d) + d * d + d)


def _headline(config: Config, history: History, best: int | None) -> str:
    """The scores of the best evaluation, and how far the training is."""
    shown, curves = [], history.curves
    if best is not None:
        names = {"valid_bleu": "BLEU", "valid_perplexity": "Perplexity", "valid_loss": "Validation loss"}
        at_best = f"best by {config.train.best_by}, step {best:,}"
        shown = [(name, _figure(key, curves[key].at(best)), at_best) for key, name in names.items()]
    if curves["loss"].steps:
        shown.append(("Training loss", _figure("loss", curves["loss"].last()), f"step {curves['loss'].steps[-1]:,}"))
    epoch, seconds, speed = (curves[key].last() for key in ("epoch", "seconds", "tokens_per_second"))
    if not math.isnan(epoch):
        shown.append(("Epoch", f"{epoch + 1:,.0f}", f"{history.last_step:,} steps"))
    if not math.isnan(seconds):
        shown.append(("Time in training", duration(seconds), f"{_figure('tokens_per_second', speed)} tokens/s"))
    items = [f"<div><dt>{name}</dt><dd>{value}</dd><dd>{note}</dd></div>" for name, value, note in shown]
    return "\n".join(['<dl class="headline">', *items, "</dl>"]) if items else ""


def _chart(chart: Chart, curves: dict[str, Curve], history: History, best: int | None) -> str:
    """A chart with its title, and its newest figures as a legend."""
    shown = {key: curves[key] for key in chart.keys if curves[key].steps}
    logarithmic = chart.logarithmic and all(value > 0 for curve in shown.values() for _, value in curve.finite())
    note = ", ".join(filter(None, [chart.note, "log scale" if logarithmic else ""]))
    names = {key: f"{kind(key)} " if len(chart.keys) > 1 else "" for key in shown}
    legend = "".join(
        f'<span class="{kind(key)}"><i></i>{names[key]}<b data-key="{key}">{_figure(key, curve.last())}</b></span>'
        for key, curve in shown.items()
    )
    drawing = chart_svg(
        shown,
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
<desc id="{label}-in-words">{" ".join(_in_words(key, curve) for key, curve in shown.items())}</desc>
{drawing}
</svg></div>
</figure>"""


def _in_words(key: str, curve: Curve) -> str:
    """A curve for those who do not see it."""
    points, name = curve.finite(), _FIGURES[key][0]
    if not points:
        return f"{name}: no finite value."
    lowest, highest = (choose(points, key=lambda point: point[1]) for choose in (min, max))
    said = {"first": points[0], "last": points[-1], "lowest": lowest, "highest": highest}
    return f"{name}: " + ", ".join(f"{word} {_figure(key, v)} at step {s:,}" for word, (s, v) in said.items()) + "."


def _skips(history: History) -> str:
    """Which steps were skipped, and why; of many, the newest."""
    if not history.skipped:
        return ""
    rows = {f"step {step:,}": reason for step, reason in history.skipped[-_MOST_ROWS:]}
    count = f"{len(rows):,} of {len(history.skipped):,}" if len(rows) < len(history.skipped) else f"{len(rows):,}"
    return f"""<h2 class="marked">Skipped steps</h2>
<p class="note">{count}, marked on the axes above</p>
{_facts_table(rows)}"""


def _figures(history: History, best: int | None) -> str:
    """The evaluations, each with the training figures at its step; before there is one, the reports; of many, some."""
    curves = history.curves
    steps = curves["valid_loss"].steps or curves["loss"].steps
    if not steps:
        return "<p>Nothing yet.</p>"
    stride = math.ceil(len(steps) / _MOST_ROWS)
    rows = [step for i, step in enumerate(reversed(steps)) if i % stride == 0 or step == best][::-1]
    keys = [key for key in _FIGURES if curves[key].steps]
    head = "".join(f'<th scope="col">{name}</th>' for name in ["step", *(_FIGURES[key][0] for key in keys)])
    body = "\n".join(_row(step, [_figure(key, curves[key].at(step)) for key in keys], step == best) for step in rows)
    what = "evaluations" if curves["valid_loss"].steps else "reports"
    count = f"{len(rows):,} of {len(steps):,}" if len(rows) < len(steps) else f"{len(rows):,}"
    return f"""<div class="wide" role="region" aria-label="Figures" tabindex="0"><table>
<caption>{count} {what}</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table></div>"""


def _row(step: int, cells: list[str], is_best: bool) -> str:
    opening = f'<tr class="best"><th scope="row">{step:,} best' if is_best else f'<tr><th scope="row">{step:,}'
    return f"{opening}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _card_facts(card: Path) -> dict[str, str]:
    """The rows of a model card; none without a card."""
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines() if card.is_file() else []
    rows = [line.strip("| ").split(" | ", 1) for line in lines if line.startswith("| ")]
    return {row[0]: row[1].replace("\\|", "|") for row in rows if len(row) == 2}


def _facts_table(facts: dict[str, str]) -> str:
    escaped = [(html.escape(name), html.escape(value)) for name, value in facts.items()]
    rows = [f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in escaped]
    return "\n".join(['<table class="facts">', *rows, "</table>"])


def _settings(name: str, section: Any, default: Any) -> str:
    """A section of the configuration, written as --set takes it; what is not the default is bold."""
    rows = []
    for key, value in dataclasses.asdict(section).items():
        shown = html.escape(value if isinstance(value, str) else json.dumps(value))
        cell = shown if value == getattr(default, key) else f"<b>{shown}</b>"
        rows.append(f'<tr><th scope="row">{key}</th><td>{cell}</td></tr>')
    return "\n".join([f"<section><h3>{name}</h3>", "<table>", *rows, "</table></section>"])


def _points(curves: dict[str, Curve], last_step: int) -> str:
    """What the page's script shows under the pointer: the steps of each curve, and the values as they are written."""
    written = {
        key: [list(curve.steps), [_figure(key, value) for value in curve.values]] for key, curve in curves.items()
    }
    return json.dumps({"last": max(last_step, 1), "curves": written}, separators=(",", ":"))


# ---- words -------------------------------------------------------------------------------------------------------


def _figure(key: str, value: float) -> str:
    """A value of the log as a person reads it."""
    digits = _FIGURES[key][1]
    if math.isnan(value):
        return "not finite"
    return f"{value:.2e}" if digits is None or abs(value) >= 1e9 else f"{value:,.{digits}f}"


def duration(seconds: float) -> str:
    """Two units at most: `45 s`, `12 min`, `3 h 05 min`, `2 d 4 h`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes // 1440:,} d {minutes % 1440 // 60} h"


def _moment(seconds: float) -> str:
    """Seconds since 1970 as `21 November 2026, 07:23 UTC`, whatever the locale."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment.day} {_MONTHS[moment.month - 1]} {moment:%Y, %H:%M} UTC"
