"""`transduce check`: report the contents of a corpus, and the lines that look wrong."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.cli.options import Integer, JsonObjectOption
from transduce.cli.output import print_json
from transduce.data.corpora import Corpus
from transduce.errors import UserError


def check(
    *corpus: Annotated[Path, Parameter(required=True)],
    valid: tuple[Path, Path] | None = None,
    tokenizer: Path | None = None,
    first: Annotated[int, Integer] = 5,
    json: JsonObjectOption = False,
) -> None:
    """Check a corpus before training.

    The report has the contents of the corpus, and the lines that look wrong. The command changes no file. The exit
    code is 2 if no model can be trained on the text, and 0 otherwise.

    Parameters
    ----------
    corpus
        SRC TGT, two line-aligned files. Or FILE, a table with both sides. `transduce train` takes the same formats.
    valid
        Source and target text for validation. Report which of its lines are also in the corpus, and whether its sides
        are exchanged.
    tokenizer
        A model folder or a tokenizer.json. Report which characters this tokenizer splits into bytes.
    first
        Number of lines to name for each finding.

    Examples
    --------
    transduce check train.en train.de
    transduce check train.en train.de --valid valid.en valid.de
    transduce check web.tsv.gz --tokenizer run/model --json
    """
    from transduce.cleaning.check import check as check_corpus
    from transduce.cleaning.corpus_report import report_text, verdict
    from transduce.data.tokenizer import Tokenizer

    if not 1 <= len(corpus) <= 2:
        names = " ".join(map(str, corpus))
        raise UserError(f"CORPUS={names}: expected SRC TGT, or one FILE with both sides; leave out the other files")
    if first < 0:
        raise UserError(f"--first={first}: expected at least 0")
    rules = None
    if tokenizer is not None:
        rules = Tokenizer.load(tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer)
    files = Corpus(corpus[0], corpus[1] if len(corpus) > 1 else None)
    result = check_corpus(files, valid, tokenizer=rules, first=first)
    if json:
        print_json(result)
    else:
        print(report_text(result))
    if not result.trainable:
        raise UserError(verdict(result))
    if not json:
        print(verdict(result))
