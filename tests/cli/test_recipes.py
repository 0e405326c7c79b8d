"""`transduce recipes`: the list, and the settings of one recipe."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import assert_mistake, heavy_imports
from support.toy_task import CommandResult

from transduce.cli.recipes import format_size, shorten
from transduce.config.overrides import overridden
from transduce.config.recipes import RECIPES, RecipeEntry, catalogue
from transduce.config.schema import Config, ModelConfig, keys, value_of


def test_the_list_has_one_line_for_every_recipe(cli: Callable[..., CommandResult]) -> None:
    result = cli("recipes")
    assert (result.code, result.err) == (0, "")
    *lines, hint = filter(None, result.out.decode().splitlines())
    assert hint == "`transduce recipes NAME` shows the settings of a recipe."
    assert max(map(len, lines)) <= 79
    rows = [re.fullmatch(r"(\S+) +(\d+\.\d) M  (\S.*?) {2,}(\w.{8,})", line) for line in lines]
    assert [row and row[1] for row in rows] == [*RECIPES]
    sizes = {row[1]: float(row[2]) for row in rows if row}
    assert (sizes["vaswani2017-base"], sizes["vaswani2017-big"], sizes["small-table2-recurrent"]) == (63.1, 214.2, 2.1)


@pytest.mark.parametrize("name", RECIPES)
def test_the_marked_settings_make_the_recipe_of_the_defaults(name: str, cli: Callable[..., CommandResult]) -> None:
    result = cli("recipes", name)
    lines = result.out.decode().splitlines()
    assert (result.code, result.err, lines[0]) == (0, "", name) and max(map(len, lines)) <= 76
    settings = re.findall(r"^([* ]) (\w+\.\w+=\S*)", result.out.decode(), re.MULTILINE)
    recipe, defaults = RECIPES[name](), Config()
    if not isinstance(recipe.model, ModelConfig):  # a kind with its own keys
        defaults = replace(defaults, model=type(recipe.model)())
    config, _ = overridden(defaults, [setting for mark, setting in settings if mark == "*"])
    assert config == recipe
    marks = {setting.split("=")[0]: mark for mark, setting in settings}
    assert marks == {key: " *"[value_of(recipe, key) != value_of(defaults, key)] for key in keys(recipe)}


def test_a_recipe_of_a_file_is_shown(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    (tmp_path / "own.py").write_text("from transduce import Config\ndef mine(): return Config()\n", encoding="utf-8")
    text = cli("recipes", f"{tmp_path / 'own.py'}:mine").out.decode()
    assert "63.1 M parameters" in text and "  train.warmup_steps=4000\n" in text and "\n*" not in text


def test_an_unknown_recipe_is_refused(cli: Callable[..., CommandResult]) -> None:
    assert_mistake(cli("recipes", "smal"), "transduce: recipe='smal': expected", "did you mean 'small'?")
    assert_mistake(cli("recipes", "zzzz"), "`transduce recipes` lists the names")


def test_recipes_load_no_slow_package() -> None:
    calls = "app(['recipes'])\napp(['recipes', 'small'])\napp(['recipes', 'gpt2-small'])"
    assert heavy_imports(f"from transduce.cli.main import app\n{calls}") == []


@pytest.mark.parametrize("entry", [entry for entry in catalogue() if entry.size], ids=lambda entry: entry.name)
def test_the_size_in_a_docstring_is_the_size_of_the_model(entry: RecipeEntry) -> None:
    assert entry.size == format_size(RECIPES[entry.name]())


def test_shorten_keeps_whole_clauses() -> None:
    text = "Six layers, as in the paper (tokenised, cased); not measured"
    assert shorten(text, 60) == text
    assert shorten(text, 50) == "Six layers, as in the paper (tokenised, cased)"
    assert shorten(text, 40) == "Six layers, as in the paper"
    assert shorten(text, 12) == "Six layers"
    assert shorten("12,000 steps of 6,000 tokens", 20) == "12,000 steps of ..."
