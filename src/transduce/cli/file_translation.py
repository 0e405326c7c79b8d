"""The translation of a whole file by jobs that need one. After an interruption, it continues where it stopped.

OUT.translating/
    origin.json      what it translates, and how: the SHA-256 of text and models, and the options
    translations     the lines so far
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from transduce.cleaning.progress import JobProgress
from transduce.cli.doubts import DoubtWatch
from transduce.cli.nearest import Nearest
from transduce.cli.stream import CHUNK_LINES, ModelFolders, load_translator
from transduce.cli.tags import warn_about_tags
from transduce.cli.work_folder import open_work
from transduce.console import counted, printable
from transduce.data.disk import error_at
from transduce.data.overlap import SAME_LANGUAGE, frequent_words
from transduce.data.text import empty, read_lines
from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DecodingOptions

if TYPE_CHECKING:
    from transduce.cli.stream import AnyTranslator

TRANSLATIONS = "translations"
COMPARED = 100  # lines that show whether the translations are in the language of the text


def work_folder(out: Path, name: str = "") -> Path:
    """Return the folder of the translations that the job needs for its output `out`. name: of several folders."""
    return out.with_name(f"{out.name}{name}.translating")


def translate_file(
    models: ModelFolders,
    source: Path,
    folder: Path,
    options: DecodingOptions,
    nearest: Nearest | None = None,
    *,
    tag_remedy: str,
) -> Path:
    """Translate each line of `source`, and return the file with the translations. It is in `folder`.

    nearest: what selects one of n-best outputs; None takes the best. tag_remedy: of `load_for`.
    If the folder has translations of the same text by the same models and options, only the others are made.
    Raises UserError if it has other ones, and for a text without a line or with bytes that are not UTF-8.
    """
    n_lines = line_count(source)
    inputs = [*models.folders, source, *([nearest.path] if nearest else [])]
    how = [models.precision, asdict(options), nearest and nearest.metric]
    with open_work(folder, inputs, how):
        path = folder / TRANSLATIONS
        with path.open("ab+") as file:
            n_done = _complete_lines(file)
            if n_done < n_lines:
                translator = load_for(source, models, options, tag_remedy)
                _translate_rest(translator, source, file, (n_done, n_lines), options, nearest)
                name_other_direction(islice(read_lines(path), COMPARED), islice(read_lines(source), COMPARED), source)
    return path


def load_for(source: Path, models: ModelFolders, options: DecodingOptions, tag_remedy: str) -> "AnyTranslator":
    """Load the models, and warn about the lines of `source` without a tag of them, before hours of work.

    tag_remedy: the remedy of the warning, in words. Raises UserError for a tag that the models do not have.
    """
    translator = load_translator(models, options)
    warn_about_tags(read_lines(source), printable(source), translator.tokenizer, tag_remedy, options.tag)
    return translator


def name_other_direction(translations: Iterable[str], lines: Iterable[str], source: Path) -> None:
    """Print a line if the translations of lines of `source` look as if they were in its language."""
    if (share := frequent_words(translations, lines)) > SAME_LANGUAGE:
        print(
            f"transduce: {printable(source)}: {share:.0%} of the words of its translations are its own most frequent "
            "words, so both look like one language; expected a model that translates from the language of the text",
            file=sys.stderr,
        )


def line_count(source: Path) -> int:
    """Return the number of lines. Raises UserError for a text that cannot be translated, before hours of work."""
    n_lines = sum(1 for _ in read_lines(source))
    if not n_lines:
        raise empty(f"{source}", f"{source}")
    return n_lines


def _complete_lines(file: BinaryIO) -> int:
    """Return the number of complete lines. Remove what follows the last one."""
    file.seek(0)
    n_lines, size = 0, 0
    for line in file:
        if line.endswith(b"\n"):
            n_lines += 1
            size += len(line)
    file.truncate(size)
    file.seek(size)
    return n_lines


def _translate_rest(
    translator: "AnyTranslator",
    source: Path,
    file: BinaryIO,
    numbers: tuple[int, int],
    options: DecodingOptions,
    nearest: Nearest | None,
) -> None:
    """Append the translations of all lines from number `numbers[0]` on, counted from 0, to `numbers[1]`."""
    watch = DoubtWatch(printable(source), numbers[0])
    print(f"translating {counted(numbers[1], 'line')}, done before: {numbers[0]:,}", file=sys.stderr)
    with JobProgress("translating", numbers[1], numbers[0]) as progress:
        chunks = _translations(translator, source, numbers[0], options)
        for translations in nearest.first(chunks, f"{source}", numbers[0]) if nearest else chunks:
            for number, translation in enumerate(translations, start=watch.count + 1):
                if translation.problem:
                    print(f"transduce: {printable(source)}:{number}: {translation.problem}", file=sys.stderr)
            watch.see(translations)
            content = "".join(f"{translation.line}\n" for translation in translations).encode()
            try:
                file.write(content)
                file.flush()
            except OSError as problem:
                raise error_at(problem, f"writing {len(content):,} bytes", file.name) from problem
            progress.advance(len(translations))
    watch.end()


def _translations(
    translator: "AnyTranslator", source: Path, first: int, options: DecodingOptions
) -> Iterator[list[Translation]]:
    lines = islice(read_lines(source), first, None)
    while chunk := [*islice(lines, CHUNK_LINES)]:
        yield translator.translate(chunk, options=options, first_number=first)
        first += len(chunk)
