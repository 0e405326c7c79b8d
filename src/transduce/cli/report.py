"""`transduce report`: write the page with the curves of a training."""

import os
import sys
from pathlib import Path


def report(run: Path) -> None:
    """Show how a training goes: write RUN/report.html, one page with curves and figures, and print its path.

    A training writes it too, at each evaluation; this does so at any time, also while it runs.

    Parameters
    ----------
    run
        Folder of a training run.

    Examples
    --------
    transduce report run
    """
    from transduce.evaluation.run_report import write_report

    sys.stdout.buffer.write(os.fsencode(write_report(run)) + b"\n")
