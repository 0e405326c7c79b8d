"""Code blocks and commands in Markdown pages."""

import re
from pathlib import Path


def code_blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of one language, in order. "" is a fence without a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def transduce_commands(page: Path) -> list[str]:
    """Return the lines of all shell blocks that start with `transduce `, continued lines joined."""
    blocks = [block for language in ("sh", "bash", "") for block in code_blocks(page, language)]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("transduce ") and line.split()[1][-1] != ":"]
