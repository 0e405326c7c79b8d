"""Recipes: functions that return a `Config`. A docstring names the source of the settings and the time of a training.

The docstring of a member of the family also says its size, so that `transduce recipes` need not build it with torch.

`--recipe NAME` takes a name of `RECIPES`; `--recipe FILE.py:FUNCTION` takes a function of your own.
"""

import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.config.overrides import overridden
from transduce.config.recipes import auto, craft, family, speech, t2t2018, vaswani2017
from transduce.config.recipes.studies import demo, mixture, multi30k, table2, table3, table4
from transduce.config.schema import Config
from transduce.config.validation import problems, value_problems
from transduce.errors import UserError, nearest

Recipe = Callable[[], Config]

OWN: dict[str, Recipe] = {
    "auto": auto.start,
    "craft-parse": craft.parse,
    "gpt2-small": family.gpt2_small,
    "llama-small": family.llama_small,
    "palm-small": family.palm_small,
    "synthesizer-small": family.synthesizer_small,
    "t6-small": family.t6_small,
    "performer-small": family.performer_small,
    "transformer-xl-small": family.transformer_xl_small,
    "mamba-small": family.mamba_small,
    "rwkv-small": family.rwkv_small,
    "hyena-small": family.hyena_small,
    "alibi-small": family.alibi_small,
    "experts-small": family.experts_small,
    "llada-small": family.llada_small,
    "bert-small": family.bert_small,
    "longformer-small": family.longformer_small,
    "linformer-small": family.linformer_small,
    "t5-small": family.t5_small,
    "bert-classifier": family.bert_classifier,
    "gpt2-preferences": family.gpt2_preferences,
    "gpt2-reward": family.gpt2_reward,
    "speech-small": speech.speech_small,
    "ctc-small": speech.ctc_small,
}
PAPER: dict[str, Recipe] = {
    "vaswani2017-base": vaswani2017.base,
    "vaswani2017-big": vaswani2017.big,
    "vaswani2017-base-enfr": vaswani2017.base_enfr,
    "vaswani2017-big-enfr": vaswani2017.big_enfr,
    "vaswani2017-parse": vaswani2017.parse,
    "vaswani2017-parse-semi": vaswani2017.parse_semi_supervised,
    "t2t2018-base": t2t2018.base,
}
STUDIES: dict[str, Recipe] = {
    "demo": demo.demo,
    "multi30k-tiny": multi30k.tiny,
    "multi30k-diverse": multi30k.diverse,
    "multi30k-raw": multi30k.raw,
    "multi30k-joint": multi30k.joint,
    "mixture": mixture.mixture,
    **{f"vaswani2017-table3-{row}": recipe for row, recipe in table3.PAPER_ROWS.items()},
    **{f"small-table2-{row}": recipe for row, recipe in table2.SMALL.items()},
    **{f"small-table3-{row}": recipe for row, recipe in table3.SMALL_ROWS.items()},
    **{f"small-table4-{row}": recipe for row, recipe in table4.SMALL_ROWS.items()},
}
RECIPES = {**OWN, **PAPER, **STUDIES}


@dataclass(frozen=True)
class RecipeEntry:
    """A recipe in a list of recipes: its name, one sentence, and the time of a training with the hardware.

    size: the number of parameters, as "5.3 M parameters"; None: the docstring does not say it.
    """

    name: str
    summary: str
    time: str
    size: str | None


def catalogue(recipes: Mapping[str, Recipe] = RECIPES) -> list[RecipeEntry]:
    """Return an entry for each of `recipes`, in their order. The texts come from the docstrings of the recipes."""
    return [_entry(name, inspect.getdoc(recipe) or "") for name, recipe in recipes.items()]


def _entry(name: str, text: str) -> RecipeEntry:
    """Return the entry of the recipe `name` with docstring `text`: "Time:" begins a paragraph, and "Size:" may."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    facts = dict(re.findall(r"^(Size|Time): (.*?)\.?$", "\n".join(paragraphs), re.MULTILINE))
    return RecipeEntry(name, paragraphs[0], facts["Time"], facts.get("Size"))


def configure(recipe: str | Config, settings: Sequence[str]) -> tuple[Config, list[str], bool]:
    """Return the configuration of a recipe with `settings` applied, a line for each of its problems, and True.

    False if there is no such recipe: the configuration then says nothing about the task.
    """
    try:
        config = recipe if isinstance(recipe, Config) else find_recipe(recipe)()
    except UserError as mistake:  # without a recipe, single settings can still be checked
        config, lines = overridden(Config(), settings)
        return config, [*mistake.args, *lines, *value_problems(config)], False
    config, lines = overridden(config, settings)
    return config, [*lines, *problems(config)], True


def find_recipe(name: str) -> Recipe:
    """Return the recipe called `name`, or the function that FILE.py:FUNCTION names, whose file is executed.

    Raises UserError if there is none.
    """
    path, colon, function = name.rpartition(":")
    if colon:
        return _from_file(Path(path), function)
    if name in RECIPES:
        return RECIPES[name]
    hint = nearest(name, RECIPES) or "; `transduce recipes` lists the names"
    raise UserError(f"recipe={name!r}: expected the name of a recipe, or FILE.py:FUNCTION{hint}")


def _from_file(path: Path, function: str) -> Recipe:
    recipe = f"recipe='{path}:{function}'"
    if path.is_dir():
        raise UserError(f"{recipe}: expected a Python file, but {path} is a folder; give the path of a file in it")
    if not path.is_file():
        raise UserError(f"{recipe}: expected a Python file, but {path} does not exist; check the path")
    spec = importlib.util.spec_from_file_location("user_recipe", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{recipe}: expected a Python file; give a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if function not in vars(module):
            hint = nearest(function, [name for name, value in vars(module).items() if callable(value)])
            raise UserError(f"{recipe}: expected a function that {path} defines{hint}")
        config = vars(module)[function]()
    except UserError:
        raise
    except (Exception, SystemExit) as problem:
        cause = f"{type(problem).__name__}: {problem}"
        raise UserError(f"{recipe}: expected a function that returns a Config, but it failed: {cause}") from problem
    if not isinstance(config, Config):
        raise UserError(f"{recipe}: expected a function that returns a Config, not a {type(config).__name__}")
    return lambda: config
