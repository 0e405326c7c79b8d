"""`transduce diversify`: add translations of the training text to it."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.console import printable
from transduce.errors import UserError

Files = Annotated[list[Path] | None, Parameter(show_default=False)]


def diversify(
    src: Path,
    tgt: Path,
    *,
    forward: Files = None,
    backward: Files = None,
    held_out: list[tuple[Path, Path]],
    output: tuple[Path, Path],
) -> None:
    r"""Add translations of a training text to it, as data diversification does.

    The output has each pair of the text, and after it the new pairs. A new pair is left out if one side is blank or
    equals a held-out line, if it repeats an earlier pair of its line, or if its sides are equal. Case and tokenization
    count: prepare all texts in the same way. The command prints the counts.

    Parameters
    ----------
    src
        Source side of the training text, without tags.
    tgt
        Target side of the training text.
    forward
        Translations of SRC, line by line. May be repeated.
    backward
        Translations of TGT, line by line. May be repeated.
    held_out
        Source and target text for validation or tests. May be repeated.
    output
        The two files to write.

    Examples
    --------
    transduce diversify train.en train.de --forward train.forward.de \
        --backward train.backward.en --held-out valid.en valid.de \
        --held-out test.en test.de --output diverse.en diverse.de
    """
    from transduce.cleaning.diversification import Diversification, HeldOut
    from transduce.cli.output import check_output, output_file

    translations = [*(forward or []), *(backward or [])]
    if not translations:
        raise UserError("--forward: expected a file with translations; give --forward, --backward or both")
    for path in output:
        for source in (src, tgt, *translations, *(name for pair in held_out for name in pair)):
            check_output(path, source)
    if output[0].absolute() == output[1].absolute():
        raise UserError(f"--output={output[0]} {output[1]}: expected two files; give another name to one of them")
    text = Diversification(src, tgt, forward or [], backward or [], HeldOut.read(held_out))
    n_pairs = 0
    with output_file(output[0]) as src_file, output_file(output[1]) as tgt_file:
        for source, target in text.pairs():
            src_file.write(source.encode() + b"\n")
            tgt_file.write(target.encode() + b"\n")
            n_pairs += 1
    n_new = sum(counts["kept"] for counts in text.counts)
    print(f"{n_pairs:,} pairs: {n_pairs - n_new:,} of the text, {n_new:,} new")
    for name, counts in zip(translations, text.counts, strict=True):
        print(f"{printable(name)}: " + ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items()))
