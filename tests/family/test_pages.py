"""The pages about the family show the code that is there."""

import re
from pathlib import Path

import pytest
from support.documents import code_blocks
from support.toy_task import ROOT

FAMILY = ROOT / "src" / "transduce" / "family"
PAGES = sorted(ROOT.glob("docs/family-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_is_the_code_of_its_member(page: Path) -> None:
    source = "\n".join(path.read_text("utf-8") for path in FAMILY.parent.rglob("*.py"))
    blocks = code_blocks(page, "python")
    assert blocks
    for block in blocks:
        assert f"\n{block.rstrip()}\n" in source, block


PAGES_OF_MEMBERS = "gpt2 llama variants decisions bert vit images t5 whisper wav2vec2".split()


@pytest.mark.parametrize("member", PAGES_OF_MEMBERS)
def test_the_page_of_a_member_has_two_screens_of_60_lines(member: str) -> None:
    assert len((ROOT / "docs" / f"family-{member}.md").read_text("utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", ["family", "family-attention"])
def test_the_table_of_files_has_their_lengths(page: str) -> None:
    rows = re.findall(r"\| ((?:`[\w/]+\.py`(?:, )?)+) \| (\d+) \|", (ROOT / "docs" / f"{page}.md").read_text("utf-8"))
    assert rows
    for files, lines in rows:
        names = re.findall(r"[\w/]+\.py", files)
        assert sum(len((FAMILY / name).read_text("utf-8").splitlines()) for name in names) == int(lines), files
