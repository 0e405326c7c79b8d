"""The parts that all pages share: head, style, hashes of styles and scripts, writing, durations."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from transduce import __version__
from transduce.storage.atomic_folder import replacement


def fill_page(
    template: str, fields: dict[str, str], policy: str, parts: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Return the page of `template`, a file in the same folder.

    It has the head and the style that all pages share: $head is page_head.html, $style is page.css.
    fields: HTML for each placeholder of the template, by name. policy: the content security policy of the page after
    `default-src 'none'`, with placeholders for hashes.
    parts: placeholders that are filled with files of the same folder, styles or scripts, joined. The hash that allows
    such an element in the page's policy is the placeholder NAME_hash; $style_hash belongs to the shared style.
    """
    folder = Path(__file__).parent
    texts = {
        name: "".join((folder / file).read_text("utf-8") for file in files)
        for name, files in {"style": ["page.css"], **(parts or {})}.items()
    }
    hashes = {f"{name}_hash": _source_hash(text) for name, text in texts.items()}
    policy = f"default-src 'none'; {Template(policy).substitute(hashes)}"
    head = Template((folder / "page_head.html").read_text("utf-8")).substitute(policy=policy).rstrip("\n")
    page = Template((folder / template).read_text("utf-8"))
    return page.substitute(fields, **texts, head=head, version=__version__)


def _source_hash(text: str) -> str:
    """Return the expression by which a content security policy allows an element with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def write_page(path: Path, content: str) -> None:
    """Write a page whole or not at all, without waiting for the disk. Missing folders are made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
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
