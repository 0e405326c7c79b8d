"""The exceptions for mistakes of the user, the nearest known name, and exceptions that mean lack of memory."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """One or several mistakes that the user can fix. Each argument is the message of one mistake.

    A message has the value, the expectation, the place and the remedy, as in `NAME=VALUE: expected WHAT; REMEDY`. The
    command line prints it without a traceback and exits with 2.
    """

    def __init__(self, *messages: str) -> None:
        super().__init__(*messages)

    def __str__(self) -> str:
        if len(self.args) == 1:
            return self.args[0]
        return "\n".join([f"{len(self.args)} problems:", *(f"  {message}" for message in self.args)])


class LineError(UserError):
    """A mistake in one of several lines. number: number of the line, from 1. problem: the message without the line.

    A caller that knows the file of the lines can name it instead: `PATH:LINE: problem`.
    """

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number}: {problem}")
        self.number = number
        self.problem = problem


class PairError(UserError):
    """A mistake in a pair of the training text. number: its number in the store. problem: the message."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number
        self.problem = problem


class NotFiniteError(UserError):
    """A model whose output is not a finite number: its weights are damaged, or its training diverged."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.4) -> str:
    """Return the end of a message about an unknown name: "; did you mean 'demo'?", or "" if no known name is near.

    cutoff: the least similarity of a near name, from 0 to 1.
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED", "could not create a primitive")


def is_out_of_memory(problem: Exception) -> bool:
    """Check whether an exception means that memory ran out.

    On a CPU, torch raises a plain RuntimeError, and only its text shows the cause. The texts in `NO_MEMORY` come from
    torch's CPU allocator, CUDA, C++, the CUDA libraries, and oneDNN.
    """
    if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return True
    return isinstance(problem, RuntimeError) and any(words in str(problem) for words in NO_MEMORY)
