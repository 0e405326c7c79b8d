"""Recipes: functions that return a `Config`. Each says whose it is, what it costs, and what to expect of it.

`--recipe NAME` takes a name of `RECIPES`; `--recipe FILE.py:FUNCTION` takes a function of your own.
"""

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from transduce.config.overrides import overridden
from transduce.config.schema import Config
from transduce.config.validation import problems, value_problems
from transduce.errors import UserError, nearest
from transduce.recipes import demo, multi30k, small, t2t2018, table2, table3, vaswani2017

Recipe = Callable[[], Config]

RECIPES: dict[str, Recipe] = {
    "demo": demo.demo,
    "small": small.small,
    "multi30k-tiny": multi30k.tiny,
    "multi30k-raw": multi30k.raw,
    "vaswani2017-base": vaswani2017.base,
    "vaswani2017-big": vaswani2017.big,
    "vaswani2017-big-enfr": vaswani2017.big_enfr,
    "vaswani2017-parse": vaswani2017.parse,
    "t2t2018-base": t2t2018.base,
    **{f"vaswani2017-table3-{row}": partial(table3.paper, row) for row in table3.ROWS},
    **{f"small-table2-{row}": recipe for row, recipe in table2.SMALL.items()},
    **{f"small-table3-{row}": partial(table3.small, row) for row in table3.ROWS},
}


def configure(recipe: str | Config, settings: Sequence[str]) -> tuple[Config, list[str]]:
    """The configuration of a recipe with `settings` applied, and all that is wrong with it, one line each."""
    try:
        config = recipe if isinstance(recipe, Config) else find_recipe(recipe)()
    except UserError as mistake:  # the settings can be judged one by one all the same
        config, found = overridden(Config(), settings)
        return config, [*mistake.args, *found, *value_problems(config)]
    config, found = overridden(config, settings)
    return config, [*found, *problems(config)]


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`, or the function that FILE.py:FUNCTION names. The file is run, as Python files are.

    Raises UserError if there is none.
    """
    path, colon, function = name.rpartition(":")
    if colon:
        return _from_file(Path(path), function)
    if name in RECIPES:
        return RECIPES[name]
    hint = nearest(name, RECIPES) or "."
    raise UserError(f"no recipe is called {name!r}{hint} There are {', '.join(RECIPES)}; or give FILE.py:FUNCTION")


def _from_file(path: Path, function: str) -> Recipe:
    if not path.is_file():
        raise UserError(f"--recipe {path}:{function}: {path} does not exist; give a Python file and a function in it")
    spec = importlib.util.spec_from_file_location("user_recipe", path)
    if spec is None or spec.loader is None:
        raise UserError(f"--recipe {path}:{function}: {path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if function not in vars(module):
            hint = nearest(function, [name for name, value in vars(module).items() if callable(value)])
            raise UserError(f"--recipe {path}:{function}: {path} defines no {function!r}{hint}")
        config = vars(module)[function]()
    except UserError:
        raise
    except (Exception, SystemExit) as problem:
        raise UserError(f"--recipe {path}:{function} failed: {type(problem).__name__}: {problem}") from problem
    if not isinstance(config, Config):
        raise UserError(f"--recipe {path}:{function} returned {type(config).__name__}, expected transduce.Config")
    return lambda: config
