"""`transduce backtranslate`: make training pairs from text in only the target language."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from transduce.cli.clean import (
    WithoutOption,
    check_helpers,
    check_outputs,
    check_rules,
    check_writes,
    find_bad_pairs,
    output_paths,
    write_clean,
)
from transduce.cli.options import Flag, ModelsArgument, with_device
from transduce.cli.translate import AnyPrecisionOption, EngineOption, OneOutput
from transduce.console import counted, in_words, printable
from transduce.errors import UserError

if TYPE_CHECKING:
    from transduce.cli.stream import ModelFolders
    from transduce.decoding.options import DecodingOptions

AllOptions = Annotated[OneOutput, Parameter(name="*")]
SAMPLE_LINES = 100  # that a dry run translates
EXAMPLES = 5
TAG_REMEDY = "add --tag, or put one before each line"


@with_device
def backtranslate(
    *models: ModelsArgument,
    input: Path,
    out: tuple[Path, Path] | None = None,
    source_tag: str | None = None,
    test: list[tuple[Path, Path]] | None = None,
    without: WithoutOption = None,
    dry_run: Flag = False,
    decoding: AllOptions = OneOutput(),  # noqa: B008
    precision: AnyPrecisionOption = None,
    engine: EngineOption = None,
) -> None:
    r"""Make training pairs from text in only the target language.

    A model of the other direction translates the text, and the rules of `transduce clean` drop bad pairs. The result is
    a corpus for `transduce train`. After an interruption, the same command continues.

    Parameters
    ----------
    input
        Text in the target language, one sentence on each line.
    out
        The two files to write: the translations, and the lines of the text that they belong to.
    source_tag
        A word that is put before each translation, such as <bt>, so that the model can tell these pairs from others.
    test
        Source and target text for tests or validation, of which near copies are dropped. May be repeated.
    without
        A rule of `transduce clean` that drops nothing. May be repeated.
    dry_run
        Translate 100 lines of the text, print some, and estimate the time. Write no file.

    Examples
    --------
    transduce backtranslate backward/model --input more.de \
        --out back.en back.de --test test.en test.de
    transduce backtranslate backward/model --input more.de --dry-run
    transduce backtranslate backward/model --input more.de \
        --out back.en back.de --top-k 10 --source-tag "<bt>"
    """
    from transduce.cli.file_translation import translate_file, work_folder
    from transduce.cli.stream import ModelFolders
    from transduce.decoding.options import DecodingOptions
    from transduce.storage.atomic_folder import remove

    tests = test or []
    check_rules(without or [])
    check_writes(out, dry_run)
    _check_tag(source_tag)
    folders = ModelFolders(models, precision, engine)
    options = DecodingOptions.from_arguments(**asdict(decoding))
    if out is None:
        return _print_sample(folders, input, options)
    paths = output_paths(out)
    check_outputs({"--out": paths}, [input, *(path for pair in tests for path in pair)])
    check_helpers(tests)
    folder = work_folder(out[0])
    translations = translate_file(folders, input, folder, options, tag_remedy=TAG_REMEDY)
    _clean((translations, input), tests, without or [], paths, source_tag)
    remove(folder)


def _clean(
    pair: tuple[Path, Path],
    tests: Sequence[tuple[Path, Path]],
    without: Sequence[str],
    paths: Sequence[Path],
    tag: str | None,
) -> None:
    """Write the pairs that `transduce clean` keeps. After an interruption, the next call continues."""
    from transduce.cli.work_folder import keep_work
    from transduce.data.corpora import Corpus

    corpus = Corpus(*pair)
    inputs = [path for texts in (pair, *tests) for path in texts]
    with keep_work(paths[0], "cleaning", inputs, without) as work:
        write_clean(corpus, find_bad_pairs(corpus, tests, without, work=work), paths, tag=tag)


def _check_tag(source_tag: str | None) -> None:
    if source_tag is not None and source_tag.split() != [source_tag]:
        raise UserError(f"--source-tag={source_tag!r}: expected one word; give a word such as <bt>")


def _print_sample(models: "ModelFolders", source: Path, options: "DecodingOptions") -> None:
    """Translate some lines from all parts of the text, and print examples and the time that all lines would take."""
    from transduce.cli.file_translation import line_count, load_for, name_other_direction
    from transduce.data.text import read_lines

    n_lines = line_count(source)
    step = max(1, n_lines // SAMPLE_LINES)
    lines = [line for number, line in enumerate(read_lines(source)) if number % step == 0][:SAMPLE_LINES]
    translator = load_for(source, models, options, TAG_REMEDY)
    start = time.monotonic()
    translations = translator.translate(lines, options=options)
    minutes = (time.monotonic() - start) / len(lines) * n_lines / 60
    for line, translation in list(zip(lines, translations, strict=True))[:EXAMPLES]:
        print(f"{printable(translation.line)}\n    {printable(line)}")
    print(f"{counted(n_lines, 'line')}: about {in_words(minutes)} for their translation")
    name_other_direction((translation.line for translation in translations), lines, source)
