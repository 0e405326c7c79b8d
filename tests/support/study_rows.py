"""Trainings of a study that end badly. They are in a module that other processes can import."""

import os
import signal
import time
from typing import Any

from transduce.errors import UserError
from transduce.studies import scaling_laws
from transduce.studies.scaling_laws import Sweep, SweepTraining
from transduce.studies.small_models import SegmentSizes, Streams


def killed(name: str) -> dict[str, Any]:
    """Kill this process in the task "large"."""
    if name == "large":
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def interrupting(name: str) -> dict[str, Any]:
    """Send SIGTERM to the study in the task "first", and sleep in all of them."""
    if name == "first":
        os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)
    return {}


def diverging(sizes: SegmentSizes, row: str, seed: int, streams: Streams) -> dict[str, Any]:
    """Fail in the row "rope", as a training that diverges; train nothing in the others."""
    if row == "rope":
        raise UserError("the loss of step 1 is nan")
    return {"parameters": 1, "steps": 1, "points": {row: []}}


def stopping(training: SweepTraining, sweep: Sweep, streams: Streams) -> dict[str, Any]:
    """Send SIGTERM to the study, and sleep."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)
    return {}


def diverging_if_wide(training: SweepTraining, sweep: Sweep, streams: Streams) -> dict[str, Any]:
    """Train a model, or fail for the width 32, as a training that diverges."""
    if training.d_model == 32:
        raise UserError("the loss of step 1 is nan")
    return scaling_laws.train_and_evaluate(training, sweep, streams)
