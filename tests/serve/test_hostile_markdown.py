"""Hostile Markdown of almost 1 MiB: it is read and written, or refused, within 10 s and 200 MB."""

from functools import partial

import pytest
from support.markdown_files import read_and_write
from support.measured import measured

from transduce.errors import UserError
from transduce.serve.formats import markdown
from transduce.serve.formats.files import read_file
from transduce.serve.formats.markdown import (
    MOST_ALL_BRACKETS,
    MOST_BLOCK_TOKENS,
    MOST_CHARACTERS,
    MOST_MARKS,
    MOST_TEXT,
)

MOST_SECONDS, MOST_BYTES = 10, 200 << 20


def repeated(unit: str, most: int = MOST_TEXT) -> str:
    return unit * (most // len(unit))


def paragraphs(unit: str, most: int = MOST_TEXT) -> str:
    """Return paragraphs that are as long as they may be."""
    return repeated(repeated(unit, MOST_CHARACTERS) + "\n\n", most)


def brackets(paragraph: str) -> str:
    """Return paragraphs with all brackets that a document may have."""
    return (paragraph + "\n\n") * (MOST_ALL_BRACKETS // paragraph.count("["))


def blocks(block: str, n_tokens: int) -> str:
    """Return a block of so many tokens of the parser, as often as it may be there."""
    return block * (MOST_BLOCK_TOKENS // n_tokens - 10)


REFUSED = {
    "brackets": (paragraphs("["), "expected at most 100,000 brackets of Markdown, not 1,0"),
    "marks": (paragraphs("*a_ "), "expected at most 400,000 marks of emphasis of Markdown, not 52"),
    "levels of quotes": (">" * 99 + " a\n", "expected at most 100 levels of lists and quotes in Markdown"),
    "levels of lists": ("".join("  " * i + "- a\n" for i in range(50)), "expected at most 100 levels of lists"),
    "a long paragraph": (repeated("<b>"), "in:1: expected a paragraph of at most 10,000 characters"),
    "lines": (repeated("a\n"), "expected at most 300,000 lines; split the file"),
    "too long": (repeated("a\n\n") + "abcd", "expected at most 1,048,576 characters of Markdown, not 1,048,579"),
}
READ = {
    "nested lists": repeated("".join("  " * i + "- a\n" for i in range(100))),
    "a list in a list": repeated("- "),
    "quotes": repeated(">" * 500 + "a\n"),
    "open brackets": brackets("[" * 999),
    "open links": brackets("[a](" * 999),
    "nested links": brackets("[" * 999 + "a" + "](b)" * 999),
    "nested images": brackets("![" * 999 + "a" + "](b)" * 999),
    "references": "".join(f"[a{i}]: b\n" for i in range(30_000)) + "\n" + brackets("[a1] " * 600)[:300_000],
    "footnotes": repeated("".join(f"[^{i}]: ab\n\n" for i in range(1_000)), 700_000),
    "nested footnotes": repeated("".join("    " * i + f"[^{i}]: a\n\n" for i in range(60))),
    "open footnotes": brackets("[^" * 999),
    "marks of footnotes": paragraphs("a[^1]"),
    "angles": paragraphs("<"),
    "open tags": paragraphs("<a b='"),
    "comments": paragraphs("a <!-- "),
    "autolinks": paragraphs("a <http://"),
    "backticks": paragraphs("` `` "),
    "growing backticks": paragraphs("".join("`" * i + " " for i in range(1, 139))),
    "emphasis": paragraphs("*a_ ", 2 * MOST_MARKS - 100),
    "nested emphasis": paragraphs("*a **"),
    "strikes": paragraphs("~~a "),
    "entities": paragraphs("&amp;"),
    "words": paragraphs("a"),
    "paragraphs": blocks("*abc* defg hi\n\n", 3),
    "headings": blocks("# heading text\n", 3),
    "items": blocks("- an item of text\n", 5),
    "tasks": blocks("- [ ] an item of text\n", 5),
    "cells": "|a|b|\n|-|-|\n" + blocks("|cde fghi|j *kl* m|\n", 8),
    "a wide table": "|" + "a|" * 4_000 + "\n|" + "-|" * 4_000 + "\n" + ("|" + "b|" * 4_000 + "\n") * 14,
    "too wide a table": "|" + "a|" * 4_000 + "\n|" + "-|" * 4_000 + "\n" + ("|" + "b|" * 4_000 + "\n") * 120,
    "rules": repeated("---\n"),
    "blocks of HTML": repeated("<p>a</p>\n\n"),
    "pairs of tags": paragraphs("<b>a</b> "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_take_long_is_refused_at_once(name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(UserError) as error:
        read_file(text.encode(), "md", "in")
    assert message in str(error.value)


def test_too_many_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "MOST_BLOCK_TOKENS", 30)
    read_and_write("a\n\n" * 10)
    with pytest.raises(UserError, match="in: expected at most 10 paragraphs or cells, or 6 items, of Markdown; split"):
        read_and_write("a\n\n" * 11)


@pytest.mark.parametrize("text", [">" * 98 + " deep\n", "".join("  " * i + "- deep\n" for i in range(49))])
def test_a_text_on_the_deepest_level_is_read(text: str) -> None:
    parts = [part.line for part in read_file(text.encode(), "md", "in").document if not isinstance(part, str)]
    assert parts == ["deep"] * text.count("deep")


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_it_takes_limited_time_and_memory(name: str) -> None:
    ending, seconds, size = measured(partial(read_and_write, READ[name]), 60)
    assert ending == "done" or ending.startswith("refused: in: expected at most "), ending[:200]
    assert seconds < MOST_SECONDS and size < MOST_BYTES, (ending[:200], seconds, size)
