"""`transduce recipes`: the list, and the settings of one recipe."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.command_line import assert_mistake, heavy_imports
from support.toy_task import CommandResult, toy_lines, write_pairs

from transduce.cli.recipes import format_size
from transduce.config.overrides import overridden
from transduce.config.recipes import RECIPES, RecipeEntry, auto, catalogue
from transduce.config.schema import Config, ModelConfig, keys, value_of
from transduce.model import devices
from transduce.storage import run_choices


def test_the_two_lists_have_every_recipe_once_with_its_whole_description(cli: Callable[..., CommandResult]) -> None:
    results = [cli("recipes"), cli("recipes", "--studies")]
    assert [(result.code, result.err) for result in results] == [(0, "")] * 2
    own, studies = (result.out.decode() for result in results)
    assert max(map(len, [*own.splitlines(), *studies.splitlines()])) <= 79
    rows = re.findall(r"^([a-z0-9.-]+)(?:  (\d+\.\d) M parameters)?$", own + studies, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(RECIPES) and rows[0] == ("auto", "")
    sizes = {name: float(size or 0) for name, size in rows}
    assert (sizes["vaswani2017-base"], sizes["vaswani2017-big"], sizes["small-table2-recurrent"]) == (63.1, 214.2, 2.1)
    words = " ".join((own + studies).split())
    assert all(f"{entry.summary} Time: {entry.time}." in words for entry in catalogue())
    assert own.index("For your own text") < own.index("\ngpt2-small ") < own.index("The models of the paper")
    assert "multi30k-raw" in studies and "small-table3-base" in studies


def test_auto_shows_its_choice_without_training(
    tmp_path: Path, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_choices, "run_trial", lambda *arguments: auto.Trial(0.2, 5.0, 2_000_000))
    src, tgt = write_pairs(tmp_path, "train", toy_lines(1, 300))
    text = cli("recipes", "auto", "--train", str(src), str(tgt), "--minutes", "9").out.decode()
    assert "300 pairs of about" in text and "* model.d_model=128 " in text and "steps" in text
    assert_mistake(cli("recipes", "mixture", "--minutes", "9"), "--train: expected a text, and the recipe auto")
    assert_mistake(cli("recipes", "auto", "--train", "x", "y"), "x: expected a text file")
    both = cli("recipes", "auto", "--train", str(src), str(tgt), "--minutes", "9", "--hours", "1")
    assert_mistake(both, "--hours=1: must not be set with --minutes=9")
    assert_mistake(
        cli("recipes", "auto", "--train", str(src), str(tgt), "--hours", "0"), "--hours=0: expected a number"
    )


def test_auto_shows_its_choice_for_a_training_from_a_model_on_a_device(
    tmp_path: Path, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[tuple[str, int]] = []

    def trial(config: Config, *_: object) -> auto.Trial:
        trials.append((devices.kind(), config.model.d_model))
        return auto.Trial(0.2, 5.0, 2_000_000)

    monkeypatch.setattr(run_choices, "run_trial", trial)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    texts = write_pairs(tmp_path, "train", toy_lines(1, 300))
    command = ["recipes", "auto", "--train", *texts, "--device", "cpu", "--from"]
    assert_mistake(cli(*command, "none"), "none: expected a model folder such as RUN/model")
    assert_mistake(cli("recipes", "auto", "--from", "none"), "--train: expected a text, and the recipe auto")
    monkeypatch.setattr(run_choices, "load_config", lambda folder: RECIPES["mixture"]())
    text = cli(*command, "old/model").out.decode()
    assert trials == [("cpu", 256)]
    assert "the model keeps 4 + 4 layers, d_model 256" in text and "* train.use=best " in text


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
    assert_mistake(cli("recipes", "mixtur"), "transduce: recipe='mixtur': expected", "did you mean 'mixture'?")
    assert_mistake(cli("recipes", "zzzz"), "`transduce recipes` lists the names")


def test_recipes_load_no_slow_package() -> None:
    calls = "app(['recipes'])\napp(['recipes', 'mixture'])\napp(['recipes', 'gpt2-small'])"
    assert heavy_imports(f"from transduce.cli.main import app\n{calls}") == []


@pytest.mark.parametrize("entry", [entry for entry in catalogue() if entry.size], ids=lambda entry: entry.name)
def test_the_size_in_a_docstring_is_the_size_of_the_model(entry: RecipeEntry) -> None:
    assert entry.size == format_size(RECIPES[entry.name]())
