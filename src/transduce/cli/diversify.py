"""`transduce diversify`: add translations of the training text to it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.cli.clean import check_outputs
from transduce.cli.options import with_device
from transduce.console import counted, printable
from transduce.errors import UserError

TranslationsOption = Annotated[list[Path] | None, Parameter(show_default=False)]


@with_device
def diversify(
    src: Path,
    tgt: Path,
    *,
    forward: TranslationsOption = None,
    backward: TranslationsOption = None,
    held_out: list[tuple[Path, Path]],
    output: tuple[Path, Path],
) -> None:
    r"""Add translations of a training text to it, as data diversification does.

    The output has each pair of the text, and after it the new pairs. A new pair is left out if one side is blank or
    equals a held-out line, if it repeats an earlier pair of its line, or if its sides are equal. Case and tokenization
    count: prepare all texts in the same way. The command prints the counts. After an interruption, the same command
    continues with the translations of a model.

    Parameters
    ----------
    src
        Source side of the training text, without tags.
    tgt
        Target side of the training text.
    forward
        Translations of SRC, line by line, or the folder of a model that makes them. May be repeated.
    backward
        Translations of TGT, line by line, or the folder of a model that makes them. May be repeated.
    held_out
        Source and target text for validation or tests. May be repeated.
    output
        The two files to write.

    Examples
    --------
    transduce diversify train.en train.de --forward train.forward.de \
        --backward train.backward.en --held-out valid.en valid.de \
        --held-out test.en test.de --output diverse.en diverse.de
    transduce diversify train.en train.de --forward forward/model \
        --backward backward/model --held-out test.en test.de \
        --output diverse.en diverse.de
    """
    from transduce.cleaning.diversification import Diversification, HeldOutSentences
    from transduce.storage.atomic_folder import remove

    translations = [*(forward or []), *(backward or [])]
    if not translations:
        raise UserError("--forward: expected a file with translations; give --forward, --backward or both")
    held_out_paths = [path for pair in held_out for path in pair]
    check_outputs({"--output": output}, [src, tgt, *translations, *held_out_paths])
    held_out_lines = HeldOutSentences.read(held_out)
    of_src, of_tgt = ([path for path in paths or [] if not path.is_dir()] for paths in (forward, backward))
    Diversification(src, tgt, of_src, of_tgt, held_out_lines).check()  # before a model makes the others
    folders: list[Path] = []
    files = [_translated(path, src, output[1], folders) for path in forward or []]
    back = [_translated(path, tgt, output[0], folders) for path in backward or []]
    text = Diversification(src, tgt, files, back, held_out_lines)
    n_pairs = _write(text.pairs(), output)
    _print_counts(n_pairs, translations, text.counts)
    for folder in folders:
        remove(folder)


def _print_counts(n_pairs: int, names: Sequence[Path], counts: Sequence[Mapping[str, int]]) -> None:
    n_new = sum(of_file["kept"] for of_file in counts)
    print(f"{counted(n_pairs, 'pair')}: {n_pairs - n_new:,} of the text, {n_new:,} new")
    for name, of_file in zip(names, counts, strict=True):
        print(f"{printable(name)}: " + ", ".join(f"{count:,} {outcome}" for outcome, count in of_file.items()))


def _write(pairs: Iterable[tuple[str, str]], output: tuple[Path, Path]) -> int:
    """Write the sides of some pairs to two files. Return the number of pairs."""
    from transduce.cli.output import output_file

    n_pairs = 0
    with output_file(output[0]) as src_file, output_file(output[1]) as tgt_file:
        for source, target in pairs:
            n_pairs += 1
            src_file.write(source.encode() + b"\n")
            tgt_file.write(target.encode() + b"\n")
    return n_pairs


def _translated(path: Path, source: Path, out: Path, folders: list[Path]) -> Path:
    """Return the file with translations of `source`: `path`, or what the model in the folder `path` makes.

    folders: gets the folder of such a file.
    """
    from transduce.cli.file_translation import translate_file, work_folder
    from transduce.cli.stream import ModelFolders
    from transduce.decoding.options import DEFAULTS

    if not path.is_dir():
        return path
    folders.append(work_folder(out, f".{len(folders) + 1}"))
    remedy = "give the output of transduce translate --tag instead of the model"
    return translate_file(ModelFolders([path]), source, folders[-1], DEFAULTS, tag_remedy=remedy)
