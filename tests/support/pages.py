"""A parser of HTML pages, to test their texts and their structure."""

import json
import re
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """The elements and texts of a page. Parsing fails if elements are not closed in order.

    elements: tag and attributes, in order. cells: the text of each innermost element, in order.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.cells: list[str] = []
        self.source = text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open and self.open[-1] not in ("script", "style"):
            self.cells.append(data.strip())

    @property
    def text(self) -> str:
        return " ".join(self.cells)

    def points(self) -> dict[str, Any]:
        """Return the data of the page's script."""
        data = re.search(r'<script type="application/json" id="points">(.*?)</script>', self.source, re.DOTALL)
        assert data
        return json.loads(data[1])

    def loads(self) -> list[str]:
        """Return the attributes and the texts through which the page could load something."""
        names = {name for _, attributes in self.elements for name in attributes}
        loading = names & {"src", "href", "srcset", "action", "data", "poster", "background", "xlink:href"}
        without_comments = re.sub(r"^\s*//.*$", "", self.source, flags=re.MULTILINE)
        return [*sorted(loading), *re.findall(r"//|@import|url\(|fetch\(|XMLHttp", without_comments)]
