"""Markdown through the formats of the service, where another process can import it, unlike a file of tests."""

from transduce.serve.formats.files import read_file


def read_and_write(text: str) -> None:
    """Read Markdown, and write it again with the same texts: it is what it was.

    Raises:
        UserError: if it is refused.
    """
    file = read_file(text.encode(), "md", "in")
    pieces = [part if isinstance(part, str) else part.write(part.line, None) for part in file.document]
    assert file.write(pieces).decode() == text
