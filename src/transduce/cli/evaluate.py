"""`transduce evaluate`: evaluate a model on a test set, or given translations."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.cli.options import Alpha, BeamSize, Flag, Language, Lookahead, Precision, Tag
from transduce.cli.output import print_json
from transduce.errors import UserError


def evaluate(
    *models: Annotated[Path, Parameter(help="Model folders. They need --src. Several models form an ensemble.")],
    ref: Path,
    src: Path | None = None,
    hyp: list[Path] | None = None,
    language: Language = "en",
    tokenize: str = "13a",
    beam_size: BeamSize = None,
    alpha: Alpha = None,
    lookahead: Lookahead = None,
    tag: Tag = None,
    precision: Precision = "fp32",
    json: Flag = False,
) -> None:
    """Evaluate a model on a test set, or given translations.

    With two --hyp files, the command also tests whether their difference is significant.

    Parameters
    ----------
    ref
        Reference translations.
    src
        Source text to translate with the model.
    hyp
        Translations to evaluate instead of a model. A second --hyp is compared with the first.
    tokenize
        sacreBLEU's tokenizer for the first score: 13a, intl, char, zh, ja-mecab, ko-mecab or none.
    json
        Print one JSON object.

    Examples
    --------
    transduce evaluate run/model --src test.en --ref test.de --language de
    transduce evaluate --hyp output.de --ref test.de --language de
    transduce evaluate --hyp old.de --hyp new.de --ref test.de --language de
    """
    from transduce.decoding.options import DecodingOptions
    from transduce.evaluate import TestSet, evaluate_hypotheses, evaluate_model, format_evaluation

    if bool(models) == bool(hyp):
        raise UserError("MODELS: expected a model with --src, or one or two --hyp files; give one of the two")
    options = DecodingOptions(beam_size=beam_size, alpha=alpha, lookahead=lookahead, tag=tag)
    if hyp:
        if src is not None or options != DecodingOptions() or precision != "fp32":
            names = "--src, --beam-size, --alpha, --lookahead, --tag and --precision"
            raise UserError(f"{names}: expected no value with --hyp; leave them out")
        evaluation = evaluate_hypotheses(hyp, ref, language=language, tokenize=tokenize)
    elif src is None:
        raise UserError("--src: expected the source text for the model; add --src FILE")
    else:
        from transduce.translate import load

        translator = load(*models, precision=precision)
        evaluation = evaluate_model(translator, TestSet(src, ref, language, tokenize), options)
    if json:
        print_json(evaluation)
    else:
        print(format_evaluation(evaluation))
