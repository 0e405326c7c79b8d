"""Every row of Table 3: variations on the base model, evaluated on the development text without averaging checkpoints.

The paper fixes: what the row changes, everything else as base, and no averaging. The 2017 code does: the same settings,
as in vaswani2017. We chose: d_v = 64 in rows (B), 1,024 learned positions in row (E), the last checkpoint.

The name of a row is its difference from base in the paper, at both scales:

    vaswani2017-table3-ROW   at the paper's scale, as `vaswani2017-base` and `vaswani2017-big` are trained
    small-table3-ROW         a quarter of the width, half of the heads and layers, 4,200 steps: 10 to 42 minutes

The small rows keep the paper's ratios: `n2` has a third of the layers of base, `h32` four times its heads, `big` takes
three times the steps. `h1` is an exception: it has one head at both scales. Base has 4 heads with d_k 32, because a
d_k of 16 is itself a bad row of the paper, (B). The schedule has the paper's form: a short warm-up, a peak of 1.8e-3,
and a last step at 31 % of it. On 29,000 pairs, 4,200 steps are 16 epochs (the paper's base: about 19).

The rows are for comparison with each other. `transduce study table3` trains and evaluates them (docs/results.md).

The embeddings have a row for each piece of the tokenizer: 37,000, and base 63.1 M parameters. The paper's 65 M need the
40,960 rows of the 2017 code.

"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from transduce.config.recipes import vaswani2017
from transduce.config.schema import Config, DataConfig, ModelConfig, TrainConfig

# The columns of the table that a row changes. The paper's development figures (perplexity per token, BLEU, parameters)
# are in studies/table3_report.py.
ROWS: dict[str, dict[str, object]] = {
    "base": {},
    "h1": {"n_heads": 1},  # (A)
    "h4": {"n_heads": 4},
    "h16": {"n_heads": 16},
    "h32": {"n_heads": 32},
    "dk16": {"d_k": 16, "d_v": 64},  # (B)
    "dk32": {"d_k": 32, "d_v": 64},
    "n2": {"n_layers": 2},  # (C)
    "n4": {"n_layers": 4},
    "n8": {"n_layers": 8},
    "d256": {"d_model": 256},  # d_k = d_v = 32
    "d1024": {"d_model": 1024},  # d_k = d_v = 128
    "ff1024": {"d_ff": 1024},
    "ff4096": {"d_ff": 4096},
    "dropout0": {"dropout": 0.0},  # (D)
    "dropout0.2": {"dropout": 0.2},
    "smoothing0": {"label_smoothing": 0.0},
    "smoothing0.2": {"label_smoothing": 0.2},
    "learned": {"positions": "learned", "max_positions": 1024},  # (E)
    "big": {"d_model": 1024, "d_ff": 4096, "n_heads": 16, "dropout": 0.3, "max_steps": 300_000},
}
BASE = {"d_model": 512, "d_ff": 2048, "n_heads": 8, "n_layers": 6, "max_steps": 100_000}

# Divisors of the columns at small scale; the other columns are as in the paper.
SMALL = {"d_model": 4, "d_ff": 4, "n_heads": 2, "d_k": 2, "d_v": 2, "max_positions": 4, "n_layers": 2}
SMALL_STEPS = 4_200  # of base; other rows have the paper's ratio to base


def paper(row: str) -> Config:
    """Return `row` as the paper trains it."""
    return _change(vaswani2017.big() if row == "big" else vaswani2017.base(), ROWS[row])


def small(row: str) -> Config:
    """Return `row` for about 30,000 short pairs and one core: its sizes are divided by `SMALL`."""
    start = Config(
        data=DataConfig(vocab_size=4_000, batch_tokens=2_048, max_tokens=128, normalization="none"),
        train=TrainConfig(
            warmup_steps=400,
            lr_factor=0.4,
            precision="bf16",
            evaluate_every_steps=1_400,
            checkpoint_every_steps=100,
            keep_checkpoints=5,
        ),
    )
    columns = {**BASE, **ROWS[row]}
    sizes = {name: max(1, value // SMALL[name]) if name in SMALL else value for name, value in columns.items()}
    return _change(start, {**sizes, "max_steps": SMALL_STEPS * columns["max_steps"] // BASE["max_steps"]})


def schedule(steps: int) -> list[str]:
    """Return the settings of a shorter training of a small row: a tenth of it is warm-up, the peak is as in `small`.

    The peak of eq. 3 grows with lr_factor, and falls with the square root of the warm-up.
    """
    train = small("base").train
    warmup = steps // 10
    lr_factor = round(train.lr_factor * math.sqrt(warmup / train.warmup_steps), 4)
    values = {"max_steps": steps, "warmup_steps": warmup, "lr_factor": lr_factor, "evaluate_every_steps": steps}
    return [f"train.{name}={value}" for name, value in values.items()]


def _change(start: Config, columns: dict[str, object]) -> Config:
    """Return `start` with `columns`, and with the last checkpoint as its model."""
    of_model = {field.name for field in dataclasses.fields(ModelConfig)}
    model = {name: value for name, value in columns.items() if name in of_model}
    train = {name: value for name, value in columns.items() if name not in of_model}
    return replace(start, model=replace(start.model, **model), train=replace(start.train, **train, use="last"))


def _recipe(make: Callable[[str], Config], row: str, summary: str, time: str) -> Callable[[], Config]:
    """Return the recipe `make(row)` with a docstring, as other recipes have."""
    recipe = partial(make, row)
    recipe.__doc__ = f"{summary}\n\nTime: {time}."
    return recipe


def _changes(row: str) -> str:
    return ", ".join(f"{name.removeprefix('label_')} {value}" for name, value in ROWS[row].items()) or "the base model"


_PAPER_TIMES = {"base": "12 hours on 8 P100, in the paper", "big": "3.5 days on 8 P100, in the paper"}
_PAPER_TIME = "not in the paper, where base takes 12 hours on 8 P100"

PAPER_ROWS = {
    row: _recipe(
        paper,
        row,
        f"{_changes(row)}: row {row} of Table 3 at the paper's scale.",
        _PAPER_TIMES.get(row, _PAPER_TIME),
    )
    for row in ROWS
}
SMALL_ROWS = {
    row: _recipe(
        small,
        row,
        f"{_changes(row)}: row {row} of Table 3 at small scale, before the division by scale.",
        "3 hours on one core" if row == "big" else "10 to 42 minutes, one core",
    )
    for row in ROWS
}
