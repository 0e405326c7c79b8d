"""`transduce translate` as a Unix filter: one line in, one line out, in order, answered as they come."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import msgspec
from rich.console import Console
from rich.progress import Progress

from transduce import engine
from transduce.errors import UserError
from transduce.hypotheses import Sampling
from transduce.lines import Translation
from transduce.text import arriving_lines, count_lines

if TYPE_CHECKING:
    from transduce.translate import Translator

Engine = Literal["torch", "ctranslate2"]

CHUNK_LINES = 1_024  # read ahead, translated together and then written


@dataclass(frozen=True)
class Ask:
    """What the command line asks of a translation. sampling: None: search; precision, engine: None: the folder's."""

    beam_size: int | None
    alpha: float | None
    n_best: int
    sampling: Sampling | None
    seed: int
    precision: str | None
    engine: Engine | None
    json: bool


def run_filter(models: Sequence[Path], source: Path | None, target: Path | None, ask: Ask) -> None:
    """Translate `source` (default: standard input) into `target` (default: standard output).

    Raises UserError at a line that is not UTF-8, after the lines before it have been answered.
    """
    _check_files(source, target)
    # A pipe can be read only once. Counting also says at once if a file cannot be read.
    lines = None if source is None or source.is_fifo() else count_lines(source)
    translator = _load(models, ask)
    translator.settings(ask.beam_size, ask.alpha, ask.n_best)
    with ExitStack() as stack:
        # Never closed, and not sys.stdin: a thread reads it, maybe still waiting for a line when this program ends.
        reading = open(sys.stdin.fileno() if source is None else os.open(source, os.O_RDONLY), "rb", closefd=False)
        writing = stack.enter_context(target.open("wb")) if target is not None else sys.stdout.buffer
        quiet = lines is None or not sys.stderr.isatty()
        bar = stack.enter_context(Progress(console=Console(stderr=True), disable=quiet))
        task = bar.add_task("translating", total=lines)
        name = str(source) if source is not None else "standard input"
        for number, translation in enumerate(translations(translator, reading, name, ask), start=1):
            if translation.problem is not None:
                print(f"transduce: {name}:{number}: {translation.problem}", file=sys.stderr)
            writing.write(_line(translation, ask.json))
            writing.flush()
            bar.advance(task)


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


def _load(models: Sequence[Path], ask: Ask) -> "Translator | engine.ExportedTranslator":
    """The models on the engine that was asked for, or the one that their folder is for."""
    exported = [path for path in models if engine.is_exported(path)]
    if ask.engine == "torch" and exported:
        raise UserError(f"{exported[0]} is for --engine ctranslate2; give the model that it was made of")
    if ask.engine != "ctranslate2" and not exported:
        from transduce.kernels import keep_freed_memory
        from transduce.translate import load

        keep_freed_memory()
        translator = load(*models, precision=ask.precision or "fp32")
        if ask.precision == "auto":
            print(f"transduce: precision {translator.precision}", file=sys.stderr)
        return translator
    if len(models) != 1:
        raise UserError(f"{len(models)} models: CTranslate2 takes one; an ensemble needs --engine torch")
    if ask.sampling is not None:
        raise UserError("--temperature, --top-k and --top-p need --engine torch and the model that was exported")
    return engine.load(models[0], precision=ask.precision)


def translations(
    translator: "Translator | engine.ExportedTranslator", reading: BinaryIO, name: str, ask: Ask
) -> Iterator[Translation]:
    """The translation of each line of a stream, in order."""
    done = 0
    for lines in arriving_lines(reading, name, at_most=CHUNK_LINES):
        drawing: dict[str, Any] = {}
        if ask.sampling is not None:
            drawing = {"sampling": ask.sampling, "seed": ask.seed, "first_number": done}
        yield from translator.translate(
            lines,
            beam_size=ask.beam_size,
            alpha=ask.alpha,
            n_best=ask.n_best,
            **drawing,
        )
        done += len(lines)


def _line(translation: Translation, json: bool) -> bytes:
    return (msgspec.json.encode(translation) if json else translation.text.encode()) + b"\n"
