"""`transduce recipes`: list the recipes, or show the settings of one."""

import dataclasses
import itertools
import re
import shutil
import textwrap
from typing import TYPE_CHECKING

from transduce.cli.train import Corpora, Hours, Minutes, minutes_of
from transduce.config.validation import refuse
from transduce.data.corpora import Corpus, problems
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.config.recipes import RecipeEntry
    from transduce.config.schema import Config

WIDTH = 76


def recipes(
    name: str | None = None, *, train: Corpora | None = None, minutes: Minutes = None, hours: Hours = None
) -> None:
    """List the recipes, or show the settings of one recipe, or what `auto` would choose for a text.

    The list has a line for each recipe: its name, its number of parameters, and the time of a training.

    Parameters
    ----------
    name
        The recipe to show: a name of the list, or FILE.py:FUNCTION. Each setting is printed as `transduce train --set`
        takes it. A star marks a setting that differs from its default.
    train
        With the recipe auto: the training text, as in `transduce train`.

    Examples
    --------
    transduce recipes
    transduce recipes small
    transduce recipes auto --train train.en train.de --minutes 60
    """
    if train or minutes is not None or hours is not None:
        print(format_choice(name, train or [], minutes_of(minutes, hours)))
    else:
        print(format_list() if name is None else format_recipe(name))


def format_choice(name: str | None, train: list[Corpus], minutes: float | None) -> str:
    """Return the settings that `auto` chooses for a text and a time on this machine, and why."""
    from transduce.storage.run_choices import choose_for

    if name != "auto" or not train:
        raise UserError("--train: expected a text, and the recipe auto; give `transduce recipes auto --train SRC TGT`")
    refuse(problems(train))
    choice = choose_for(train, minutes)
    return "\n".join([*choice.lines, format_settings(choice.config)])


def format_list() -> str:
    """Return one line for each recipe: its name, size, time, and as much of its sentence as the terminal is wide.

    The rows of each table of the paper are a separate group, with its own column widths.
    """
    from transduce.config.recipes import catalogue

    width = max(80, shutil.get_terminal_size().columns) - 1
    groups = itertools.groupby(catalogue(), key=lambda entry: table_of(entry.name))
    tables = ["\n".join(format_rows([*group], width)) for _, group in groups]
    return "\n\n".join([*tables, "`transduce recipes NAME` shows the settings of a recipe."])


def table_of(name: str) -> str:
    """Return the table of the paper that the recipe `name` is a row of, such as "small-table3", or an empty text."""
    match = re.match(r".+-table\d", name)
    return match[0] if match else ""


def format_rows(entries: "list[RecipeEntry]", width: int) -> list[str]:
    """Return a line of at most `width` characters for each entry, with columns as wide as their longest cell."""
    cells = [(entry.name, size_of(entry).removesuffix(" parameters"), shorten(entry.time, 26)) for entry in entries]
    name, size, time = (max(map(len, column)) for column in zip(*cells, strict=True))
    room = width - (name + size + time + 5)
    return [
        f"{row[0]:{name}} {row[1]:>{size}}  {row[2]:{time}}  {shorten(entry.summary.rstrip('.'), room)}"
        for row, entry in zip(cells, entries, strict=True)
    ]


def shorten(text: str, width: int) -> str:
    """Return the whole clauses of `text` that fit into `width`, or as many words as fit and an ellipsis."""
    if len(text) <= width:
        return text
    starts = [text[: match.start()] for match in re.finditer(r"[,;:] | \(", text[: width + 2])]
    clauses = [start for start in starts if start.count("(") == start.count(")")]
    return clauses[-1] if clauses else textwrap.shorten(text, width, placeholder=" ...")


def format_recipe(name: str) -> str:
    """Return the sentence, the size, the time and the settings of a recipe. Raises UserError if there is none."""
    from transduce.config.recipes import catalogue, find_recipe

    config = find_recipe(name)()
    entry = next((entry for entry in catalogue() if entry.name == name), None)
    text = "" if entry is None else f"{entry.summary} Time: {entry.time}. "
    size = format_size(config) if entry is None else size_of(entry)
    text += f"The model has {size}. A star marks a setting that differs from its default."
    return "\n".join([name, "", *textwrap.wrap(text, WIDTH), format_settings(config)])


def format_settings(config: "Config") -> str:
    """Return the settings as section.key=value, one per line, with a star and the default where they differ from it."""
    from transduce.config.overrides import format_value
    from transduce.config.schema import Config

    lines = []
    for section in dataclasses.fields(config):
        values = getattr(config, section.name)
        own = getattr(Config(), section.name)
        defaults = own if isinstance(values, type(own)) else type(values)()  # a kind of model with its own keys
        lines.append("")
        for field in dataclasses.fields(values):
            value, default = getattr(values, field.name), getattr(defaults, field.name)
            setting = f"{section.name}.{field.name}={format_value(value)}"
            lines.append(f"  {setting}" if value == default else f"* {setting:<40} default {format_value(default)}")
    return "\n".join(lines)


def size_of(entry: "RecipeEntry") -> str:
    """Return the number of parameters that the docstring of a recipe says, or that its configuration has."""
    from transduce.config.recipes import RECIPES

    return entry.size or format_size(RECIPES[entry.name]())


def format_size(config: "Config") -> str:
    """Return the number of parameters in millions, with the vocabulary size that the recipe sets."""
    from transduce.evaluation.model_size import parameter_count

    count = parameter_count(config.model, config.model.vocab_size or config.data.vocab_size)
    return f"{count / 1e6:.1f} M parameters"
