"""`transduce translate`: translate lines."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from transduce.cli.options import (
    OF_THE_MODEL,
    AlphaOption,
    BeamSizeOption,
    CapitalsOption,
    Flag,
    InputOption,
    Integer,
    LookaheadOption,
    ModelsArgument,
    OutputOption,
    TagOption,
    with_device,
)

LengthPenaltyOption = Annotated[
    Literal["gnmt", "power", "none"] | None,
    Parameter(
        help="Length penalty of the score: gnmt is ((5+n)/6)^alpha, power is n^alpha, for an output of n tokens.",
        show_default=OF_THE_MODEL,
    ),
]
NBestOption = Annotated[int, Integer, Parameter(help="Number of outputs for each line. More than one needs --json.")]
TemperatureOption = Annotated[float | None, Parameter(help="Sample at this temperature instead of searching.")]
TopKOption = Annotated[int | None, Integer, Parameter(help="Sample from the K most likely tokens.")]
TopPOption = Annotated[
    float | None, Parameter(help="Sample from the smallest set of tokens with this total probability.")
]
EpsilonOption = Annotated[float | None, Parameter(help="Sample from the tokens that have at least this probability.")]
SeedOption = Annotated[
    int | None, Integer, Parameter(help="Seed of the sampling. Equal seeds give equal samples.", show_default="1")
]
MbrOption = Annotated[
    int | None,
    Integer,
    Parameter(
        help="Minimum Bayes risk: print the one of N candidates that is most similar to all of them. The candidates "
        "are samples, or with --beam-size the N best of the beam."
    ),
]
MbrMetricOption = Annotated[
    Literal["chrf", "bleu"] | None,
    Parameter(help="Similarity of two candidates: sentence chrF or sentence BLEU.", show_default="chrf"),
]
SplitOption = Annotated[
    Literal["auto", "none", "long", "sentences"],
    Parameter(
        help="Lines to translate sentence by sentence. long: lines of data.max_tokens tokens or more. auto: also lines "
        "of more sentences than the model has learned from. sentences: all lines. none: no line."
    ),
]
NumbersOption = Annotated[
    Literal["copy", "translate"],
    Parameter(help="Text of digits without a letter, such as 12:30. Text without letters and digits is always copied."),
]
MaxLengthOption = Annotated[
    int | None,
    Integer,
    Parameter(help="Maximum number of tokens of the output for a sentence.", show_default=OF_THE_MODEL),
]
NoRepeatNgramOption = Annotated[
    int | None,
    Integer,
    Parameter(help="Let no output have the same N tokens in a row twice; 0 does not.", show_default=OF_THE_MODEL),
]
RepetitionPenaltyOption = Annotated[
    float | None,
    Parameter(
        help="Multiply the log-probability of tokens that the output has already; 1 does not.",
        show_default=OF_THE_MODEL,
    ),
]
LoopsOption = Annotated[
    Literal["retry", "keep"],
    Parameter(help="An output that repeats the same words: retry searches again without repetition, keep keeps it."),
]
AnyPrecisionOption = Annotated[
    str | None,
    Parameter(
        help="fp32, bf16, int8 (only on CPUs), or auto: the fastest on this machine. The choice is printed to stderr.",
        show_default="fp32, or the stored precision of an exported model",
    ),
]
EngineOption = Annotated[
    Literal["torch", "ctranslate2"] | None,
    Parameter(help="ctranslate2 is for models that were exported to it.", show_default="the engine of the folder"),
]
AlignmentOption = Annotated[
    Flag,
    Parameter(help="Also print the source word of each word of the translation, by the cross-attention. Needs --json."),
]
ShortlistOption = Annotated[
    Flag,
    Parameter(
        help="Let each output have only the pieces that its source suggests, which is faster with a large vocabulary. "
        "The model folder needs a shortlist: see transduce shortlist."
    ),
]
ConstraintsOption = Annotated[
    Literal["tabs", "json"] | None,
    Parameter(
        help="Input lines with phrases that the output must have. tabs: the source, then phrases, with tabs between "
        'them. json: {"text": ..., "must": [...], "must_not": [...], "prefix": ...}.'
    ),
]
PrefixOption = Annotated[str | None, Parameter(help="Text that each output begins with.")]
TermsOption = Annotated[
    Path | None,
    Parameter(
        help="Terms, one a line: a source term, a tab, and its target, or target|target. An output has the target of "
        "each term in its source."
    ),
]
PlaceholdersOption = Annotated[
    Flag,
    Parameter(
        help="Keep placeholders as they are: {name}, %s, tags, URLs, mail addresses, numbers with units and emoji. A "
        "line whose output does not have each as often as its source is named."
    ),
]
FileOption = Annotated[
    Path | None,
    Parameter(
        help="File whose texts are translated: txt, srt, vtt, json, po, md, html, docx or odt. The rest of it stays. "
        "Needs --output, with the same extension."
    ),
]
JsonLinesOption = Annotated[
    Flag, Parameter(help="Print one JSON object per line, with scores, tokens and alternatives.")
]
MinConfidenceOption = Annotated[
    float | None,
    Parameter(
        help="Name each line, or text of a file, whose translation has a lower confidence, from 0 to 1. None is left "
        "out. The model folder needs a calibration: see transduce calibrate."
    ),
]

NearestOption = Annotated[
    Path | None,
    Parameter(
        help="References, one for each line. Of the outputs of --n-best, the most similar one is printed: the training "
        "text of a student."
    ),
]
NearestByOption = Annotated[
    Literal["bleu", "chrf"],
    Parameter(help="Score of a sentence that says which output is most similar. chrf suits scripts without spaces."),
]


@dataclass(frozen=True, kw_only=True)
class SearchArguments:
    """The search of one output for each line, as arguments of `DecodingOptions`."""

    beam_size: BeamSizeOption = None
    alpha: AlphaOption = None
    length_penalty: LengthPenaltyOption = None
    max_length: MaxLengthOption = None
    no_repeat_ngram: NoRepeatNgramOption = None
    repetition_penalty: RepetitionPenaltyOption = None
    lookahead: LookaheadOption = None
    loops: LoopsOption = "retry"
    split: SplitOption = "auto"
    numbers: NumbersOption = "copy"
    capitals: CapitalsOption = "lower"
    placeholders: PlaceholdersOption = False


@dataclass(frozen=True, kw_only=True)
class OneOutput(SearchArguments):
    """The search or the draw of one output for each line."""

    temperature: TemperatureOption = None
    top_k: TopKOption = None
    top_p: TopPOption = None
    epsilon: EpsilonOption = None
    seed: SeedOption = None
    tag: TagOption = None


@dataclass(frozen=True, kw_only=True)
class Decoding(OneOutput):
    """The arguments of `DecodingOptions.from_arguments`, flat, as a command line has them."""

    n_best: NBestOption = 1
    mbr: MbrOption = None
    mbr_metric: MbrMetricOption = None


AllDecoding = Annotated[Decoding, Parameter(name="*")]


@with_device
def translate(
    *models: ModelsArgument,
    input: InputOption = None,
    output: OutputOption = None,
    file: FileOption = None,
    decoding: AllDecoding = Decoding(),  # noqa: B008
    constraints: ConstraintsOption = None,
    prefix: PrefixOption = None,
    terms: TermsOption = None,
    shortlist: ShortlistOption = False,
    precision: AnyPrecisionOption = None,
    engine: EngineOption = None,
    alignment: AlignmentOption = False,
    nearest: NearestOption = None,
    nearest_by: NearestByOption = "bleu",
    min_confidence: MinConfidenceOption = None,
    json: JsonLinesOption = False,
) -> None:
    r"""Translate lines: one output line for each input line.

    The output has the order of the input. The command answers each line as soon as it arrives. Blank lines stay blank.

    Examples
    --------
    transduce translate run/model < input.en > output.de
    echo "A dog runs." | transduce translate run/model --json --n-best 3
    echo "A dog runs." | transduce translate run/model --json --alignment
    transduce translate run/model --mbr 32 < input.en > output.de
    transduce translate run/model --split sentences < pages.en > pages.de
    transduce translate run/model --tag "<2fr>" < input.en > output.fr
    transduce translate run/model --constraints tabs < phrases.en > output.de
    echo '{"text": "Dogs", "must": ["Hunde"]}' | transduce translate run/model \
        --constraints json
    transduce translate run/model --prefix "Sehr geehrte Frau" < in.en > out.de
    transduce translate run/model --terms terms.tsv < input.en > output.de
    transduce translate run/model --placeholders < ui.en > ui.de
    transduce translate run/model --shortlist < input.en > output.de
    transduce translate run/model --min-confidence 0.5 < input.en > output.de
    transduce translate run/model --n-best 4 --nearest ref.de < in.en > out.de
    transduce translate run/model --file film.srt --output film.de.srt
    transduce translate run1/model run2/model --input in.en --output out.de
    """
    from transduce.cli.constraints import ConstraintOptions
    from transduce.cli.nearest import Nearest
    from transduce.cli.stream import Form, ModelFolders, run_filter
    from transduce.decoding.options import DecodingOptions

    options = DecodingOptions.from_arguments(**asdict(decoding), alignment=alignment, shortlist=shortlist)
    form = Form(json, nearest and Nearest(nearest, nearest_by), min_confidence)
    phrases = ConstraintOptions(constraints, prefix, terms)
    if file is None:
        run_filter(ModelFolders(models, precision, engine), input, output, options, form=form, constraints=phrases)
    else:
        from transduce.cli.file import refuse_with_file, translate_file

        others = {"--input": input, "--json": json, "--nearest": nearest, "--constraints": constraints}
        others |= {"--alignment": alignment, "--n-best": decoding.n_best > 1}
        refuse_with_file(file, others)
        translate_file(ModelFolders(models, precision, engine), file, output, options, form, phrases)
