"""`transduce continue`: the continuation of each line, by a language model of the family."""

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

from cyclopts import Parameter

from transduce.cli.options import Flag, InputOption, Integer, OutputOption, with_device
from transduce.cli.parse import AutoPrecisionOption
from transduce.cli.translate import (
    EpsilonOption,
    NoRepeatNgramOption,
    RepetitionPenaltyOption,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
)

if TYPE_CHECKING:
    from transduce.cli.stream import LineFilter
    from transduce.family.inference import text_generator
    from transduce.family.inference.language_model import LanguageModel

LanguageModelArgument = Annotated[
    Path,
    Parameter(help="Folder of a language model: in Hugging Face's form with tokenizer.json, or RUN/model."),
]


@dataclass(frozen=True, kw_only=True)
class ContinuationDecoding:
    """Arguments of `DecodingOptions.from_arguments`, with the defaults of a continuation."""

    beam_size: Annotated[
        int | None,
        Integer,
        Parameter(help="Hypotheses that the beam search keeps, at most 500. 1 is greedy search.", show_default="1"),
    ] = None
    length_penalty: Annotated[
        Literal["gnmt", "power", "none"] | None,
        Parameter(
            help="Length penalty of the score: gnmt is ((5+n)/6)^alpha, power is n^alpha, for n new tokens.",
            show_default="none",
        ),
    ] = None
    alpha: Annotated[float | None, Parameter(help="Exponent of the length penalty.", show_default="0")] = None
    no_repeat_ngram: NoRepeatNgramOption = None
    repetition_penalty: RepetitionPenaltyOption = None
    temperature: TemperatureOption = None
    top_k: TopKOption = None
    top_p: TopPOption = None
    epsilon: EpsilonOption = None
    seed: SeedOption = None


@with_device
def continue_(
    folder: LanguageModelArgument,
    *,
    input: InputOption = None,
    output: OutputOption = None,
    max_tokens: Annotated[
        int | None,
        Integer,
        Parameter(help="Maximum number of new tokens of a line.", show_default="the folder's, or 50"),
    ] = None,
    precision: AutoPrecisionOption = "fp32",
    infill: Annotated[
        Flag,
        Parameter(help="Fill the place <FILL_ME> of a line, by StarCoder, CodeLlama or a model of data.fill_middle."),
    ] = False,
    decoding: Annotated[ContinuationDecoding, Parameter(name="*")] = ContinuationDecoding(),  # noqa: B008
    json: Annotated[
        Flag, Parameter(help="Print one JSON object per line, with the continuation without the input, and its score.")
    ] = False,
) -> None:
    """Continue lines: each line of output is a line of input and its continuation.

    The settings in generation_config.json of the folder are the defaults; --beam-size 1 is greedy search. The command
    answers each line as soon as it arrives. Blank lines stay blank. A line break in a continuation is printed as a
    space; JSON keeps it.

    Examples
    --------
    echo "The Transformer is" | transduce continue gpt2
    transduce continue gpt2 --temperature 0.8 --top-p 0.9 --seed 2 < beginnings
    transduce continue gpt2 --beam-size 4 --max-tokens 20 --json < beginnings
    transduce continue gpt2 --precision int8 < beginnings
    echo "def add(a, b): <FILL_ME>" | transduce continue starcoder --infill
    echo "A man <FILL_ME> a horse." | transduce continue run/model --infill
    """
    from transduce.cli.stream import CHUNK_LINES, OutputLine, filter_lines
    from transduce.data.text import arriving_lines
    from transduce.decoding.options import DecodingOptions

    options = DecodingOptions.from_arguments(**asdict(replace(decoding, seed=None)))

    def load() -> "LineFilter":
        model = _load(folder, precision, infill)
        seeded = model.generation_settings.options(options).with_seed(decoding.seed)  # the folder may draw
        # An error of the folder or of an option comes before the first line is read.
        model.continue_texts([], max_tokens=max_tokens, options=seeded)

        def output_lines(lines: BinaryIO, name: str) -> Iterator[list[OutputLine]]:
            number = 1
            for texts in arriving_lines(lines, name, at_most=CHUNK_LINES):
                continuations = model.continue_texts(texts, max_tokens=max_tokens, options=seeded, first_number=number)
                number += len(texts)
                yield [
                    OutputLine(_line(text, continuation, json, infill), continuation.problem)
                    for text, continuation in zip(texts, continuations, strict=True)
                ]

        return output_lines

    filter_lines(input, output, "continuing", load)


def _load(folder: Path, precision: AutoPrecisionOption, infill: bool) -> "LanguageModel":
    from transduce.family.inference.language_model import LanguageModel
    from transduce.family.inference.text_infiller import TextInfiller
    from transduce.model.cpu_backend import keep_freed_memory

    keep_freed_memory()
    model = (TextInfiller if infill else LanguageModel).load(folder, precision=precision)
    if precision == "auto":
        print(f"transduce: precision {model.precision}", file=sys.stderr)
    return model


def _line(text: str, continuation: "text_generator.GeneratedText", json: bool, infill: bool) -> bytes:
    """Return the line of output. Without `json`, it is blank for a line with a problem."""
    import msgspec

    from transduce.family.inference.text_infiller import PLACE

    if json:
        return msgspec.json.encode(continuation) + b"\n"
    before, _, after = text.partition(PLACE) if infill else (text, "", "")
    whole = "" if continuation.problem else before + re.sub(r"[\r\n]", " ", continuation.text) + after
    return whole.encode() + b"\n"
