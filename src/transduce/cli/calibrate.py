"""`transduce calibrate`: learn how likely a translation is good, from what the search knows of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from transduce.cli.options import TagOption, with_device
from transduce.cli.translate import AnyPrecisionOption
from transduce.console import printable
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.evaluation.calibration import ScoredText
    from transduce.translate import Translator


@with_device
def calibrate(
    model: Path,
    *,
    src: Path,
    ref: Path,
    good: Annotated[float, Parameter(help="Least sentence chrF of a good translation.")] = 40,
    test: Annotated[
        tuple[Path, Path] | None,
        Parameter(help="Source text and references to measure the confidence on.", show_default="parts of the text"),
    ] = None,
    report: Path | None = None,
    tag: TagOption = None,
    precision: AnyPrecisionOption = None,
) -> None:
    r"""Learn the confidence of translations: the probability that a translation is good.

    The command translates the text, and scores each translation against its reference. It adds the file
    calibration.json to the model folder, which stays as it is otherwise. From then on, translate --json and the service
    have the confidence of each translation, and translate --min-confidence names the lines with less. It prints how
    well the confidence tells good translations from others, on text from which it has not learned.

    Parameters
    ----------
    model
        A model folder, such as run/model.
    src
        Source text that the model has not learned from, such as the validation text. A thousand lines are enough.
    ref
        Its reference translations, line by line.
    report
        HTML file to write: the reliability diagram.

    Examples
    --------
    transduce calibrate run/model --src valid.en --ref valid.de
    transduce calibrate run/model --src valid.en --ref valid.de \
        --test test.en test.de --report confidence.html
    """
    from transduce.cli.clean import check_outputs
    from transduce.data.text import read_pairs
    from transduce.evaluation.calibration import Reliability, confidences, learn, reliability_report, unseen_confidences
    from transduce.evaluation.page import write_page
    from transduce.evaluation.study_report import html_page
    from transduce.storage.model_folder import CALIBRATION_FILE, save_calibration

    if not 0 < good <= 100:
        raise UserError(f"--good={good:g}: expected a chrF over 0, at most 100; give another number")
    check_outputs({"--report": [report] if report else []}, [src, ref, *(test or ())])
    pairs, test_pairs = [*read_pairs(src, ref)], [*read_pairs(*test)] if test else None
    translator = _load(model, precision or "fp32")
    text = _scored_text(translator, tag, src, pairs, good)
    text.check(good)
    learned = learn(text, good)
    unseen = _scored_text(translator, tag, test[0], test_pairs, good) if test and test_pairs else None
    parts = (unseen, confidences(learned, unseen.features)) if unseen else (text, unseen_confidences(text, good))
    figures = Reliability.of(*parts)
    save_calibration(model, learned)
    print(f"{printable(model / CALIBRATION_FILE)}: learned from {text}", figures, sep="\n")
    if report is not None:
        write_page(report, html_page(reliability_report(figures, good, printable(model))))


def _load(model: Path, precision: str) -> "Translator":
    """Return the translator of a model. Raises UserError for a parser."""
    from transduce.translate import load

    translator = load(model, precision=precision)
    if translator.config.data.target_tokens == "symbols":
        raise UserError(f"{model}: expected a model that writes text, not trees; give another model")
    return translator


def _scored_text(
    translator: "Translator", tag: str | None, src: Path, pairs: list[tuple[str, str]], good: float
) -> "ScoredText":
    """Return the features of the translations of a text, and which of them are good."""
    from transduce.cli.tags import warn_about_tags
    from transduce.data.text import is_blank
    from transduce.decoding.confidence import features_of
    from transduce.decoding.mbr import chrf
    from transduce.evaluation.calibration import ScoredText

    whole = [pair for pair in pairs if not any(map(is_blank, pair))]
    rows, is_good = list[list[float]](), list[bool]()
    lines = [line for line, _ in whole]
    warn_about_tags(lines, printable(src), translator.tokenizer, "add --tag, or put one before each line", tag)
    translations = translator.translate(lines, tag=tag)
    for (line, reference), translation in zip(whole, translations, strict=True):
        if features := features_of(translator.tokenizer.split_tag(line)[1], translation):
            rows.append(features)
            is_good.append(bool(chrf([translation.text, reference])[0, 1] >= good))
    return ScoredText.of(printable(src), rows, is_good, len(pairs) - len(rows))
