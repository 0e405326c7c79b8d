"""`transduce recipes`: list the recipes, or show the settings of one."""

import dataclasses
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.cli.options import Flag, with_device
from transduce.cli.train import CorporaOption, HoursOption, MinutesOption, StartFromOption, minutes_of
from transduce.config.validation import refuse
from transduce.data.corpora import Corpus, problems
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.config.recipes import RecipeEntry
    from transduce.config.schema import Config

WIDTH = 76


@with_device
def recipes(
    name: str | None = None,
    *,
    studies: Flag = False,
    train: CorporaOption | None = None,
    minutes: MinutesOption = None,
    hours: HoursOption = None,
    start_from: StartFromOption = None,
) -> None:
    """List the recipes, or show the settings of one recipe, or with --train what `auto` would choose for a text.

    The list has the name of each recipe, its number of parameters, its purpose and the time of a training.

    Parameters
    ----------
    name
        The recipe to show: a name of the list, or FILE.py:FUNCTION. Each setting is printed as `transduce train --set`
        takes it. A star marks a setting that differs from its default.
    studies
        List the recipes that reproduce our results, and the rows of the paper's tables.

    Examples
    --------
    transduce recipes
    transduce recipes vaswani2017-base
    transduce recipes auto --train train.en train.de --minutes 60
    transduce recipes auto --train new.en new.de --from run/model
    """
    if train or minutes is not None or hours is not None or start_from is not None:
        print(format_choice(name, train or [], minutes_of(minutes, hours), start_from))
    else:
        print(format_list(studies=studies) if name is None else format_recipe(name))


def format_choice(name: str | None, train: list[Corpus], minutes: float | None, start_from: Path | None) -> str:
    """Return the settings that `auto` chooses for a text and a time on this machine, and why.

    start_from: the model that the training starts from; None: it starts from random weights.
    """
    from transduce.storage.run_choices import choose_for, config_of_parent

    if name != "auto" or not train:
        raise UserError("--train: expected a text, and the recipe auto; give `transduce recipes auto --train SRC TGT`")
    refuse(problems(train))
    choice = choose_for(train, minutes, parent=config_of_parent(start_from))
    return "\n".join([*choice.lines, format_settings(choice.config)])


def format_list(*, studies: bool = False) -> str:
    """Return the name, the size, the whole description and the time of each recipe, in groups, the user's own first.

    studies: the recipes that reproduce a result instead of the others.
    """
    from transduce.config.recipes import OWN, PAPER, STUDIES, catalogue

    if studies:
        groups = {"For the results in the documentation, and the tables of the paper": STUDIES}
    else:
        groups = {"For your own text": OWN, "The models of the paper": PAPER}
    lines = [
        line for title, members in groups.items() for line in (f"{title}:", "", *map(format_entry, catalogue(members)))
    ]
    hints = ["`transduce recipes NAME` shows the settings of a recipe."]
    if not studies:
        hints.append("`transduce recipes --studies` lists the recipes of our results.")
    return "\n".join([*lines, *hints])


def format_entry(entry: "RecipeEntry") -> str:
    """Return a recipe as lines of at most `WIDTH` characters."""
    text = f"{entry.summary} Time: {entry.time}."
    size = "" if entry.name == "auto" else f"  {size_of(entry)}"
    body = textwrap.fill(text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    return f"{entry.name}{size}\n{body}\n"


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
