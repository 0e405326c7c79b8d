"""The help of every command: order, wrapping, examples, and no slow imports."""

import io
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from rich.console import Console
from support.command_line import heavy_imports
from support.toy_task import CommandResult

import transduce
from transduce.cli.main import app

COMMANDS = """
demo download check clean linearize train finetune report evaluate translate parse serve score attend heads prune
average shortlist calibrate configure add-tags backtranslate distil diversify export import continue fill embed classify
transcribe recipes study
""".split()
STUDIES = [
    "study table1",
    "study table2",
    "study table3",
    "study table4",
    "study claims",
    "study attention",
    "study positions",
    "study experts",
    "study scaling",
]


def help_of(command: str, columns: int = 80) -> str:
    """Return the help of `command` on a terminal with that many columns."""
    output = io.StringIO()
    app.help_print(command.split(), console=Console(width=columns, file=output))
    return output.getvalue()


def test_commands_are_listed_in_the_order_of_use() -> None:
    assert re.findall(r"^│ ([a-z][a-z-]*) ", help_of(""), re.MULTILINE) == COMMANDS
    studies = re.findall(r"^│ (table\d|claims|attention|positions|experts|scaling) ", help_of("study"), re.MULTILINE)
    assert [f"study {name}" for name in studies] == STUDIES


# Print the help of each command into a pipe without a reader, in a separate process.
CLOSED_PIPE = """
import os, sys
from transduce.cli.main import main
reader, writer = os.pipe()
os.close(reader)
for command in sys.argv[1:]:
    if not (child := os.fork()):
        os.dup2(writer, 1)
        sys.argv = ["transduce", *command.split(), "--help"]
        main()
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, (command, code)
"""


def test_a_reader_may_close_the_pipe_of_a_help() -> None:
    """As in `transduce serve --help | head -3`."""
    command = [sys.executable, "-c", CLOSED_PIPE, "", *COMMANDS, *STUDIES]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


@pytest.mark.parametrize("command", [*COMMANDS, *STUDIES])
def test_help_ends_with_examples(command: str) -> None:
    text = help_of(command)
    examples = text[text.index("Examples:") :].splitlines()[1:]
    assert examples and all(len(line) < 80 for line in examples)  # the terminal breaks none of them
    for before, line in zip(["", *examples], examples, strict=False):
        begins = ("      --",) if before.endswith("\\") else (f"  transduce {command} ", "  echo ")
        assert f"{line} ".startswith(begins)


@pytest.mark.parametrize("option", ["--constraints tabs", "--constraints json", "--prefix", "--terms"])
def test_each_form_of_constraint_has_an_example(option: str) -> None:
    text = help_of("translate")
    assert option in text[text.index("Examples:") :]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", ["", *COMMANDS, *STUDIES])
def test_only_the_width_breaks_the_lines_of_help(command: str, columns: int) -> None:
    """Each line of a paragraph is full: the first word of the next line would not fit on it."""
    text = help_of(command, columns)
    usage, *sections = re.split(r"\n(?=╭)", text.partition("\nExamples:\n")[0].partition("\nStart with:\n")[0])
    for paragraph in usage.split("\n\n"):
        assert_filled(paragraph.splitlines(), columns)
    for section in sections:
        rows = [line[2:-2] for line in section.splitlines() if line.startswith("│")]
        indentation = min((len(row) - len(row.lstrip()) for row in rows if row.startswith("     ")), default=0)
        if not indentation:  # every text of this section fits on one line
            continue
        cell: list[str] = []
        for row in rows:
            if row[:indentation].strip():
                assert_filled(cell, columns - 4 - indentation)
                cell = []
            cell.append(row[indentation:])
        assert_filled(cell, columns - 4 - indentation)


@pytest.mark.parametrize("name", ["COLUMNS", "LINES"])
@pytest.mark.parametrize("value", ["", "0", "1", "2", "99999999", "9" * 5_000, "²", "-5", "x"])
def test_help_is_printed_for_any_size_of_the_terminal(
    cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    result = cli("translate", "--help")
    lines = result.out.decode().splitlines()
    assert result.code == 0 and result.out.startswith(b"Usage: transduce") and result.err == ""
    assert max(map(len, lines)) <= 1_000


@pytest.mark.parametrize("command", COMMANDS)
def test_usage_names_every_argument(command: str) -> None:
    assert "ARGS" not in help_of(command, 120)


def assert_filled(lines: list[str], width: int) -> None:
    for line, following in zip(lines, lines[1:], strict=False):
        assert len(line.rstrip()) <= width
        assert len(line.rstrip()) + 1 + len(following.split()[0]) > width, (line, following)


def test_help_and_version_do_not_load_slow_packages(cli: Callable[..., CommandResult]) -> None:
    assert cli("--version").out.decode().strip() == transduce.__version__
    assert cli("train", "--help").out.decode().startswith("Usage: transduce train --train CORPUS")
    calls = [f"app([*{command.split()}, '--help'])" for command in ["", *COMMANDS, *STUDIES]]
    assert heavy_imports("\n".join(["from transduce.cli.main import app", "app(['--version'])", *calls])) == []
