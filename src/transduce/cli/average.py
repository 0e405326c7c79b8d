"""`transduce average`: average the newest checkpoints of a run."""

from pathlib import Path


def average(run: Path, *, last: int, out: Path, until: int | None = None) -> None:
    """Make a model of the mean of a run's newest checkpoints.

    Parameters
    ----------
    run
        Folder of a training run.
    last
        How many of its newest checkpoints.
    out
        The new model folder.
    until
        A step, after which checkpoints are left out.

    Examples
    --------
    transduce average run --last 5 --out averaged
    """
    from transduce.storage.run_folder import average_run

    average_run(run, last=last, out=out, until=until)
