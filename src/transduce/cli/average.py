"""`transduce average`: average the newest checkpoints of a run."""

from pathlib import Path
from typing import Annotated

from transduce.cli.options import Integer


def average(
    run: Path, *, last: Annotated[int, Integer], out: Path, until: Annotated[int | None, Integer] = None
) -> None:
    """Average the newest checkpoints of a run into a new model.

    Parameters
    ----------
    run
        Folder of a training run.
    last
        Number of checkpoints to average, the newest first.
    out
        The new model folder.
    until
        Ignore checkpoints after this step.

    Examples
    --------
    transduce average run --last 5 --out averaged
    """
    from transduce.storage.run_folder import average_run

    average_run(run, last=last, out=out, until=until)
