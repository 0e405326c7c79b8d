"""The format of WMT's test sets up to 2020: `<seg id="1">A sentence.</seg>`, once per line of text."""

import re
from collections.abc import Iterator
from pathlib import Path

from transduce.data.compression import open_text
from transduce.data.text import decode_line, raw_lines

SEGMENT = re.compile(r"<seg\b[^>]*>(.*)</seg>")


def read_segments(path: Path) -> Iterator[str]:
    """Yield the text of each segment, with single spaces.

    The format only looks like SGML: `&` and `<` are plain characters, and nothing is unescaped. sacreBLEU reads these
    files in the same way, so that its references are equal.
    """
    with open_text(path) as file:
        for number, raw in enumerate(raw_lines(file, f"{path}"), start=1):
            if match := SEGMENT.search(decode_line(raw, f"{path}", number)):
                yield " ".join(match[1].split())
