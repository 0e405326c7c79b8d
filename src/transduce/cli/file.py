"""`transduce translate --file`: a file in a format, such as subtitles, with its texts translated."""

import io
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from transduce.cleaning.progress import JobProgress
from transduce.cli.constraints import ConstraintOptions
from transduce.cli.doubts import DoubtWatch, text_name
from transduce.cli.output import check_output, interrupt_named, output_file
from transduce.cli.stream import Form, ModelFolders, load_with_terms, translations
from transduce.console import counted, printable
from transduce.data.compression import open_file
from transduce.decoding.options import DecodingOptions
from transduce.errors import UserError
from transduce.serve.documents import Part, filled, lines_of, with_alignment
from transduce.serve.formats.files import MOST_FILE_BYTES, extension_of, read_file

LINE_BREAK = "\u2028"  # a line break within a line of text, which is translated line by line


def refuse_with_file(file: Path, values: Mapping[str, object]) -> None:
    """Raise UserError for options, by name, that have no meaning for a file."""
    for name, value in values.items():
        if value:
            raise UserError(f"{name}: must not be set with --file={file}; leave one of the two out")


def translate_file(
    models: ModelFolders,
    source: Path,
    target: Path | None,
    options: DecodingOptions,
    form: Form,
    constraints: ConstraintOptions,
) -> None:
    """Write `source` into `target`, with its texts translated.

    Raises UserError for a file that cannot be read in the format of its extension, before the model is loaded.
    """
    form.check(options)
    extension = extension_of(source.name, f"--file={source}")
    if target is None:
        raise UserError(f"--file={source}: expected --output with it; add --output NAME.{extension}")
    if target.suffix.lower() != source.suffix.lower():
        raise UserError(f"--output={target}: expected a name that ends with {source.suffix}, as --file; correct it")
    check_output(target, source)
    name = printable(source)
    with interrupt_named(target):
        with open_file(source) as stream:
            file = read_file(stream.read(MOST_FILE_BYTES + 1), extension, name)
        parts = lines_of(file.document)
        pieces = _translations(models, parts, name, options, form, constraints) if parts else []
        content = file.write(filled(file.document, pieces))
    with output_file(target) as output:
        output.write(content)
    print(f"transduce: {name}: {counted(len(parts), 'text')} translated", file=sys.stderr)


def _translations(
    models: ModelFolders,
    parts: Sequence[Part],
    name: str,
    options: DecodingOptions,
    form: Form,
    constraints: ConstraintOptions,
) -> list[str]:
    """Return what takes the place of each part. A text without a translation stays, and is named."""
    translator, terms = load_with_terms(models, options, form, constraints)
    options = with_alignment(options, parts, translator)
    texts = [re.sub(r"[\r\n]", " ", part.line) for part in parts]
    watch = DoubtWatch(name, texts=texts)
    lines = io.BytesIO("".join(re.sub(r"[\r\n]", LINE_BREAK, part.line) + "\n" for part in parts).encode())
    pieces: list[str] = []
    with JobProgress("translating", len(parts), 0) as progress:
        for chunk in translations(translator, lines, name, options, constraints, terms):
            watch.see(chunk)
            for translation in chunk:
                if problem := form.problem(translation):
                    place = text_name(len(pieces) + 1, texts[len(pieces)])
                    print(f"transduce: {name}: {place}: {problem}", file=sys.stderr)
                text = translation.text.replace(LINE_BREAK, "\n")
                pieces.append(parts[len(pieces)].write(text, translation.alignment))
            progress.advance(len(chunk))
    watch.end()
    return pieces
