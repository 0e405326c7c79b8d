"""`transduce train`: train a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

from transduce.data.corpora import Corpus, parse


def _corpora(kind: Any, tokens: Sequence[Token]) -> list[Corpus]:
    """What each --train is followed by: SRC TGT [WEIGHT], or FILE [WEIGHT]."""
    given: list[list[str]] = []
    for token in tokens:
        if token.index == 0:  # the first one after another --train
            given.append([])
        given[-1].append(token.value)
    return [parse(words) for words in given]


def train(
    *,
    recipe: str,
    train: Annotated[list[Corpus], Parameter(converter=_corpora, consume_multiple=True, accepts_keys=False)],
    valid: tuple[Path, Path],
    out: Path,
    settings: Annotated[list[str] | None, Parameter(name="--set")] = None,
    start_from: Annotated[Path | None, Parameter(name="--from")] = None,
    resume: bool = False,
    allow_change: list[str] | None = None,
    tensorboard: bool = False,
    shard: bool = False,
    rank_timeout: float | None = None,
) -> None:
    r"""Train a model on two line-aligned text files. The model to use is then in OUT/model.

    Parameters
    ----------
    recipe
        A name, such as small or vaswani2017-base (a wrong one lists them all), or FILE.py:FUNCTION.
    train
        SRC TGT [WEIGHT]: source and target text to learn from, UTF-8, one sentence per line, line by line translations
        of each other. Or FILE [WEIGHT], with both sides in tab-separated columns or parquet. May be repeated; a weight
        of 2 takes each pair twice an epoch, 0.5 each in every other. gz, xz and zst files are read as they are.
    valid
        Source and target text to judge by while training.
    out
        Folder of the run: configuration, tokenizer, checkpoints, log.jsonl, model.
    settings
        Overrides a setting: section.key=value. May be repeated.
    start_from
        A model folder to go on from, on other data: its weights, tokenizer and architecture are kept.
    resume
        Go on with the run in OUT from its newest checkpoint.
    allow_change
        With --resume, a setting in which the run may differ from what it was begun with: train.max_steps,
        train.accumulate, train.log_every_steps, train.keep_checkpoints or train.patience. May be repeated.
    tensorboard
        Write TensorBoard events to OUT/tensorboard as well.
    shard
        With torchrun: let each process keep only a part of the model and its optimizer, for what does not fit on one.
    rank_timeout
        Under torchrun, the seconds for which a rank waits for the others before it takes them for lost. Default: 120.

    Examples
    --------
    transduce train --recipe small --train train.en train.de \
        --valid valid.en valid.de --out run
    transduce train --recipe small --train train.en train.de \
        --valid valid.en valid.de --out run --resume
    transduce train --recipe small --train train.en train.de \
        --valid valid.en valid.de --out run --resume \
        --set train.max_steps=20000 --allow-change train.max_steps
    transduce train --recipe small --train clean.en clean.de 2 \
        --train web.tsv.gz 0.5 --valid valid.en valid.de --out run
    transduce train --recipe vaswani2017-base --set train.accumulate=8 \
        --train train.en train.de --valid valid.en valid.de --out run
    """
    from transduce.train import train as run
    from transduce.training.distributed import process_group

    with process_group(rank_timeout):
        run(
            recipe,
            settings=settings or [],
            train=train,
            valid=valid,
            out=out,
            resume=resume,
            allow_change=allow_change or [],
            start_from=start_from,
            tensorboard=tensorboard,
            shard=shard,
        )
