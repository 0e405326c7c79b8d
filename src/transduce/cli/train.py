"""`transduce train`: train a model."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, Token

from transduce.cli.options import Flag, with_device
from transduce.data.corpora import Corpus, parse
from transduce.errors import UserError


def corpora_of(kind: object, tokens: Sequence[Token]) -> list[Corpus]:
    """Return a corpus for each --train, whose words are SRC TGT [WEIGHT], or FILE [WEIGHT]."""
    groups: list[list[str]] = []
    for token in tokens:
        if token.index == 0:  # the first word after a --train
            groups.append([])
        groups[-1].append(token.value)
    return [parse(words) for words in groups]


RunFolderOption = Annotated[
    Path,
    Parameter(
        help="Folder of the run: configuration, tokenizer, checkpoints, log.jsonl. The trained model is in OUT/model."
    ),
]
RecipeOption = Annotated[
    str,
    Parameter(
        help="Name of a recipe, such as auto or vaswani2017-base, or FILE.py:FUNCTION. `transduce recipes` lists the "
        "names. auto chooses model, vocabulary and steps for the text and this machine."
    ),
]
CorporaOption = Annotated[
    list[Corpus],
    Parameter(
        converter=corpora_of,
        consume_multiple=True,
        accepts_keys=False,
        help="SRC TGT [WEIGHT]: two files in UTF-8 with one sentence per line; each line of TGT translates the same "
        "line of SRC. Or FILE [WEIGHT]: one table with both sides, as TSV, CSV or parquet; for a language model, a "
        "text. Text files may be compressed as gz, xz or zst. WEIGHT 2 takes each pair twice per epoch, 0.5 takes it "
        "every second epoch. May be repeated.",
    ),
]
ValidOption = Annotated[
    list[Path] | None,
    Parameter(
        consume_multiple=True,
        help="SRC TGT: source and target text for the validation during training, or one table with both, as in "
        "--train. For a language model, one FILE, which is needed. Without it, 2 % of the pairs for translation are "
        "held out, and at most 2,000.",
    ),
]
MinutesOption = Annotated[
    float | None,
    Parameter(
        help="Time of the whole training on this machine. A short trial finds the number of steps. With --resume, time "
        "to add to a finished run."
    ),
]
HoursOption = Annotated[float | None, Parameter(help="The same in hours.")]
SettingsOption = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        help="Override a setting of the recipe: section.key=value. `transduce recipes NAME` lists the settings. May be "
        "repeated.",
    ),
]
StartFromOption = Annotated[
    Path | None,
    Parameter(
        name="--from",
        help="A model folder to fine-tune. The new model keeps its tokenizer and architecture, except its depths if "
        "--set gives others.",
    ),
]
OldValidOption = Annotated[
    list[Path] | None,
    Parameter(
        consume_multiple=True,
        help="With --from, validation text of the old model. Each evaluation shows whether the new one is worse on it.",
    ),
]
ResumeOption = Annotated[Flag, Parameter(help="Resume the run in OUT from its newest checkpoint.")]
AllowChangeOption = Annotated[
    list[str] | None,
    Parameter(
        help="With --resume, a setting that may differ from the run in OUT: one that changes the weights of no step, "
        "such as train.max_steps, train.patience, train.use or search.beam_size. An error names all of them. May be "
        "repeated."
    ),
]
TrackerOption = Annotated[
    Literal["tensorboard", "trackio"] | None,
    Parameter(
        help="Also give all reports to a program that draws curves. TensorBoard's events are in OUT/tensorboard."
    ),
]
ShardOption = Annotated[
    Flag,
    Parameter(
        help="With torchrun, split the model and the optimizer state over the processes, for models that do not fit on "
        "one device."
    ),
]
RankTimeoutOption = Annotated[
    float | None,
    Parameter(help="With torchrun, seconds until a silent rank counts as lost.", show_default="120"),
]


def minutes_of(minutes: float | None, hours: float | None) -> float | None:
    """Return the time of a training in minutes. Raises UserError if both are given, or one is not over 0."""
    if minutes is not None and hours is not None:
        raise UserError(f"--hours={hours:g}: must not be set with --minutes={minutes:g}; leave one of them out")
    for name, value in (("--minutes", minutes), ("--hours", hours)):
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{name}={value:g}: expected a number over 0; for example --minutes 60")
    return 60 * hours if hours is not None else minutes


@with_device
def train(
    *,
    train: CorporaOption,
    out: RunFolderOption,
    valid: ValidOption = None,
    recipe: RecipeOption = "auto",
    minutes: MinutesOption = None,
    hours: HoursOption = None,
    settings: SettingsOption = None,
    start_from: StartFromOption = None,
    old_valid: OldValidOption = None,
    resume: ResumeOption = False,
    allow_change: AllowChangeOption = None,
    tracker: TrackerOption = None,
    shard: ShardOption = False,
    rank_timeout: RankTimeoutOption = None,
) -> None:
    r"""Train a model on source text and its translation, or a language model on one text.

    Examples
    --------
    transduce train --train train.en train.de --out run
    transduce train --train train.en train.de --out run --minutes 60
    transduce train --train train.en train.de --out run --resume
    transduce train --train train.en train.de --out run --resume --minutes 30
    transduce train --train clean.en clean.de 2 --train web.tsv.gz 0.5 \
        --valid valid.en valid.de --out run
    transduce train --from run/model --train new.en new.de --out tuned
    transduce train --recipe vaswani2017-base --set train.accumulate=8 \
        --train train.en train.de --valid valid.en valid.de --out run
    transduce train --recipe gpt2-small --train train.txt \
        --valid valid.txt --out run
    """
    from transduce.storage.run_request import TrainRequest
    from transduce.train import train as run
    from transduce.training.distributed import process_group

    time = minutes_of(minutes, hours)
    request = TrainRequest(
        recipe,
        train,
        valid or [],
        out,
        settings or [],
        resume=resume,
        allow_change=allow_change or [],
        start_from=start_from,
        old_valid=old_valid or [],
        tracker=tracker,
        shard=shard,
        minutes=time,
        more_minutes=time if resume else None,
    )
    with process_group(rank_timeout):
        run(request)
