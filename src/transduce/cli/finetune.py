"""`transduce finetune`: a classifier from a pre-trained encoder."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from transduce.cli.options import Flag, Integer, with_device
from transduce.cli.train import AllowChangeOption, RankTimeoutOption, SettingsOption, TrackerOption, corpora_of
from transduce.data.corpora import Corpus
from transduce.errors import UserError

RECIPE = "bert-classifier"

EncoderArgument = Annotated[
    Path,
    Parameter(
        help="Folder of a pre-trained BERT: in Hugging Face's form with tokenizer.json, or RUN/model of the recipe "
        "bert-small."
    ),
]
LabelledTextOption = Annotated[
    list[Corpus],
    Parameter(
        converter=corpora_of,
        consume_multiple=True,
        accepts_keys=False,
        help="SENTENCES LABELS [WEIGHT]: two files in UTF-8, a sentence and its label per line. Or FILE [WEIGHT]: one "
        "table with both, as TSV, CSV or parquet. May be compressed as gz, xz or zst. WEIGHT 2 takes each sentence "
        "twice per epoch. May be repeated.",
    ),
]
LabelledValidOption = Annotated[
    list[Path],
    Parameter(
        consume_multiple=True,
        help="SENTENCES LABELS: to evaluate on during training. Its labels must occur in the training text.",
    ),
]


@with_device
def finetune(
    folder: EncoderArgument,
    *,
    train: LabelledTextOption,
    valid: LabelledValidOption,
    out: Path,
    settings: SettingsOption = None,
    seed: Annotated[
        int | None,
        Integer,
        Parameter(help="Seed of the new head, of dropout and of the order of the sentences.", show_default="1"),
    ] = None,
    resume: Flag = False,
    allow_change: AllowChangeOption = None,
    tracker: TrackerOption = None,
    rank_timeout: RankTimeoutOption = None,
) -> None:
    r"""Train a classifier of sentences, from a pre-trained encoder. The classifier is in OUT/model.

    It is `transduce train --recipe bert-classifier --from FOLDER`, whose settings apply.

    Parameters
    ----------
    out
        Folder of the run: configuration, tokenizer, checkpoints, log.jsonl, model.
    resume
        Resume the run in OUT from its newest checkpoint.

    Examples
    --------
    transduce finetune bert/model --train sentences.txt labels.txt \
        --valid valid.txt valid-labels.txt --out run
    transduce finetune bert/model --train sentences.txt labels.txt \
        --valid valid.txt valid-labels.txt --out run --set train.lr_factor=0.01
    """
    from transduce.storage.run_request import TrainRequest
    from transduce.train import train as run
    from transduce.training.distributed import process_group

    if not folder.is_dir():
        raise UserError(f"{folder}: expected the folder of a pre-trained encoder; check the path")
    request = TrainRequest(
        RECIPE,
        train,
        valid,
        out,
        [*(settings or []), *([] if seed is None else [f"train.seed={seed}"])],
        resume=resume,
        allow_change=allow_change or [],
        start_from=folder,
        tracker=tracker,
    )
    with process_group(rank_timeout):
        run(request)
