"""`transduce check`: report what a corpus holds and which lines look wrong."""

from pathlib import Path

from transduce.cli.output import print_json
from transduce.data.corpora import Corpus
from transduce.errors import UserError


def check(
    *corpus: Path,
    valid: tuple[Path, Path] | None = None,
    tokenizer: Path | None = None,
    first: int = 5,
    json: bool = False,
) -> None:
    """Look through a corpus before training on it: what it holds, and which lines look wrong. It changes nothing.

    The exit code is 2 if the text cannot be trained on, and 0 whatever else is found.

    Parameters
    ----------
    corpus
        SRC TGT, or FILE, as for train.
    valid
        Source and target text to judge by: are any of its lines in the corpus?
    tokenizer
        A model folder or a tokenizer.json: which characters does it split into bytes?
    first
        How many lines of each finding to name.
    json
        Print one JSON object.

    Examples
    --------
    transduce check train.en train.de
    transduce check train.en train.de --valid valid.en valid.de
    transduce check web.tsv.gz --tokenizer run/model --json
    """
    from transduce.check import check as look
    from transduce.check import show, verdict
    from transduce.data.tokenizer import Tokenizer

    if not 1 <= len(corpus) <= 2:
        raise UserError(f"{len(corpus)} files given; expected SRC TGT, or one FILE that holds both sides")
    if first < 0:
        raise UserError(f"--first {first}: expected 0 or more")
    rules = None
    if tokenizer is not None:
        rules = Tokenizer.load(tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer)
    both = Corpus(corpus[0], corpus[1] if len(corpus) > 1 else None)
    checked = look(both, valid, tokenizer=rules, first=first)
    if json:
        print_json(checked)
    else:
        print(show(checked))
    if not checked.trainable:
        raise UserError(verdict(checked))
    if not json:
        print(verdict(checked))
