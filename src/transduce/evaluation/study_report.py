"""The report of a study, from one content in two forms: report.md, and report.html, one page that loads nothing.

A report is a title, a lead, sections of paragraphs, tables and figures, and at the end how everything was made.
"""

import html
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from transduce.version import __version__


@dataclass(frozen=True)
class Table:
    """head: the names of the columns. rows: their cells; the first is the row's name. quiet: rows that are shown faint.

    words: columns of words, which are aligned on the left.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    quiet: frozenset[int] = frozenset()
    words: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Figure:
    """drawing: the inner part of an <svg> whose places are per cent of its width, and pixels or per cent of its height.

    height: in pixels. legend: name and class of each colour. alt: the figure in words, for those who do not see it.
    margins: room at the left and below for the labels of axes, in pixels.
    """

    title: str
    drawing: str
    height: int
    alt: str
    note: str = ""
    legend: Sequence[tuple[str, str]] = ()
    margins: tuple[int, int] = (56, 36)


Part = str | Table | Figure


@dataclass(frozen=True)
class Section:
    heading: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Report:
    title: str
    lead: str
    sections: Sequence[Section]


def write_report(out: Path, report: Report, sessions: Sequence[dict[str, Any]]) -> None:
    """Write OUT/report.md and OUT/report.html, each whole or not at all. sessions: those of results.json."""
    whole = Report(report.title, report.lead, [*report.sections, _making(sessions)])
    for name, content in (("report.md", markdown(whole)), ("report.html", page(whole))):
        building = out / f".tmp-{name}"
        building.write_text(content, encoding="utf-8")
        os.replace(building, out / name)


def _making(sessions: Sequence[dict[str, Any]]) -> Section:
    """How the figures were made: the newest command, and when, by what and on what each session ran."""
    rows = []
    for session in sessions:
        versions, machine = session["versions"], session["machine"]
        where = ", ".join([machine["processor"], f"{machine['cores']} cores", *machine["gpus"]])
        made_by = ", ".join(f"{name} {version}" for name, version in versions.items())
        rows.append([session["started_at"], session["commit"] or "not in a checkout", made_by, where])
    parts: list[Part] = []
    for command in dict.fromkeys(session["command"] for session in sessions):
        parts.append(f"    {command}")
    table = Table(["begun", "commit", "versions", "machine"], rows, words=frozenset(range(4)))
    return Section("How it was made", [*parts, table, "Every figure is from results.json beside this page."])


# ---- Markdown ----------------------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """The report for a terminal or a repository; figures are in the page only."""
    parts = [f"# {report.title}", report.lead]
    for section in report.sections:
        parts.append(f"## {section.heading}")
        parts += [_part_markdown(part) for part in section.parts]
    return "\n\n".join(parts) + "\n"


def _part_markdown(part: Part) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Figure):
        return f"Figure (in report.html): {part.title}. {part.alt}"
    rules = ["---" if column in part.words else "---:" for column in range(len(part.head))]
    rows = [part.head, rules, *part.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


# ---- the page ----------------------------------------------------------------------------------------------------


def page(report: Report) -> str:
    """The report as one HTML page."""
    template = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html.escape(report.title),
        lead=html.escape(report.lead),
        body="\n".join(_section(section) for section in report.sections),
        version=__version__,
    )


def _section(section: Section) -> str:
    """Figures that follow one another stand side by side, where there is room."""
    written: list[str] = []
    for number, part in enumerate(section.parts):
        follows = number > 0 and isinstance(section.parts[number - 1], Figure)
        if isinstance(part, Figure) and not follows:
            together = list(_figures_from(section.parts, number))
            written.append('<div class="figures">\n' + "\n".join(map(_figure, together)) + "\n</div>")
        elif isinstance(part, Table):
            written.append(_table(part))
        elif isinstance(part, str) and part.startswith("    "):
            written.append(f"<pre>{html.escape(part.strip())}</pre>")
        elif isinstance(part, str):
            written.append(f"<p>{html.escape(part)}</p>")
    return "\n".join(["<section>", f"<h2>{html.escape(section.heading)}</h2>", *written, "</section>"])


def _figures_from(parts: Sequence[Part], first: int) -> Iterator[Figure]:
    for part in parts[first:]:
        if not isinstance(part, Figure):
            return
        yield part


def _figure(figure: Figure) -> str:
    keys = "".join(f'<span class="{kind}"><i></i>{html.escape(name)}</span>' for name, kind in figure.legend)
    left, below = figure.margins
    return f"""<figure>
<figcaption><h3>{html.escape(figure.title)}</h3><span class="note">{html.escape(figure.note)}</span>
<div class="legend">{keys}</div></figcaption>
<div class="plot" style="margin: .75rem .75rem {below}px {left}px">
<svg role="img" aria-label="{html.escape(f"{figure.title}. {figure.alt}")}" style="height: {figure.height}px">
{figure.drawing}
</svg></div>
</figure>"""


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"{_aligned(table, i)}>{html.escape(cell)}</th>' for i, cell in enumerate(table.head))
    body = []
    for number, row in enumerate(table.rows):
        first = f'<th scope="row">{html.escape(row[0])}</th>'
        rest = "".join(f"<td{_aligned(table, i)}>{html.escape(cell)}</td>" for i, cell in enumerate(row) if i)
        body.append(f"<tr{' class=quiet' if number in table.quiet else ''}>{first}{rest}</tr>")
    rows = "\n".join(body)
    return f"""<div class="wide" role="region" aria-label="{html.escape(table.head[0])}" tabindex="0"><table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody></table></div>"""


def _aligned(table: Table, column: int) -> str:
    return ' class="words"' if column in table.words else ""
