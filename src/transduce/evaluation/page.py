"""The parts that the report of a run and the reports of studies share: template, style, writing, durations."""

from pathlib import Path
from string import Template

from transduce.storage.atomic_folder import replacement
from transduce.version import __version__


def fill_page(template: str, fields: dict[str, str]) -> str:
    """Return the page of `template`, a file in the same folder, with the style that all pages share (page.css).

    fields: HTML for each placeholder of the template, by name.
    """
    folder = Path(__file__).parent
    style = (folder / "page.css").read_text(encoding="utf-8")
    page = Template((folder / template).read_text(encoding="utf-8"))
    return page.substitute(fields, style=style, version=__version__)


def write_page(path: Path, content: str) -> None:
    """Write a page whole or not at all, without waiting for the disk. Raises OSError."""
    with replacement(path) as building, building.open("x", encoding="utf-8", errors="backslashreplace") as file:
        file.write(content)


def duration(seconds: float) -> str:
    """Return a duration in two units at most: `45 s`, `12 min`, `3 h 05 min`, `2 d 4 h`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes // 1440:,} d {minutes % 1440 // 60} h"
