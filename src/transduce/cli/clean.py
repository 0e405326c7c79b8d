"""`transduce clean`: write a corpus without the pairs that are no translations."""

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from transduce.cli.options import Flag
from transduce.console import printable
from transduce.errors import UserError, nearest

if TYPE_CHECKING:
    from transduce.cleaning.clean import Cleaning
    from transduce.data.corpora import Corpus

WithoutOption = Annotated[list[str] | None, Parameter(show_default=False)]


def clean(
    src: Path,
    tgt: Path,
    *,
    out: tuple[Path, Path] | None = None,
    dropped: Path | None = None,
    report: Path | None = None,
    test: list[tuple[Path, Path]] | None = None,
    without: WithoutOption = None,
    backward: Path | None = None,
    dry_run: Flag = False,
) -> None:
    """Write a corpus without the pairs that are no translations.

    The rules are what `transduce check` finds, swapped sides, other languages (with transduce[detect]), sides that are
    no full translation, and copies of test lines. The kept lines do not change by a byte. A file lists the others.
    After an interruption, the same command continues.

    Parameters
    ----------
    src
        Source text.
    tgt
        Its translations, line by line.
    out
        The two files to write.
    dropped
        The list of the dropped pairs, in JSON lines. Default: the first of the two files with .dropped.jsonl.
    report
        A page with counts and examples for each rule.
    test
        Source and target text for tests or validation, of which near copies are dropped. May be repeated.
    without
        A rule that drops nothing. May be repeated.
    backward
        A model that translates from the target language. Of 100 pairs, drop the 5 whose source it finds least likely.
    dry_run
        Print what the rules would drop, and write no file except the report.

    Examples
    --------
    transduce clean train.en train.de --out clean.en clean.de
    transduce clean train.en train.de --dry-run --test test.en test.de
    """
    from transduce.cli.work_folder import keep_work
    from transduce.data.corpora import Corpus

    tests = test or []
    inputs = [src, tgt, *(path for pair in tests for path in pair)]
    check_rules(without or [])
    check_writes(out, dry_run)
    paths = [] if out is None else output_paths(out, dropped)
    check_outputs({"--out": paths[:2], "--dropped": paths[2:], "--report": [report] if report else []}, inputs)
    check_helpers(tests, backward)
    corpus = Corpus(src, tgt)
    inputs += [backward] if backward else []
    with keep_work(paths[0], "cleaning", inputs, without) if paths else nullcontext() as work:
        write_clean(corpus, find_bad_pairs(corpus, tests, without or [], backward, work), paths, report)


def find_bad_pairs(
    corpus: "Corpus",
    tests: Sequence[tuple[Path, Path]],
    without: Sequence[str],
    backward: Path | None = None,
    work: Path | None = None,
) -> "Cleaning":
    """Return the rules that drop pairs. backward: as in `drop_unlikely`. The others are as in `find_faults`."""
    from transduce.cleaning.clean import find_faults

    cleaning = find_faults(corpus, tests, without, _print_step, work)
    if backward is None or "unlikely" in without:
        return cleaning
    from transduce.cleaning.unlikely import drop_unlikely

    return drop_unlikely(cleaning, corpus, backward, work)


def write_clean(
    corpus: "Corpus",
    cleaning: "Cleaning",
    paths: Sequence[Path],
    report: Path | None = None,
    tag: str | None = None,
) -> None:
    """Write the kept pairs and the dropped ones, and print the counts.

    paths: source, target, list of the dropped pairs; empty: write none of them. tag: a word to put before each kept
    source.
    """
    from transduce.cleaning.clean_report import Examples, summary, write_report
    from transduce.cli.output import output_file

    with ExitStack() as stack:
        files = [stack.enter_context(output_file(path)) for path in paths]
        examples = Examples.write(corpus, cleaning, files, f"{tag} " if tag else "")
    if report is not None:
        write_report(report, corpus, cleaning, examples)
    print(summary(cleaning))
    if paths:
        print(f"the dropped pairs: {printable(paths[2])}")


def _print_step(step: str) -> None:
    print(step, file=sys.stderr)


def output_paths(out: tuple[Path, Path], dropped: Path | None = None) -> list[Path]:
    """Return the files to write: source, target, and the list of the dropped pairs."""
    return [*out, dropped or out[0].with_name(f"{out[0].name}.dropped.jsonl")]


def check_writes(out: tuple[Path, Path] | None, dry_run: bool) -> None:
    """Raise UserError unless there are either files to write, or --dry-run."""
    if (out is None) != dry_run:
        raise UserError("--out: expected two files to write, or --dry-run to write none; give one of them")


def check_rules(names: Sequence[str]) -> None:
    """Raise UserError for a name that is no rule."""
    from transduce.cleaning.clean import RULES

    for rule in names:
        if rule not in RULES:
            remedy = nearest(rule, RULES) or f"; the rules are {', '.join(RULES)}"
            raise UserError(f"--without={rule}: expected the name of a rule{remedy}")


def check_helpers(tests: Sequence[tuple[Path, Path]], backward: Path | None = None) -> None:
    """Raise UserError for texts or a model that the rules could not use, before hours of work."""
    from transduce.data.text import read_pairs
    from transduce.translate import load

    for paths in tests:
        deque(read_pairs(*paths), maxlen=0)
    if backward is not None:
        load(backward)


def check_outputs(outputs: Mapping[str, Sequence[Path]], sources: Sequence[Path]) -> None:
    """Raise UserError for outputs that exist, that are inputs, or that are one file.

    outputs: the files to write, by the option that names them.
    """
    from transduce.cli.output import check_output

    paths = [path for of_option in outputs.values() for path in of_option]
    for option, of_option in outputs.items():
        for path in of_option:
            for source in sources:
                check_output(path, source, option)
            if path.exists():
                raise UserError(f"{option}={path}: expected no file with this name; delete it, or give another name")
    if len({path.absolute() for path in paths}) < len(paths):
        names = " and ".join(option for option, of_option in outputs.items() if of_option)
        raise UserError(f"{names}={' '.join(map(str, paths))}: expected different files; give other names")
