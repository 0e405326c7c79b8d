"""`transduce fill`: the words of masked places, by a BERT."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from transduce.cli.encoding import Folder, Job, run_encoder
from transduce.cli.options import Flag, Input, Integer, Output
from transduce.console import printable

if TYPE_CHECKING:
    from transduce.family.text_encoder import Word


def fill(
    folder: Folder,
    *,
    input: Input = None,
    output: Output = None,
    n_best: Annotated[int, Integer, Parameter(help="Words for each masked place.")] = 5,
    json: Annotated[
        Flag, Parameter(help="Print one JSON array per line, with an array for each masked place.")
    ] = False,
) -> None:
    """Print the most likely words for each [MASK] of each line, with their probabilities.

    A line of output has a field for each [MASK], with tabs between fields. A field is a word, its probability, the next
    word, its probability, and so on, with spaces between. Blank lines stay blank.

    Examples
    --------
    echo "Paris is the [MASK] of France." | transduce fill bert-base-uncased
    """

    def text(places: "list[list[Word]]") -> str:
        return "\t".join(" ".join(f"{printable(word)} {p:.4f}" for word, p in words) for words in places)

    def record(places: "list[list[Word]]") -> list[list[dict[str, str | float]]]:
        return [[{"word": word, "probability": p} for word, p in words] for words in places]

    run_encoder(folder, input, output, Job(lambda encoder, lines: encoder.fill(lines, n_best), text, record), json=json)
