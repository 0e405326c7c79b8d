"""`transduce evaluate`: evaluate a model on a test set, or given translations."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_args

from cyclopts import Parameter

from transduce.cli.options import (
    AlphaOption,
    BeamSizeOption,
    CapitalsOption,
    JsonObjectOption,
    LanguageOption,
    LookaheadOption,
    PrecisionOption,
    TagOption,
    with_device,
)
from transduce.cli.output import print_json
from transduce.config.schema import NoiseKind
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.data.corpora import Corpus
    from transduce.decoding.options import DecodingOptions
    from transduce.evaluate import Evaluation, MoreScores, TestSet
    from transduce.family.tasks.class_scores import ClassScores
    from transduce.family.tasks.text_scores import TextScores
    from transduce.family.tasks.token_scores import TokenScores
    from transduce.parsing.labelled_f1 import LabelledScores

T = TypeVar("T")
EvaluatedModelsArgument = Annotated[
    Path, Parameter(help="Model folders. They need --src. Several models form an ensemble.")
]
ReferencesOption = Annotated[
    list[Path] | None, Parameter(help="Reference translations. May be repeated: several references of each line.")
]
SourceTextOption = Annotated[
    Path | None,
    Parameter(
        help="Source text to translate with the model. Without --ref, a table with source and reference, as in "
        "`transduce train --train`, also for --hyp."
    ),
]
GoldTreesOption = Annotated[
    Path | None, Parameter(help="Gold trees in brackets, instead of --ref and --src. A model parses their words.")
]
PlainTextOption = Annotated[
    Path | None,
    Parameter(
        help="Text for a language model, one line a text, instead of --ref and --src: its perplexity is printed, or "
        "an upper bound of it for a LLaDA. A BERT or T5 of a training restores a part of its tokens."
    ),
]
LabelsOption = Annotated[Path | None, Parameter(help="Labels of the lines of --text: the model is a classifier.")]
OutputsOption = Annotated[
    list[Path] | None,
    Parameter(
        help="Translations to evaluate instead of a model. A second --hyp is compared with the first. With --trees, "
        "one file of trees in brackets, one on a line."
    ),
]
NoiseOption = Annotated[
    str,
    Parameter(
        help="Kinds of noise, with commas between them. The model is also scored under each: capitals, lower, titles, "
        "punctuation, typos, spaces, emoji, urls and masks.",
        show_default=False,
    ),
]
TokenizeOption = Annotated[
    str,
    Parameter(help="sacreBLEU's tokenizer for the first score: 13a, intl, char, zh, ja-mecab, ko-mecab or none."),
]
CometOption = Annotated[
    Path | None,
    Parameter(
        help="Folder of a COMET model, whose score is printed with the others. With --hyp, --src is the source text. "
        "See docs/interop.md."
    ),
]


@with_device
def evaluate(
    *models: EvaluatedModelsArgument,
    ref: ReferencesOption = None,
    src: SourceTextOption = None,
    trees: GoldTreesOption = None,
    text: PlainTextOption = None,
    labels: LabelsOption = None,
    hyp: OutputsOption = None,
    language: LanguageOption = "en",
    tokenize: TokenizeOption = "13a",
    beam_size: BeamSizeOption = None,
    alpha: AlphaOption = None,
    lookahead: LookaheadOption = None,
    tag: TagOption = None,
    capitals: CapitalsOption = "lower",
    noise: NoiseOption = "",
    precision: PrecisionOption = "fp32",
    comet: CometOption = None,
    json: JsonObjectOption = False,
) -> None:
    """Evaluate a model on a test set, or given translations.

    With two --hyp files, the command also tests whether their difference is significant. With --trees it evaluates a
    parser, or given trees. With --text it evaluates a language model, and with --text and --labels a classifier.

    Examples
    --------
    transduce evaluate run/model --src test.en --ref test.de --language de
    transduce evaluate run/model --src test.tsv --language de --noise typos
    transduce evaluate --hyp output.de --ref test.de --language de
    transduce evaluate --hyp output.de --ref test.de --src test.en --comet comet
    transduce evaluate gpt/model --text test.txt
    transduce evaluate classifier/model --text sentences.txt --labels labels.txt
    """
    from transduce.decoding.options import DecodingOptions
    from transduce.evaluate import TestSet, evaluate_hypotheses, format_evaluation

    options = DecodingOptions(beam_size=beam_size, alpha=alpha, lookahead=lookahead, tag=tag, capitals=capitals)
    if text is not None or labels is not None:
        is_changed = (options, language, tokenize, precision) != (DecodingOptions(), "en", "13a", "fp32")
        has_others = any([ref, src, trees, hyp, noise, comet, is_changed])
        return _print(_scores_of_lines(models, text, labels, has_others), str, json=json)
    kinds = _kinds(noise)
    _check_one(models, hyp, ref is not None or _is_table(src), trees)
    _check_no_model(hyp, src if (ref and not comet) or trees else None, options, precision, kinds)
    if trees is not None:
        _check_only_trees(src, hyp, language, tokenize, kinds, comet)
        scores = _scores_of_file(hyp[0], trees) if hyp else _scores_of_parser(models, trees, options, precision)
        return _print(scores, str, json=json)
    first, more = (ref[0], ref[1:]) if ref else (None, [])
    scores = None if comet is None else _comet_scores(comet, src)
    if hyp and (reference := first or _table(src)):
        settings = {"more_refs": more, "language": language, "tokenize": tokenize, "more_scores": scores}
        evaluation = evaluate_hypotheses(hyp, reference, src=src if first and comet else None, **settings)
    else:
        test_set = TestSet(_source(src), first, language, tokenize, more)
        evaluation = _evaluate_models(models, test_set, options, precision, kinds, scores)
    for line in (evaluation.warning or "").splitlines():
        print(f"transduce: {line}", file=sys.stderr)
    _print(evaluation, format_evaluation, json=json)


def _comet_scores(folder: Path, src: Path | None) -> "MoreScores":
    """Return the scores of a COMET model. Raises UserError without a source text, before the model is loaded."""
    from transduce.family.inference.comet import load_comet

    if src is None:
        raise UserError(f"--comet={folder}: expected the source text, too; add --src FILE")
    return load_comet(folder).corpus_scores


def _source(src: Path | None) -> Path:
    if src is None:
        raise UserError("--src: expected the source text for the model; add --src FILE")
    return src


def _print(scores: T, form: Callable[[T], str], *, json: bool) -> None:
    """Print the scores, as JSON or in the form for people."""
    if json:
        print_json(scores)
    else:
        print(form(scores))


def _scores_of_lines(
    models: tuple[Path, ...], text: Path | None, labels: Path | None, has_others: bool
) -> "ClassScores | TextScores | TokenScores":
    """Return the scores of a classifier if there are labels, and of a language model if there are none.

    has_others: True if another option is set. Raises UserError then, and if there is not one model.
    """
    if text is None:
        raise UserError("--labels: expected the sentences as --text; add --text FILE")
    if len(models) != 1 or has_others:
        names = "--labels and --json"
        raise UserError(f"--text: expected one model, and no other option but {names}; leave the others out")
    return _scores_of_classes(models[0], text, labels) if labels else _scores_of_text(models[0], text)


def _scores_of_classes(model: Path, sentences: Path, labels: Path) -> "ClassScores":
    """Return the scores of a classifier on sentences."""
    from transduce.family.inference.text_encoder import TextEncoder
    from transduce.family.tasks.class_scores import evaluate_classes

    return evaluate_classes(TextEncoder.load(model), sentences, labels)


def _scores_of_text(model: Path, text: Path) -> "TextScores | TokenScores":
    """Return the scores of a language model on a text. For a diffusion model they are upper bounds.

    For a BERT or T5 that was trained here by restoring tokens, they are the scores of these tokens.
    """
    from transduce.family.hugging_face.folder import read_member
    from transduce.family.inference.language_model import LanguageModel
    from transduce.family.inference.model_folder import is_trained_here, member_of
    from transduce.family.inference.text_filler import TextFiller
    from transduce.family.llada import Llada
    from transduce.family.tasks.diffusion_bound import evaluate_bound
    from transduce.family.tasks.text_scores import evaluate_text
    from transduce.family.tasks.token_scores import RESTORING_TASKS, evaluate_restored
    from transduce.storage.model_folder import load_model

    loaded = load_model(model) if is_trained_here(model) else None
    if loaded and loaded.config.train.task in RESTORING_TASKS:
        return evaluate_restored(loaded, text)
    member = member_of(loaded) if loaded else read_member(model)
    if isinstance(member.model, Llada):
        return evaluate_bound(TextFiller(member, model), text)
    return evaluate_text(LanguageModel(member, model), text)


def _evaluate_models(
    models: tuple[Path, ...],
    test_set: "TestSet",
    options: "DecodingOptions",
    precision: PrecisionOption,
    noise: Sequence[NoiseKind],
    more_scores: "MoreScores | None",
) -> "Evaluation":
    """Return the scores of a model, or of an ensemble, on a test set."""
    from transduce.evaluate import evaluate_model
    from transduce.translate import load

    return evaluate_model(load(*models, precision=precision), test_set, options, noise, more_scores)


def _kinds(noise: str) -> list[NoiseKind]:
    """Return the kinds of noise of the option. Raises UserError for an unknown one."""
    kinds = [kind for kind in get_args(NoiseKind) if kind in noise.split(",")]
    if unknown := [name for name in noise.split(",") if name and name not in kinds]:
        raise UserError(f"--noise={noise}: expected some of {', '.join(get_args(NoiseKind))}; correct {unknown[0]}")
    return kinds


def _is_table(src: Path | None) -> bool:
    """Return True for a file that has the references, too."""
    from transduce.data.corpora import problems

    return (table := _table(src)) is not None and not problems([table])


def _table(src: Path | None) -> "Corpus | None":
    """Return the corpus of a file that may have the references, too."""
    from transduce.data.corpora import Corpus

    return None if src is None else Corpus(src)


def _check_one(models: tuple[Path, ...], hyp: list[Path] | None, has_references: bool, trees: Path | None) -> None:
    """Raise UserError unless exactly one of models and files is given, and one kind of reference."""
    if bool(models) == bool(hyp):
        raise UserError("MODELS: expected a model with --src, or one or two --hyp files; give one of the two")
    if has_references == (trees is not None):
        raise UserError(
            "--ref: expected reference translations, in --ref or in a table as --src, or gold --trees for a parser; "
            "give one of the two"
        )


def _check_no_model(
    hyp: list[Path] | None, src: Path | None, options: "DecodingOptions", precision: str, noise: Sequence[NoiseKind]
) -> None:
    """Raise UserError if there are outputs, and an option has a value that only the evaluation of a model uses."""
    if not hyp:
        return
    if src is not None or options != type(options)() or precision != "fp32" or noise:
        names = "--src, --beam-size, --alpha, --lookahead, --tag, --capitals, --noise and --precision"
        raise UserError(f"{names}: must not be set with --hyp; leave them out")


def _check_only_trees(
    src: Path | None,
    hyp: list[Path] | None,
    language: str,
    tokenize: str,
    noise: Sequence[NoiseKind],
    comet: Path | None,
) -> None:
    """Raise UserError if an option has a value that the evaluation of trees does not use."""
    if src is not None or language != "en" or tokenize != "13a" or len(hyp or []) > 1 or noise or comet:
        names = "--src, --language, --tokenize, --noise, --comet and a second --hyp"
        raise UserError(f"{names}: must not be set with --trees; leave them out")


def _scores_of_file(hyp: Path, trees: Path) -> "LabelledScores":
    """Return the scores of the trees in a file."""
    from transduce.parsing.labelled_f1 import labelled_scores, read_gold, read_outputs

    gold = read_gold(trees)
    return labelled_scores(gold, read_outputs(hyp, trees, len(gold)))


def _scores_of_parser(
    models: Sequence[Path], trees: Path, options: "DecodingOptions", precision: str
) -> "LabelledScores":
    """Return the scores of the trees that a parser gives to the words of the gold trees."""
    from transduce.parsing.labelled_f1 import labelled_scores, read_gold
    from transduce.parsing.parse import load_parser
    from transduce.parsing.trees import sentence_of

    gold = read_gold(trees)
    parses = load_parser(*models, precision=precision).parse([sentence_of(tree.words) for tree in gold], options)
    return labelled_scores(gold, [parse.tree for parse in parses])
