"""`transduce embed`: a vector for each line, by a BERT."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from transduce.cli.encoding import BertArgument, LineWork, answer_lines
from transduce.cli.options import Flag, InputOption, OutputOption, with_device

if TYPE_CHECKING:
    from torch import Tensor


@with_device
def embed(
    folder: BertArgument,
    *,
    input: InputOption = None,
    output: OutputOption = None,
    json: Annotated[Flag, Parameter(help="Print one JSON array per line.")] = False,
) -> None:
    """Print a vector for each line: the mean of the states of its tokens, divided by its length.

    A folder of sentence-transformers has its own pooling and maximum length. The product of two vectors is the cosine
    of their angle, a measure of likeness. Spaces separate the numbers. Blank lines stay blank.

    Examples
    --------
    transduce embed all-MiniLM-L6-v2 < sentences > vectors
    """

    def text(vector: "Tensor") -> str:
        return " ".join(f"{value:.6f}" for value in vector.tolist())

    def load() -> "LineWork[Tensor]":
        from transduce.family.inference.text_encoder import TextEncoder

        encoder = TextEncoder.load(folder)
        return LineWork(lambda lines, _: encoder.embed(lines), text, record=lambda vector: vector.tolist())

    answer_lines(load, input, output, json=json)
