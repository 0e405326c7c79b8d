"""What a call takes: processor time, and memory at its peak."""

import faulthandler
import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch

from transduce.errors import UserError


class Measured(NamedTuple):
    """The ending of a call in words, its seconds of processor time, and the bytes that it added to the peak memory."""

    ending: str
    seconds: float
    size: int


def measured(call: Callable[[], object], seconds: float = 20, *, method: Literal["fork", "spawn"] = "fork") -> Measured:
    """Return what a call takes, within so many seconds of real time.

    It runs in another process, and the rise of its peak is due to the call. method: "fork" takes any call, and may wait
    for ever for a thread of this process; "spawn" takes a call of a module that the other process can import, which a
    file of tests is not: a call that it cannot unpickle waits for ever.
    """
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    for _ in range(2):  # a first process that stands still prints where, and gets a second chance
        process = context.Process(target=_measure, args=(call, results, seconds))
        process.start()
        process.join(seconds)
        if process.exitcode is not None:
            break
        process.kill()
        process.join()
    assert process.exitcode == 0, f"exit code {process.exitcode}"
    return results.get()


def _measure(call: Callable[[], object], results: Any, seconds: float) -> None:
    faulthandler.dump_traceback_later(0.9 * seconds)
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
    results.put(Measured(ending, time.process_time() - started_at, kilobytes * 1024))
