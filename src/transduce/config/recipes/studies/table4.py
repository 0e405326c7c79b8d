"""The models of Table 4 at small scale: parsers of several depths and widths, for about 20,000 trees and one core.

The paper's table has one model, of 4 layers with d_model 1024. `transduce study table4` trains these
and base. It trains base also on parts of the treebank, and with the top-down form of the trees (docs/results.md). The
start is `craft-parse`:

- A smaller model, half of the batch and fewer steps make the rows affordable: 3,600 steps are about 7 epochs
  of CRAFT, where `craft-parse` has 28.
- The schedule has the form of the paper's: a warm-up of a tenth of the steps, a peak of 2.3e-3 for base, and a last
  step at 32 % of it.
- Dropout is 0.1, because few epochs need less of it. There is no R-Drop, which makes a step twice as long.
- d_k is 32 in each row, and d_ff twice d_model, as in the 2017 code.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from transduce.config.recipes import craft
from transduce.config.schema import Config

BASE = {"d_model": 128, "n_layers": 4}
ROWS: dict[str, dict[str, object]] = {
    "base": {},
    "n2": {"n_layers": 2},
    "n6": {"n_layers": 6},
    "d64": {"d_model": 64},
    "d192": {"d_model": 192},
}
D_K = 32
STEPS = 3_600


def small(row: str) -> Config:
    """Return the configuration of `row`."""
    start = craft.parse()
    columns = {**BASE, **ROWS[row]}
    d_model = columns["d_model"]
    return replace(
        start,
        model=replace(start.model, **columns, n_heads=d_model // D_K, d_ff=2 * d_model, dropout=0.1),
        data=replace(start.data, batch_tokens=2_000),
        train=replace(
            start.train,
            max_steps=STEPS,
            warmup_steps=STEPS // 10,
            lr_factor=0.5,
            decay_steps=0,
            rdrop=0.0,
            evaluate_every_steps=STEPS // 6,
            checkpoint_every_steps=STEPS // 30,
        ),
    )


def _recipe(row: str, time: str) -> Callable[[], Config]:
    """Return the recipe of a row with a docstring, as other recipes have."""
    changes = ", ".join(f"{name} {value}" for name, value in ROWS[row].items()) or "the base model"
    recipe = partial(small, row)
    recipe.__doc__ = f"{changes}: row {row} of Table 4 at small scale.\n\nTime: {time}."
    return recipe


_MINUTES = {"base": 12, "n2": 7, "n6": 17, "d64": 7, "d192": 23}  # of processor time on CRAFT, estimated
SMALL_ROWS = {row: _recipe(row, f"about {minutes} minutes, one core") for row, minutes in _MINUTES.items()}
