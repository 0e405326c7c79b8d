"""`transduce heads`: print the worth of each attention head of a model, and where it attends."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from transduce.cli.options import Flag, Integer, with_device
from transduce.cli.output import print_json
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.evaluation.heads import HeadReport
    from transduce.translate import Translator

MeasuredPairsOption = Annotated[
    int, Integer, Parameter(help="Number of pairs to measure on, spread evenly over the text. The time grows with it.")
]


@with_device
def heads(model: Path, *, src: Path, tgt: Path, pairs: MeasuredPairsOption = 200, json: Flag = False) -> None:
    """Print the worth of each attention head of a model, and where it attends.

    The worth of a head is the increase of the loss without it. The other columns are the gradient of Michel et al.
    (2019), without their division by the norm of the layer, the entropy of the weights, and the share of the attention
    on the neighbours and on the ends of the sentence. Heads have names such as "cross 6.8": head 8 of layer 6 of the
    attention to the source.

    Parameters
    ----------
    model
        A model folder, such as run/model.
    src
        Source text.
    tgt
        Its translations, line by line.
    json
        Print one JSON object, with the heads in the order of the model.

    Examples
    --------
    transduce heads run/model --src valid.en --tgt valid.de
    transduce heads run/model --src valid.en --tgt valid.de --json > heads.json
    """
    from transduce.evaluation.heads import format_heads
    from transduce.translate import load

    report = head_report(load(model), src, tgt, pairs)
    print_json(report) if json else print(format_heads(report))


def head_report(translator: "Translator", src: Path, tgt: Path, pairs: int) -> "HeadReport":
    """Return the figures of all heads of a model, measured on `pairs` pairs of the text, with progress on stderr."""
    from transduce.evaluation.heads import heads_of, measure_heads, read_batches, transformer_of

    check_pairs(pairs)
    network = transformer_of(translator.models[0])
    batches = read_batches(src, tgt, translator.tokenizer, network, pairs)
    with _progress(len(heads_of(network))) as advance:
        return measure_heads(network, batches, advance)


def check_pairs(pairs: int) -> None:
    """Raise UserError unless there is a pair to measure on."""
    if pairs < 1:
        raise UserError(f"--pairs={pairs}: expected at least 1; give a number such as 200")


@contextmanager
def _progress(n_heads: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if that is a terminal; yield the function that moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("heads", total=n_heads)
        yield lambda n_done: bar.update(task, completed=n_done)
