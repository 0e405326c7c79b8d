"""Rows of a study that end badly. They are in a module that other processes can import."""

import os
import signal
import time
from typing import Any

from transduce.errors import UserError
from transduce.studies.segments import Sizes, Streams


def killed(row: str, seed: int, streams: Streams) -> dict[str, Any]:
    """Kill this process in the row "large"."""
    if row == "large":
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def interrupting(row: str, seed: int, streams: Streams) -> dict[str, Any]:
    """Send SIGTERM to the study, and go on for long."""
    if seed == 1:
        os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)
    return {}


def diverging(sizes: Sizes, row: str, seed: int, streams: Streams) -> dict[str, Any]:
    """Fail in the row "rope", as a training that diverges; train nothing in the others."""
    if row == "rope":
        raise UserError("the loss of step 1 is nan")
    return {"parameters": 1, "steps": 1, "points": {row: []}}
