"""`transduce report`: write the page with the curves of a training."""

import os
import sys
from pathlib import Path


def report(run: Path) -> None:
    """Write RUN/report.html, a page with the curves of a training.

    The command prints the path of the page. A training writes the page at each evaluation. This command writes it at
    any time, also during the training.

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
