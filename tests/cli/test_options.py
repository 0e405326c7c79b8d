"""Options of all commands: integers, and precisions that a command has."""

from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import pytest
from cyclopts import App
from support.toy_task import CommandResult

from transduce.cli.main import app
from transduce.cli.options import Integer


def commands(of: App) -> Iterator[App]:
    """Yield every command, also the commands of `study`."""
    for name in of:
        if name[0] != "-":
            yield of[name]
            yield from commands(of[name])


def integer_options() -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """Yield the command, the name and the annotations of every option that is an integer, or a list of them."""
    for command in commands(app):
        if command.default_command is not None:
            hints = get_type_hints(command.default_command, include_extras=True)
            for name, hint in hints.items():
                kind, *annotations = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
                if int in (kind, *get_args(kind)) or list[int] in (kind, *get_args(kind)):
                    yield " ".join(command.name), name, tuple(annotations)


def test_no_command_rounds_an_integer() -> None:
    options = [*integer_options()]
    assert len(options) >= 13, options
    assert [option for option in options if Integer not in option[2]] == []


@pytest.mark.parametrize(
    "arguments",
    [
        "translate m --beam-size",
        "translate m --n-best",
        "translate m --lookahead",
        "translate m --top-k",
        "translate m --seed",
        "average r --out o --last",
        "check a b --first",
        "study table2 --train a b --valid a b --test a b --out o --jobs",
        "study table3 --train a b --valid a b --out o --seeds 1",
        "study table4 --train a --valid a --out o --jobs",
    ],
)
@pytest.mark.parametrize("value", ["2.5", "2.0", "1e3", "two"])
def test_a_number_that_is_no_integer_is_a_mistake(
    cli: Callable[..., CommandResult], arguments: str, value: str
) -> None:
    result = cli(*arguments.split(), value)
    option = [word for word in arguments.split() if word.startswith("--")][-1]
    assert result.code == 2 and result.err.startswith(f"transduce: {option}={value}: expected an integer;")


@pytest.mark.parametrize("command", ["score m --src a --tgt b", "evaluate m --src a --ref b"])
@pytest.mark.parametrize("precision", ["int8", "auto", "fp16"])
def test_no_command_scores_in_another_precision_than_asked(
    cli: Callable[..., CommandResult], command: str, precision: str
) -> None:
    result = cli(*command.split(), "--precision", precision)
    assert result.code == 2 and f"--precision={precision}: expected fp32 or bf16" in result.err
