"""`transduce translate` as a Unix filter: one line in, one line out, in order, answered as they come."""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from transduce.data.text import arriving_lines, count_lines, lines_of
from transduce.decoding.options import DecodingOptions
from transduce.decoding.segmentation import Translation
from transduce.errors import UserError
from transduce.interop import ctranslate2_engine as engine

if TYPE_CHECKING:
    from transduce.translate import Translator

Engine = Literal["torch", "ctranslate2"]

STDIN = 0
CHUNK_LINES = 1_024  # read ahead, translated together and then written


@dataclass(frozen=True)
class Models:
    """Model folders and the way to run them. precision, engine: None takes that of the folder."""

    folders: Sequence[Path]
    precision: str | None = None
    engine: Engine | None = None


def run_filter(
    models: Models, source: Path | None, target: Path | None, options: DecodingOptions, *, json: bool = False
) -> None:
    """Translate `source` (default: standard input) into `target` (default: standard output).

    Raises UserError at a line that is not UTF-8, after the lines before it have been answered.
    """
    _check_files(source, target)
    lines = _count(source)
    translator = _load(models, options)
    options.resolve(translator.config.search)
    with ExitStack() as stack:
        # Never closed, and not sys.stdin: a thread reads it, maybe still waiting for a line when this program ends.
        reading = open(STDIN if source is None else os.open(source, os.O_RDONLY), "rb", closefd=False)
        writing = stack.enter_context(target.open("wb")) if target is not None else sys.stdout.buffer
        bar = stack.enter_context(_bar(source, target))
        task = bar.add_task("translating", total=lines)
        name, done = str(source) if source is not None else "standard input", 0
        for translated in translations(translator, reading, name, options):
            for number, translation in enumerate(translated, start=done + 1):
                if translation.problem is not None:
                    print(f"transduce: {name}:{number}: {translation.problem}", file=sys.stderr)
                writing.write(_line(translation, json))
            writing.flush()
            done += len(translated)
            bar.update(task, completed=done, refresh=True)


def _check_files(source: Path | None, target: Path | None) -> None:
    """Raise UserError, before a model is loaded, for an output that could not be written or would destroy the input."""
    if target is None:
        return
    if target.is_dir():
        raise UserError(f"--output {target} is a folder; give the name of a file")
    if not target.absolute().parent.is_dir():
        raise UserError(f"--output {target}: there is no folder {target.parent}; make it first")
    if source is not None and source.exists() and target.exists() and source.samefile(target):
        raise UserError(f"--output {target} is the input file; give another name")


def _count(source: Path | None) -> int | None:
    """How many lines there are; None for a pipe, which can be read only once.

    Counting also says at once if a file cannot be read.
    """
    if source is not None:
        return None if source.is_fifo() else count_lines(source)
    if not stat.S_ISREG(os.fstat(STDIN).st_mode):
        return None
    with open(STDIN, "rb", closefd=False) as file:
        begin = file.tell()
        lines = lines_of(file)
        file.seek(begin)
    return lines


def _bar(source: Path | None, target: Path | None) -> Progress:
    """How far it is, on a terminal where nothing is typed and no translation shown."""
    typed, shown = source is None and os.isatty(STDIN), target is None and sys.stdout.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    quiet = typed or shown or not sys.stderr.isatty()
    # The speed is that of the last half hour, for lines are done by the thousand.
    return Progress(*columns, console=Console(stderr=True), disable=quiet, speed_estimate_period=1_800)


def _load(models: Models, options: DecodingOptions) -> "Translator | engine.ExportedTranslator":
    """The models on the engine that was asked for, or the one that their folder is for."""
    exported = [path for path in models.folders if engine.is_exported(path)]
    if models.engine == "torch" and exported:
        raise UserError(f"{exported[0]} is for --engine ctranslate2; give the model that it was made of")
    if models.engine != "ctranslate2" and not exported:
        from transduce.model.cpu_backend import keep_freed_memory
        from transduce.translate import load

        keep_freed_memory()
        translator = load(*models.folders, precision=models.precision or "fp32")
        if models.precision == "auto":
            print(f"transduce: precision {translator.precision}", file=sys.stderr)
        return translator
    if len(models.folders) != 1:
        raise UserError(f"{len(models.folders)} models: CTranslate2 takes one; an ensemble needs --engine torch")
    engine.check_options(options)
    return engine.load(models.folders[0], precision=models.precision)


def translations(
    translator: "Translator | engine.ExportedTranslator", reading: BinaryIO, name: str, options: DecodingOptions
) -> Iterator[list[Translation]]:
    """The translations of the lines of a stream, in order, in lists of those that were there at a time."""
    done = 0
    for lines in arriving_lines(reading, name, at_most=CHUNK_LINES):
        yield translator.translate(lines, options=options, first_number=done)
        done += len(lines)


def _line(translation: Translation, json: bool) -> bytes:
    return (msgspec.json.encode(translation) if json else translation.text.encode()) + b"\n"
