"""The report of a study: the same content as report.md, and as report.html, one page without other files.

A report is a title, a lead, and sections of paragraphs, tables and figures. The last section says how to reproduce it.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from transduce.evaluation.page import fill_page, write_page

POLICY = "style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Table:
    """A table of text.

    head: the names of the columns. rows: their cells; the first cell is the row's name. quiet: indices of rows in a
    faint colour. words: indices of columns of words, which are left-aligned.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    quiet: frozenset[int] = frozenset()
    words: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Figure:
    """A drawing with its title.

    drawing: the content of an <svg>; positions are per cent of its width, and pixels or per cent of its height.
    height: height in pixels. alt: a description for screen readers. legend: name and class of each colour.
    margins: space for the labels of axes at the left and below, in pixels.
    """

    title: str
    drawing: str
    height: int
    alt: str
    note: str = ""
    legend: Sequence[tuple[str, str]] = ()
    margins: tuple[int, int] = (56, 36)


Block = str | Table | Figure  # a str is a paragraph, or a command if it starts with four spaces


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    heading: str
    blocks: list[Block]


@dataclass(frozen=True)
class Report:
    """The content of a report."""

    title: str
    lead: str
    sections: Sequence[Section]


def fill_report(template: Path, parts: Mapping[str, Any]) -> Report:
    """Return the report of a Markdown file: a title, a lead, and below each heading its paragraphs.

    {NAME} in the file is a part, as in `str.format`. In a paragraph without other text, it is a block or several. Below
    the head of a table, it is its rows.
    """
    title, lead, *paragraphs = template.read_text("utf-8").strip().split("\n\n")
    sections: list[Section] = []
    for paragraph in paragraphs:
        text = _filled(paragraph, parts)
        if text.startswith("## "):
            sections.append(Section(text.removeprefix("## "), []))
            continue
        part = _table_of(paragraph, parts) if text.startswith("| ") else parts.get(paragraph[1:-1], text)
        sections[-1].blocks.extend([part] if isinstance(part, Block) else part)
    return Report(_filled(title, parts).removeprefix("# "), _filled(lead, parts), sections)


def _filled(text: str, parts: Mapping[str, Any]) -> str:
    return " ".join(text.splitlines()).format_map(parts).strip()


def _table_of(text: str, parts: Mapping[str, Any]) -> Table:
    """Return the table of a head, alignments and the name of its rows, each in one line."""
    head, alignments, rows = ([cell.strip() for cell in line[1:].strip("|").split("|")] for line in text.splitlines())
    words = frozenset(column for column, alignment in enumerate(alignments) if not alignment.endswith(":"))
    return rows_table(head, parts[rows[0][1:-1]], words)


NOT_RUN = "not run"


def rows_table(head: Sequence[str], rows: Sequence[Sequence[str]], words: frozenset[int] = frozenset({0})) -> Table:
    """Return a table in which a row that has not been run is quiet: with a cell `NOT_RUN`, or fewer cells than head.

    Cells that are missing are empty. words: indices of columns of words.
    """
    quiet = frozenset(number for number, row in enumerate(rows) if NOT_RUN in row or len(row) < len(head))
    return Table(head, [[*row, *[""] * (len(head) - len(row))] for row in rows], quiet=quiet, words=words)


def write_report(out: Path, report: Report, sessions: Sequence[dict[str, Any]]) -> None:
    """Write OUT/report.md and OUT/report.html, each whole or not at all. sessions: the sessions of results.json."""
    complete = Report(report.title, report.lead, [*report.sections, _reproduction(sessions)])
    write_page(out / "report.md", markdown(complete))
    write_page(out / "report.html", html_page(complete))


def _reproduction(sessions: Sequence[dict[str, Any]]) -> Section:
    """Return the section of the commands, and of the date, versions and machine of each session."""
    rows = []
    for session in sessions:
        machine = session["machine"]
        hardware = ", ".join([machine["processor"], f"{machine['cores']} cores", *machine["gpus"]])
        versions = ", ".join(f"{name} {version}" for name, version in session["versions"].items())
        rows.append([session["started_at"], session["commit"] or "not in a checkout", versions, hardware])
    commands = [f"    {command}" for command in dict.fromkeys(session["command"] for session in sessions)]
    table = Table(["started", "commit", "versions", "machine"], rows, words=frozenset(range(4)))
    return Section("How to reproduce it", [*commands, table, "All figures are from results.json in this folder."])


# ---- Markdown ----------------------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """Return the report as Markdown, with a description instead of each figure."""
    blocks = [f"# {report.title}", report.lead]
    for section in report.sections:
        blocks.append(f"## {section.heading}")
        blocks += [_block_markdown(block) for block in section.blocks]
    return "\n\n".join(blocks) + "\n"


def _block_markdown(block: Block) -> str:
    match block:
        case str():
            return block
        case Figure():
            return f"Figure (in report.html): {block.title}. {block.alt}"
    rules = ["---" if column in block.words else "---:" for column in range(len(block.head))]
    rows = [block.head, rules, *block.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


# ---- the page ----------------------------------------------------------------------------------------------------


def html_page(report: Report) -> str:
    """Return the report as one HTML page."""
    fields = {
        "title": html.escape(report.title),
        "lead": html.escape(report.lead),
        "body": "\n".join(_section(section) for section in report.sections),
    }
    return fill_page("study_report.html", fields, POLICY)


def _section(section: Section) -> str:
    """Return a section; consecutive figures are side by side if the page is wide enough."""
    elements: list[str] = []
    for is_figure, blocks in groupby(section.blocks, lambda block: isinstance(block, Figure)):
        parts = [_element(block) for block in blocks]
        elements += ['<div class="figures">', *parts, "</div>"] if is_figure else parts
    return "\n".join(["<section>", f"<h2>{html.escape(section.heading)}</h2>", *elements, "</section>"])


def _element(block: Block) -> str:
    match block:
        case Figure():
            return _figure(block)
        case Table():
            return _table(block)
        case str() if block.startswith("    "):
            return f"<pre>{html.escape(block.strip())}</pre>"
        case str():
            return f"<p>{html.escape(block)}</p>"


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
    head = "".join(
        f'<th scope="col"{_alignment(table, i)}>{html.escape(cell)}</th>' for i, cell in enumerate(table.head)
    )
    body = []
    for number, row in enumerate(table.rows):
        first = f'<th scope="row">{html.escape(row[0])}</th>'
        rest = "".join(f"<td{_alignment(table, i)}>{html.escape(cell)}</td>" for i, cell in enumerate(row) if i)
        body.append(f"<tr{' class=quiet' if number in table.quiet else ''}>{first}{rest}</tr>")
    rows = "\n".join(body)
    return f"""<div class="wide" role="region" aria-label="{html.escape(table.head[0])}" tabindex="0"><table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody></table></div>"""


def _alignment(table: Table, column: int) -> str:
    return ' class="words"' if column in table.words else ""
