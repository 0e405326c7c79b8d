"""`transduce study ...`: the arguments of the studies."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from transduce.cli.help import add_command
from transduce.errors import UserError


def table1(*, out: Path = Path("table1")) -> None:
    """Table 1: time and memory of four kinds of layer, what waits in them, and how far apart they leave positions.

    A few minutes on one core. It measures on the CPU.

    Parameters
    ----------
    out
        Folder of the study: results.json, report.md, report.html. A layer that is there is not measured again.

    Examples
    --------
    transduce study table1
    transduce study table1 --out table1
    """
    from transduce.studies.table1 import run_table1

    run_table1(out)
    _tell(out)


def table2(
    *,
    train: tuple[Path, Path],
    valid: tuple[Path, Path],
    test: tuple[Path, Path],
    out: Path,
    language: str = "en",
    jobs: int | None = None,
) -> None:
    r"""Table 2: train the Transformer, an LSTM and a convolutional model; judge them at equal time and equal FLOPs.

    The same command goes on with a study that was interrupted.

    Parameters
    ----------
    train
        Source and target text to learn from.
    valid
        Source and target text to judge by while training.
    test
        Source and target text that the systems are judged by, once.
    out
        Folder of the study: results.json, report.md, report.html, and the trainings in OUT/runs.
    language
        Language of the target text, such as de: the rules of the Moses tokenizer.
    jobs
        How many systems train side by side; default: one on each GPU, or one on a machine without.

    Examples
    --------
    transduce study table2 --train train.en train.de \
        --valid valid.en valid.de --test test.en test.de \
        --language de --out table2
    """
    from transduce.studies.table2 import run_table2
    from transduce.studies.trainings import Texts

    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs {jobs}: expected 1 or more")
    run_table2(Texts(train, valid, test, language), out, jobs=jobs)
    _tell(out)


def table3(
    *,
    train: tuple[Path, Path],
    valid: tuple[Path, Path],
    out: Path,
    test: tuple[Path, Path] | None = None,
    language: str = "en",
    scale: Literal["small", "paper"] = "small",
    rows: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    seeds: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    jobs: int | None = None,
) -> None:
    r"""Table 3: train and judge every variation on the base model.

    The same command goes on with a study that was interrupted; a row that is in OUT/results.json is not run again.

    Parameters
    ----------
    train
        Source and target text to learn from.
    valid
        Source and target text that the rows are judged by.
    out
        Folder of the study: results.json, report.md, report.html, and the trainings in OUT/runs.
    test
        Source and target text to judge by as well.
    language
        Language of the target text, such as de: the rules of the Moses tokenizer.
    scale
        small: a quarter of the widths and half of the layers, for a small corpus and a CPU; or paper.
    rows
        Which rows, such as base h1 n2; default: all.
    seeds
        Of each row; default: 1, and 1 2 3 for base, n2 and dropout0.
    jobs
        How many rows train side by side; default: one on each GPU, or one on a machine without.

    Examples
    --------
    transduce study table3 --train train.en train.de \
        --valid valid.en valid.de --language de --out table3
    transduce study table3 --train train.en train.de \
        --valid valid.en valid.de --language de --out table3 \
        --rows base h1 --seeds 1 2 3 --jobs 2
    """
    from transduce.studies.table3 import run_table3
    from transduce.studies.trainings import Texts

    if seeds is not None and len({*seeds}) < len(seeds):
        raise UserError(f"--seeds {' '.join(map(str, seeds))}: a seed is there twice")
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs {jobs}: expected 1 or more")
    run_table3(Texts(train, valid, test, language), out, scale=scale, rows=rows, seeds=seeds, jobs=jobs)
    _tell(out)


def _tell(out: Path) -> None:
    """Where to look."""
    print(out / "report.html")


app = App(
    name="study", help="The tables of the paper as experiments: run them, go on with them, and read what came of it."
)
for _order, _command in enumerate((table1, table2, table3)):
    add_command(app, _command, _order)
