"""HTML pages. Tags, attributes, scripts and styles stay."""

from collections.abc import Iterator

from transduce.serve.documents import Part
from transduce.serve.markup import HTML, markup_document
from transduce.serve.markup_tokens import tokens_of


def read(text: str) -> Iterator[str | Part]:
    """Yield the texts of a page."""
    return markup_document(tokens_of(text), HTML)


READERS = {"html": read, "htm": read}
