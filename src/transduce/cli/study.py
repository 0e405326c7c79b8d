"""`transduce study`: the tables of the paper as experiments."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from transduce.cli.help import add_command
from transduce.cli.options import Flag, Integer, JobsOption, LanguageOption, with_device
from transduce.data.text import FilePair
from transduce.errors import UserError
from transduce.model import devices

StudyTextOption = Annotated[FilePair, Parameter(help="Source and target text for training.")]
StudyFolderOption = Annotated[
    Path, Parameter(help="Folder of the study: results.json, report.md, report.html, and the trainings in OUT/runs.")
]
RowsOption = Annotated[
    list[str] | None,
    Parameter(consume_multiple=True, help="Rows to train, such as base h1 n2, or all.", show_default="as in the plan"),
]
SeedsOption = Annotated[
    list[int] | None,
    Integer,
    Parameter(consume_multiple=True, help="Seeds of each row.", show_default="as in the plan"),
]

SmallJobsOption = Annotated[
    int | None,
    Integer,
    Parameter(
        help="Number of trainings that run at the same time, each on one thread of the CPU.",
        show_default="one per core",
    ),
]
StudyDeviceOption = Annotated[
    str,
    Parameter(
        help="Device of the trainings: cpu, cuda (each training has one of the GPUs that CUDA_VISIBLE_DEVICES leaves), "
        "cuda:N (only the GPU with number N of these, from 0), or mps (a GPU of Apple). auto takes the first that "
        "exists of cuda, mps and cpu."
    ),
]


def with_processes_on_device(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the option --device, on which the processes of a study compute, too."""

    @functools.wraps(command)
    def with_variables(*arguments: Any, **options: Any) -> None:
        os.environ.update(devices.variables())
        command(*arguments, **options)

    return with_device(with_variables, StudyDeviceOption)


def table1(*, out: Path = Path("table1")) -> None:
    """Measure Table 1: four kinds of layer.

    The study measures time, memory, sequential steps and path length. It takes a few minutes on one core of a CPU.

    Parameters
    ----------
    out
        Folder of the study: results.json, report.md, report.html. Layers in results.json are not measured again.

    Examples
    --------
    transduce study table1
    transduce study table1 --out table1
    """
    from transduce.studies.table1 import run_table1

    run_table1(out)
    _print_report(out)


@with_processes_on_device
def table2(
    *,
    train: StudyTextOption,
    valid: FilePair,
    out: StudyFolderOption,
    test: FilePair | None = None,
    search: Flag = False,
    language: LanguageOption = "en",
    jobs: JobsOption = None,
    rerun: Flag = False,
) -> None:
    r"""Run Table 2: train and compare three kinds of model.

    The study compares two Transformers, an LSTM and a convolutional model at equal time and at equal FLOPs, with
    three seeds each. It takes 5 to 7 hours of processor time. --search takes 1 to 2 hours. The same command resumes an
    interrupted study. The checkpoints take 2 GB for each training, and are not needed after it.

    Parameters
    ----------
    valid
        Source and target text for the validation during training.
    test
        Source and target text for the comparison. It is used once, at the end. Not for --search.
    search
        Search learning rate, shape and dropout of each system on the validation text, instead of the comparison.
    rerun
        Repeat the trainings whose recipe has changed since their result, and replace the results.

    Examples
    --------
    transduce study table2 --search --train train.en train.de \
        --valid valid.en valid.de --language de --out search
    transduce study table2 --train train.en train.de \
        --valid valid.en valid.de --test test.en test.de \
        --language de --out table2
    """
    from transduce.studies.table2 import run_table2
    from transduce.studies.table2_search import run_search
    from transduce.studies.trainings import Texts

    _check_jobs(jobs)
    run = run_search if search else run_table2
    run(Texts(train, valid, test, language), out, jobs=jobs, rerun=rerun)
    _print_report(out)


@with_processes_on_device
def table3(
    *,
    train: StudyTextOption,
    valid: FilePair,
    out: StudyFolderOption,
    test: FilePair | None = None,
    language: LanguageOption = "en",
    large_train: FilePair | None = None,
    large_valid: FilePair | None = None,
    scale: Literal["small", "paper"] = "small",
    rows: RowsOption = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    rerun: Flag = False,
) -> None:
    r"""Run Table 3: train variations on the base model, and test the claims of section 6.2.

    The plan of the small scale is base, n2 and dropout0 with two seeds, and h1, dk16, n4, d256, d1024, ff1024,
    ff4096, smoothing0 and learned with one. It takes 4 to 6 hours of processor time. The same command resumes an
    interrupted study. Rows in OUT/results.json are not trained again.

    Parameters
    ----------
    valid
        Source and target text that the rows are evaluated on.
    test
        Source and target text for a second evaluation.
    large_train
        A larger training text for the rows of another size (d256, d1024, ff1024, ff4096, big), with --large-valid.
        Base is then trained on it, too, as base-large.
    large_valid
        Source and target text that the rows of another size are evaluated on.
    scale
        small: a quarter of the widths and half of the layers, for a small corpus and a CPU. paper: the paper's sizes.
    rerun
        Train again the selected rows whose recipe has changed since their result, which is replaced.

    Examples
    --------
    transduce study table3 --train train.en train.de \
        --valid valid.en valid.de --language de --out table3 \
        --large-train mix.en mix.de --large-valid news.en news.de
    transduce study table3 --train train.en train.de \
        --valid valid.en valid.de --language de --out table3 \
        --rows base h1 --seeds 1 2 3 --jobs 2
    """
    from transduce.studies.table3 import Table3Texts, run_table3, trainings
    from transduce.studies.trainings import Texts

    if seeds is not None and len({*seeds}) < len(seeds):
        raise UserError(f"--seeds={' '.join(map(str, seeds))}: expected different seeds; remove the repeated one")
    _check_large(large_train, large_valid)
    _check_jobs(jobs)
    large = Texts(large_train, large_valid, language=language) if large_train and large_valid else None
    selection = trainings(scale, rows, seeds, has_large_text=large is not None)
    texts = Table3Texts(train, valid, test, language, large)
    run_table3(texts, out, selection, scale=scale, jobs=jobs, rerun=rerun)
    _print_report(out)


@with_processes_on_device
def table4(
    *,
    train: Path,
    valid: Path,
    out: StudyFolderOption,
    test: Path | None = None,
    jobs: JobsOption = None,
    rerun: Flag = False,
) -> None:
    r"""Run Table 4: train parsers of several sizes on a treebank, and on parts of it.

    The rows are a base parser of 4 layers, parsers of 2 and 6 layers, two other widths, 20 % and 50 % of the trees,
    and another linear form of the trees. Base and the other form have two seeds. It takes 2.7 hours of processor
    time for 19,000 trees. The same command resumes an interrupted study.

    Parameters
    ----------
    train
        Treebank for training: a file with brackets of the Penn Treebank.
    valid
        Treebank that all models are evaluated on, also during training. 300 trees are enough.
    test
        Treebank for a second evaluation.
    rerun
        Repeat the trainings whose recipe has changed since their result, and replace the results.

    Examples
    --------
    transduce study table4 --train train.trees --valid dev.trees --out table4
    """
    from transduce.studies.table4 import Treebanks, run_table4, trainings

    _check_jobs(jobs)
    run_table4(Treebanks(train, valid, test), out, trainings(), jobs=jobs, rerun=rerun)
    _print_report(out)


@with_processes_on_device
def claims(
    *,
    train: StudyTextOption,
    valid: FilePair,
    out: StudyFolderOption,
    language: LanguageOption = "en",
    jobs: JobsOption = None,
    rerun: Flag = False,
) -> None:
    r"""Test three claims that have no table: scaling, longer text, smoothing.

    The study trains small models with and without the factor 1/sqrt(d_k) of attention, with sinusoids, learned and
    relative positions on short sentences, and with and without label smoothing. It takes 1 to 2 hours of processor
    time. The same command resumes an interrupted study.

    Parameters
    ----------
    valid
        Source and target text that the models are evaluated on.
    rerun
        Repeat the trainings whose recipe has changed since their result, and replace the results.

    Examples
    --------
    transduce study claims --train train.en train.de \
        --valid valid.en valid.de --language de --out claims
    """
    from transduce.studies.claims import run_claims
    from transduce.studies.trainings import Texts

    _check_jobs(jobs)
    run_claims(Texts(train, valid, language=language), out, jobs=jobs, rerun=rerun)
    _print_report(out)


def attention(*, train: Path, valid: Path, out: Path = Path("attention")) -> None:
    r"""Measure forms of attention: time, memory, and the loss of a model with each.

    The study measures a forward and a backward pass of each form at lengths of 256 to 16,384, in turn with torch's
    fused kernel, and trains a small model with each on the same text. It took 78 minutes of one core's time. The same
    command resumes an interrupted study.

    Parameters
    ----------
    train
        Text for the trainings, plain or compressed. Its lines follow one another.
    valid
        Text that the models are evaluated on.
    out
        Folder of the study: results.json, report.md, report.html.

    Examples
    --------
    transduce study attention --train news.en --valid dev.en
    """
    from transduce.studies.attention import run_attention

    run_attention(train, valid, out)
    _print_report(out)


def positions(*, train: Path, valid: Path, out: StudyFolderOption, jobs: SmallJobsOption = None) -> None:
    r"""Compare positions beyond the training length: sinusoids, learned, and later ones.

    The study trains small language models on segments of 64 tokens, three seeds each, and evaluates them on up to
    512 tokens. It took 110 minutes of one core's time. The same command resumes an interrupted study, at the
    trainings that were interrupted.

    Parameters
    ----------
    train
        Text for training, whose lines follow each other, such as news.
    valid
        Text that all models are evaluated on, of at least 512 tokens.

    Examples
    --------
    transduce study positions --train news.en --valid valid.en --out positions
    """
    from transduce.studies.positions import STUDY

    _check_jobs(jobs)
    STUDY.run(train, valid, out, jobs=jobs)
    _print_report(out)


def experts(*, train: Path, valid: Path, out: StudyFolderOption, jobs: SmallJobsOption = None) -> None:
    r"""Compare mixtures of experts with the dense network: loss, FLOPs, balance.

    The study trains small language models with three seeds each. It took 105 minutes of one core's time. The same
    command resumes an interrupted study, at the trainings that were interrupted.

    Parameters
    ----------
    train
        Text for training, whose lines follow each other, such as news.
    valid
        Text that all models are evaluated on.

    Examples
    --------
    transduce study experts --train news.en --valid valid.en --out experts
    """
    from transduce.studies.experts import STUDY

    _check_jobs(jobs)
    STUDY.run(train, valid, out, jobs=jobs)
    _print_report(out)


def scaling(
    *,
    train: Path,
    valid: Path,
    out: StudyFolderOption,
    jobs: SmallJobsOption = None,
) -> None:
    r"""Fit scaling laws to a text: loss over parameters and tokens, after Kaplan and Chinchilla.

    The study trains 35 small language models of 25 thousand to 3.1 million parameters without embeddings, on up to
    4.2 million tokens. It took 125 minutes of one core's time. The same command resumes an interrupted study, at the
    trainings that were interrupted.

    Parameters
    ----------
    train
        Text for training, of at least 4.2 million tokens, about 10 MB of English. No training reads a token twice.
    valid
        Text that all models are evaluated on.

    Examples
    --------
    transduce study scaling --train mix.en --valid dev.en --out scaling
    transduce study scaling --train mix.en --valid dev.en --out scaling --jobs 2
    """
    from transduce.studies.scaling_laws import run_scaling

    _check_jobs(jobs)
    run_scaling(train, valid, out, jobs=jobs)
    _print_report(out)


def _check_large(train: FilePair | None, valid: FilePair | None) -> None:
    """Raise UserError unless both or none of the texts for the rows of another size have a value."""
    if (train is None) != (valid is None):
        name, other = ("valid", "train") if valid is None else ("train", "valid")
        raise UserError(f"--large-{name}: expected a text, since --large-{other} is given; give both, or none")


def _check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs={jobs}: expected at least 1")


def _print_report(out: Path) -> None:
    """Print the path of the study's page."""
    print(out / "report.html")


app = App(
    name="study",
    help="Run the tables and claims of the paper as experiments.",
    help_epilogue="Examples:\n  transduce study table1\n  transduce study table1 --help",
)
for _order, _command in enumerate((table1, table2, table3, table4, claims, attention, positions, experts, scaling)):
    add_command(app, _command, _order)
