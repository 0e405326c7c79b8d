"""`transduce classify`: a class for each line, by a BERT with a classifier."""

from typing import Annotated

from cyclopts import Parameter

from transduce.cli.encoding import BertArgument, LineWork, answer_lines
from transduce.cli.options import Flag, InputOption, OutputOption, with_device
from transduce.console import printable


@with_device
def classify(
    folder: BertArgument,
    *,
    input: InputOption = None,
    output: OutputOption = None,
    json: Annotated[
        Flag, Parameter(help="Print one JSON object per line, with the probability of each label.")
    ] = False,
) -> None:
    """Print the most likely class of each line: its label, a tab, and its probability. Blank lines stay blank.

    Examples
    --------
    transduce classify sentiment-model < sentences | cut -f 1 > labels
    """

    def text(classes: dict[str, float]) -> str:
        label, probability = next(iter(classes.items()))
        return f"{printable(label)}\t{probability:.4f}"

    def load() -> LineWork[dict[str, float]]:
        from transduce.family.inference.text_encoder import TextEncoder

        encoder = TextEncoder.load(folder)
        return LineWork(lambda lines, _: encoder.classify(lines), text)

    answer_lines(load, input, output, json=json)
