"""The help of a command, from the docstring of its function."""

import inspect
import os
import shutil
from collections.abc import Callable

from cyclopts import App

EXAMPLES = "\n\nExamples\n--------\n"


SIZES = range(20, 1_001)  # of a terminal for which help and progress bars can be laid out in little time


def limit_size() -> None:
    """Set COLUMNS and LINES to the nearest of SIZES, unless the terminal already has such a size."""
    for name, value in zip(("COLUMNS", "LINES"), shutil.get_terminal_size(), strict=True):
        if name in os.environ or value not in SIZES:
            os.environ[name] = str(min(max(value, SIZES[0]), SIZES[-1]))


def add_command(app: App, command: Callable[..., None], order: int) -> None:
    """Add `command` to `app` under the name of its function. Its docstring becomes its help, with the examples last.

    order: the position among the commands in the help of `app`.
    """
    text, _, examples = inspect.cleandoc(command.__doc__ or "").partition(EXAMPLES)
    command.__doc__ = join_lines(text)
    epilogue = "\n".join(["Examples:", *(f"  {line}" for line in examples.splitlines())])
    app.command(command, name=command.__name__.rstrip("_").replace("_", "-"), help_epilogue=epilogue, sort_key=order)


def join_lines(text: str) -> str:
    """Return `text` with each paragraph on one line, so that only the width of the terminal breaks it.

    A paragraph is a run of lines with equal indentation. An underline of hyphens belongs to none.
    """
    lines: list[str] = []
    for line in text.splitlines():
        if lines and _is_text(lines[-1]) and _is_text(line) and _indentation(lines[-1]) == _indentation(line):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def _is_text(line: str) -> bool:
    return bool(line.strip("- "))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
