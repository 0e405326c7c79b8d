"""`transduce fill`: the words of masked places, by a BERT, or whole lines by a LLaDA."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from transduce.cli.encoding import LineWork, answer_lines
from transduce.cli.options import Flag, InputOption, Integer, OutputOption, with_device
from transduce.console import printable
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.family.inference.diffusion import Filling
    from transduce.family.inference.text_encoder import TextEncoder, WordPrediction
    from transduce.family.inference.text_filler import TextFiller

MaskedModelArgument = Annotated[
    Path, Parameter(help="Folder of a BERT or LLaDA: in Hugging Face's form with tokenizer.json, or RUN/model.")
]


@dataclass(frozen=True, kw_only=True)
class Diffusion:
    """Arguments of `family.inference.diffusion.Filling`; None: its default."""

    steps: Annotated[
        int | None, Integer, Parameter(help="LLaDA: steps for each line.", show_default="one for each [MASK]")
    ] = None
    block: Annotated[
        int | None,
        Integer,
        Parameter(help="LLaDA: fill the masks in blocks of this number, from left to right.", show_default="all"),
    ] = None
    temperature: Annotated[
        float | None, Parameter(help="LLaDA: draw tokens at this temperature.", show_default="0, no draw")
    ] = None
    remasking: Annotated[
        Literal["low_confidence", "random"] | None,
        Parameter(help="LLaDA: which predictions of a step become masks again.", show_default="low_confidence"),
    ] = None
    seed: Annotated[
        int | None, Integer, Parameter(help="LLaDA: seed of the draws. Equal seeds give equal lines.", show_default="1")
    ] = None


@with_device
def fill(
    folder: MaskedModelArgument,
    *,
    input: InputOption = None,
    output: OutputOption = None,
    n_best: Annotated[
        int | None, Integer, Parameter(help="BERT: words for each masked place.", show_default="5")
    ] = None,
    diffusion: Annotated[Diffusion, Parameter(name="*")] = Diffusion(),  # noqa: B008
    json: Annotated[
        Flag, Parameter(help="Print one JSON value per line: BERT: an array for each masked place; LLaDA: a string.")
    ] = False,
) -> None:
    """Fill in each [MASK] of each line: print the most likely words for it (BERT), or the whole line (LLaDA).

    BERT: A line of output has a field for each [MASK], with tabs between fields. A field is a word, its probability,
    the next word, its probability, and so on, separated by spaces.

    LLaDA: A line of output is the line with a token for each [MASK]. Each token fits the others, because masks are
    filled in steps. A line without [MASK] stays as it is.

    Blank lines stay blank.

    Examples
    --------
    echo "Paris is the [MASK] of France." | transduce fill bert-base-uncased
    echo "A man [MASK] [MASK] [MASK] guitar." | transduce fill run/model
    transduce fill run/model --temperature 0.8 --steps 4 < lines
    """
    settings = {name: value for name, value in asdict(diffusion).items() if value is not None}

    def load() -> LineWork[Any]:
        from transduce.family.inference.diffusion import Filling
        from transduce.family.inference.model_folder import open_member
        from transduce.family.inference.text_encoder import TextEncoder
        from transduce.family.inference.text_filler import TextFiller
        from transduce.family.llada import Llada

        member = open_member(folder)
        if isinstance(member.model, Llada):
            if n_best is not None:
                raise UserError(f"--n-best={n_best}: must not be set for a LLaDA, which fills all masks; leave it out")
            return _lines_of(TextFiller(member, folder), Filling(**settings))
        if settings:
            raise UserError(f"--{next(iter(settings))}: must not be set for a model that is not a LLaDA; leave it out")
        return _words_of(TextEncoder(member, folder), 5 if n_best is None else n_best)

    answer_lines(load, input, output, json=json)


def _words_of(encoder: "TextEncoder", n_best: int) -> "LineWork[list[list[WordPrediction]]]":
    """Return the work of printing the most likely words for each mask."""

    def text(fields: "list[list[WordPrediction]]") -> str:
        return "\t".join(" ".join(f"{printable(word)} {p:.4f}" for word, p in words) for words in fields)

    def record(fields: "list[list[WordPrediction]]") -> object:
        return [[{"word": word, "probability": p} for word, p in words] for words in fields]

    return LineWork(lambda lines, _: encoder.fill(lines, n_best), text, record)


def _lines_of(filler: "TextFiller", filling: "Filling") -> LineWork[str]:
    """Return the work of printing lines whose masks are filled."""
    return LineWork(
        lambda lines, number: filler.fill(lines, filling, number), lambda line: re.sub(r"[\r\n]", " ", line)
    )
