"""What a call takes: processor time, and memory at its peak."""

import faulthandler
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from support.calls import SERVER
from transduce.errors import UserError


class Measured(NamedTuple):
    """The ending of a call in words, its seconds of processor time, and the bytes that it added to the peak memory."""

    ending: str
    seconds: float
    size: int


def measured(call: Callable[[], object], seconds: float = 20) -> Measured:
    """Return what a call takes, within so many seconds of real time.

    It runs in a fork of the server of `support.calls`, and the rise of its peak is due to the call. A fork of this
    process may wait for ever for a thread that it lacks. call: a function that the fork can import, so not one of a
    file of tests.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured"
        process = SERVER.Process(target=_measure, args=(call, path, seconds))
        process.start()
        process.join(seconds + 5)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode == 0, f"exit code {process.exitcode}\n{place_of(path).read_text('utf-8')}"
        return Measured(*json.loads(path.read_text("utf-8")))


def place_of(path: Path) -> Path:
    """Return the file with the place where a call stood still."""
    return path.with_suffix(".place")


def _measure(call: Callable[[], object], path: Path, seconds: float) -> None:
    place = place_of(path).open("w", encoding="utf-8")
    faulthandler.dump_traceback_later(seconds, exit=True, file=place)
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_at = time.process_time()
    try:
        call()
        ending = "done"
    except UserError as mistake:
        ending = f"refused: {mistake}"
    except BaseException as problem:
        ending = repr(problem)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    measured = (ending, time.process_time() - started_at, kilobytes * 1024)
    path.write_text(json.dumps(measured), encoding="utf-8")
