"""`transduce translate` as a Unix filter: one output line for each input line, written as soon as it is translated."""

import os
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from transduce.cli.constraints import ConstraintOptions, source_lines, unmet_problem
from transduce.cli.doubts import DoubtWatch
from transduce.cli.nearest import Nearest
from transduce.cli.output import check_output, output_file
from transduce.cli.tags import TagWatch
from transduce.console import printable
from transduce.data.compression import open_text, text_of
from transduce.data.text import arriving_lines, count_lines, lines_of
from transduce.decoding.confidence import Calibration
from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DecodingOptions
from transduce.decoding.phrases.terms import Terms
from transduce.errors import LineError, UserError
from transduce.interop import ctranslate2_engine as engine
from transduce.model import devices

if TYPE_CHECKING:
    from transduce.translate import Translator

    AnyTranslator = Translator | engine.ExportedTranslator

EngineName = Literal["torch", "ctranslate2"]

NO_CONSTRAINTS = ConstraintOptions()
STDIN = 0
STDIN_NAME = "standard input"
CHUNK_LINES = 1_024  # lines that are read, translated and written together
SPEED_SECONDS = 1_800  # the progress bar averages the speed over this time, because it moves by whole chunks


@dataclass(frozen=True)
class ModelFolders:
    """Model folders and the way to run them. precision, engine: None takes the folder's."""

    folders: Sequence[Path]
    precision: str | None = None
    engine: EngineName | None = None


@dataclass(frozen=True)
class Form:
    """The form of the output. json: a JSON object on each line. nearest: what selects one of n-best outputs.

    min_confidence: the confidence below which a line is named on standard error; None names none.
    """

    json: bool = False
    nearest: Nearest | None = None
    min_confidence: float | None = None

    def check(self, options: DecodingOptions) -> None:
        """Raise UserError for options whose result has no room in this form."""
        if options.n_best > 1 and not (self.json or self.nearest):
            raise UserError(f"--n-best={options.n_best}: expected 1 without --json; add --json")
        if options.alignment and not self.json:
            raise UserError("--alignment: expected --json, because a line of text has no room for it; add --json")
        if options.n_best == 1 and self.nearest:
            raise UserError(f"--nearest={self.nearest.path}: expected --n-best over 1; add --n-best 4")
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise UserError(f"--min-confidence={self.min_confidence:g}: expected 0 to 1; give another number")

    def check_model(self, folders: Sequence[Path], calibration: Calibration | None) -> None:
        """Raise UserError for a least confidence without a calibration of the model."""
        if self.min_confidence is None or calibration is not None:
            return
        name = f"--min-confidence={self.min_confidence:g}"
        if len(folders) > 1:
            raise UserError(f"{name}: expected one model, because an ensemble has no calibration; give one model")
        if engine.is_exported(folders[0]):
            raise UserError(f"{name}: must not be set with CTranslate2, which gives no scores of tokens; leave it out")
        command = f"transduce calibrate {folders[0]} --src TEXT --ref TEXT"
        raise UserError(f"{name}: expected a model folder with calibration.json; run {command}")

    def output_line(self, translation: Translation, left_out: Collection[str]) -> "OutputLine":
        """Return a line of output: the text of the translation, or the whole object as JSON without some fields."""
        line = msgspec.json.encode(_record(translation, left_out)) if self.json else translation.line.encode()
        return OutputLine(line + b"\n", self.problem(translation))

    def problem(self, translation: Translation) -> str | None:
        """Return what standard error says about a translation; None for nothing."""
        problems = [translation.problem or (None if self.json else unmet_problem(translation.unmet))]
        confidence = translation.confidence
        if self.min_confidence is not None and confidence is not None and confidence < self.min_confidence:
            problems.append(f"confidence {confidence:g}, below {self.min_confidence:g}")
        return "; ".join(filter(None, problems)) or None


def run_filter(
    models: ModelFolders,
    source: Path | None,
    target: Path | None,
    options: DecodingOptions,
    *,
    form: Form,
    constraints: ConstraintOptions = NO_CONSTRAINTS,
) -> None:
    """Translate the lines of `source` into `target`.

    source, target: None is standard input or standard output. constraints: phrases of the translations.
    Raises UserError for options that do not fit `form`. Raises it at a line that is not UTF-8, after the translations
    of the lines before it are written.
    """
    form.check(options)

    def load() -> LineFilter:
        translator, terms = load_with_terms(models, options, form, constraints)
        has_phrases = bool(constraints) or options.placeholders
        has_fields = {
            "alignment": options.alignment,
            "unmet": has_phrases,
            "is_unsplit": has_phrases,
            "confidence": translator.calibration is not None,
        }
        left_out = [name for name, is_there in has_fields.items() if not is_there]

        def output_lines(lines: BinaryIO, name: str) -> Iterator[list[OutputLine]]:
            watch = DoubtWatch(name)
            chunks = translations(translator, lines, name, options, constraints, terms)
            for chunk in form.nearest.first(chunks, name) if form.nearest else chunks:
                watch.see(chunk)
                yield [form.output_line(translation, left_out) for translation in chunk]
            watch.end()

        return output_lines

    filter_lines(source, target, "translating", load)


@dataclass(frozen=True)
class OutputLine:
    """A line of the output. content: with its line feed. problem: of the input line, for standard error, or None."""

    content: bytes
    problem: str | None = None


LineFilter = Callable[[BinaryIO, str], Iterator[list[OutputLine]]]  # (input, its name) -> lists of lines


def filter_lines(source: Path | None, target: Path | None, activity: str, load: Callable[[], LineFilter]) -> None:
    """Write the output lines of `source` into `target`, in lists, each as soon as it is ready.

    source, target: None is standard input or standard output. activity: the text next to the progress bar. load: called
    after source and target are checked, because it takes long.
    """
    check_output(target, STDIN if source is None else source)
    lines = _open_input(source)
    bar = _progress_bar(source, target)
    total = None if bar.disable else _count_input_lines(source)
    output_lines = load()
    name = STDIN_NAME if source is None else printable(source)
    with output_file(target) if target is not None else nullcontext(sys.stdout.buffer) as output, bar:
        task = bar.add_task(activity, total=total)
        number = 0
        for chunk in output_lines(lines, name):
            for line in chunk:
                number += 1
                if line.problem is not None:
                    print(f"transduce: {name}:{number}: {line.problem}", file=sys.stderr)
                output.write(line.content)
            output.flush()
            bar.update(task, completed=number, refresh=True)


def translations(
    translator: "AnyTranslator",
    lines: BinaryIO,
    name: str,
    options: DecodingOptions,
    constraints: ConstraintOptions = NO_CONSTRAINTS,
    terms: Terms | None = None,
) -> Iterator[list[Translation]]:
    """Yield the translations of the lines of a stream, in order.

    Each list holds the lines that had arrived when the previous list was ready, at most CHUNK_LINES.
    name: the name of the stream in messages.
    """
    chunks = arriving_lines(lines, name, at_most=CHUNK_LINES)
    tags = TagWatch(name, translator.tokenizer, "add --tag, or put one before each line", options.tag)
    for number, sources in source_lines(chunks, constraints, name):
        tags.see(sources.texts)
        more: dict[str, Any] = {"constraints": sources.constraints, "terms": terms} if constraints else {}
        try:
            outputs = translator.translate(sources.texts, options=options, first_number=number, **more)
        except LineError as error:
            raise UserError(f"{name}:{error.number}: {error.problem}") from None
        yield outputs
    tags.end()


def _open_input(source: Path | None) -> BinaryIO:
    """Return the text of the input, decompressed if it is compressed. Raises UserError if it cannot be opened."""
    if source is not None:
        return open_text(source)
    # Never closed, and not sys.stdin: a thread reads it, and may still wait for a line when this program ends.
    return text_of(open(STDIN, "rb", buffering=0, closefd=False), STDIN_NAME)


def _count_input_lines(source: Path | None) -> int | None:
    """Return the number of lines, or None for a pipe or a device, which can be read only once."""
    if not stat.S_ISREG(os.stat(STDIN if source is None else source).st_mode):
        return None
    if source is not None:
        return count_lines(source)
    start = os.lseek(STDIN, 0, os.SEEK_CUR)
    lines = lines_of(_open_input(None))
    os.lseek(STDIN, start, os.SEEK_SET)
    return lines


def _progress_bar(source: Path | None, target: Path | None) -> Progress:
    """Return the progress bar. It is hidden if the terminal also takes the input or shows the output."""
    is_typed = source is None and os.isatty(STDIN)
    is_shown = target is None and sys.stdout.isatty()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=is_typed or is_shown or not sys.stderr.isatty(),
        speed_estimate_period=SPEED_SECONDS,
    )


def load_with_terms(
    models: ModelFolders, options: DecodingOptions, form: Form, constraints: ConstraintOptions
) -> "tuple[AnyTranslator, Terms | None]":
    """Return the models and the terms. Raises UserError for what the models cannot do."""
    terms = constraints.load_terms()
    translator = load_translator(models, options)
    constraints.check(translator, options)
    form.check_model(models.folders, translator.calibration)
    return translator, terms


def load_translator(models: ModelFolders, options: DecodingOptions) -> "AnyTranslator":
    """Load the models on the requested engine, or on the engine of their folder."""
    exports = [path for path in models.folders if engine.is_exported(path)]
    if models.engine == "torch" and exports:
        raise UserError(f"{exports[0]}: expected a model folder for --engine torch; give the model before the export")
    if models.engine == "ctranslate2" or exports:
        if len(models.folders) != 1:
            raise UserError(f"{len(models.folders)} models: expected one for CTranslate2; use --engine torch")
        devices.refuse_gpu("the engine ctranslate2")
        engine.check_options(options)
        exported = engine.load(models.folders[0], precision=models.precision)
        exported.check_options(options)
        return exported

    from transduce.model.cpu_backend import keep_freed_memory
    from transduce.translate import load

    keep_freed_memory()
    translator = load(*models.folders, precision=models.precision or "fp32")
    translator.check_options(options)
    if models.precision == "auto":
        print(f"transduce: precision {translator.precision}", file=sys.stderr)
    return translator


def _record(translation: Translation, left_out: Collection[str]) -> dict[str, object]:
    """Return the fields of a translation without some of them."""
    alternatives = [_record(alternative, left_out) for alternative in translation.alternatives]
    record = {**vars(translation), "alternatives": alternatives}
    return {name: value for name, value in record.items() if name not in left_out}
