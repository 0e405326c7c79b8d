"""`transduce study`: the tables of the paper as experiments."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from transduce.cli.help import add_command
from transduce.cli.options import Flag, Integer, Jobs, Language
from transduce.errors import UserError


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


def table2(
    *,
    train: tuple[Path, Path],
    valid: tuple[Path, Path],
    test: tuple[Path, Path],
    out: Path,
    language: Language = "en",
    jobs: Jobs = None,
    rerun: Flag = False,
) -> None:
    r"""Run Table 2: train and compare three kinds of model.

    The study compares the Transformer, an LSTM and a convolutional model at equal time and at equal FLOPs. The
    same command resumes an interrupted study.

    Parameters
    ----------
    train
        Source and target text for training.
    valid
        Source and target text for the validation during training.
    test
        Source and target text for the comparison. It is used once, at the end.
    out
        Folder of the study: results.json, report.md, report.html, and the trainings in OUT/runs.
    rerun
        Train again those whose recipe has changed since their result, which is replaced.

    Examples
    --------
    transduce study table2 --train train.en train.de \
        --valid valid.en valid.de --test test.en test.de \
        --language de --out table2
    """
    from transduce.studies.table2 import run_table2
    from transduce.studies.trainings import Texts

    _check_jobs(jobs)
    run_table2(Texts(train, valid, test, language), out, jobs=jobs, rerun=rerun)
    _print_report(out)


def table3(
    *,
    train: tuple[Path, Path],
    valid: tuple[Path, Path],
    out: Path,
    test: tuple[Path, Path] | None = None,
    language: Language = "en",
    scale: Literal["small", "paper"] = "small",
    rows: Annotated[list[str] | None, Parameter(consume_multiple=True, show_default="all rows")] = None,
    seeds: Annotated[
        list[int] | None,
        Integer,
        Parameter(consume_multiple=True, show_default="1, and 1 2 3 for base, n2 and dropout0"),
    ] = None,
    jobs: Jobs = None,
    rerun: Flag = False,
) -> None:
    r"""Run Table 3: train and evaluate variations on the base model.

    The same command resumes an interrupted study. Rows in OUT/results.json are not trained again.

    Parameters
    ----------
    train
        Source and target text for training.
    valid
        Source and target text that the rows are evaluated on.
    out
        Folder of the study: results.json, report.md, report.html, and the trainings in OUT/runs.
    test
        Source and target text for a second evaluation.
    scale
        small: a quarter of the widths and half of the layers, for a small corpus and a CPU. paper: the paper's sizes.
    rows
        Rows to train, such as base h1 n2.
    seeds
        Seeds of each row.
    rerun
        Train again the selected rows whose recipe has changed since their result, which is replaced.

    Examples
    --------
    transduce study table3 --train train.en train.de \
        --valid valid.en valid.de --language de --out table3
    transduce study table3 --train train.en train.de \
        --valid valid.en valid.de --language de --out table3 \
        --rows base h1 --seeds 1 2 3 --jobs 2
    """
    from transduce.studies.table3 import run_table3, trainings
    from transduce.studies.trainings import Texts

    if seeds is not None and len({*seeds}) < len(seeds):
        raise UserError(f"--seeds={' '.join(map(str, seeds))}: expected different seeds; remove the repeated one")
    _check_jobs(jobs)
    run_table3(
        Texts(train, valid, test, language), out, trainings(scale, rows, seeds), scale=scale, jobs=jobs, rerun=rerun
    )
    _print_report(out)


def _check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs={jobs}: expected at least 1")


def _print_report(out: Path) -> None:
    """Print the path of the study's page."""
    print(out / "report.html")


app = App(
    name="study",
    help="Run the tables of the paper as experiments.",
    help_epilogue="Examples:\n  transduce study table1\n  transduce study table1 --help",
)
for _order, _command in enumerate((table1, table2, table3)):
    add_command(app, _command, _order)
