"""`transduce evaluate`: evaluate a model on a test set, or given translations."""

from pathlib import Path

from transduce.cli.output import print_json
from transduce.errors import UserError


def evaluate(
    *models: Path,
    ref: Path,
    src: Path | None = None,
    hyp: list[Path] | None = None,
    language: str = "en",
    tokenize: str = "13a",
    beam_size: int | None = None,
    alpha: float | None = None,
    lookahead: int | None = None,
    precision: str = "fp32",
    json: bool = False,
) -> None:
    """Judge a model on a test set, or given translations without a model. Two --hyp: is the difference significant?

    Parameters
    ----------
    models
        Model folders; needs --src. Several are an ensemble.
    ref
        Reference translations.
    src
        Source text, for a model.
    hyp
        Translations to judge instead of a model's; given twice, the second is compared with the first.
    language
        Language of the references, such as de: the rules of the Moses tokenizer.
    tokenize
        sacreBLEU's tokenizer for the first figure: 13a, intl, char, zh, ja-mecab, ko-mecab or none.
    beam_size
        Default: the model's own setting.
    alpha
        Exponent of the length penalty; default: the model's own setting.
    lookahead
        Default: the model's own setting; see `transduce translate --help`.
    precision
        fp32, or bf16.
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
        raise UserError("give either a model and --src, or one or two --hyp files")
    options = DecodingOptions(beam_size=beam_size, alpha=alpha, lookahead=lookahead)
    if hyp:
        if src is not None or options != DecodingOptions() or precision != "fp32":
            of_a_model = "--src, --beam-size, --alpha, --lookahead and --precision"
            raise UserError(f"{of_a_model} have no effect with --hyp; leave them out")
        evaluation = evaluate_hypotheses(hyp, ref, language=language, tokenize=tokenize)
    elif src is None:
        raise UserError("a model needs --src, the text to translate")
    else:
        from transduce.translate import load

        translator = load(*models, precision=precision)
        evaluation = evaluate_model(translator, TestSet(src, ref, language, tokenize), options)
    if json:
        print_json(evaluation)
    else:
        print(format_evaluation(evaluation))
