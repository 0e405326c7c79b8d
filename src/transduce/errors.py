"""The exception for mistakes of the user, the nearest known name, and exceptions that mean lack of memory."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can fix, or several mistakes, with one argument each.

    A message has the value, the expectation, the place and the remedy, as in `NAME=VALUE: expected WHAT; REMEDY`. The
    command line prints it without a traceback and exits with 2.
    """

    def __init__(self, *messages: str) -> None:
        super().__init__(*messages)

    def __str__(self) -> str:
        if len(self.args) == 1:
            return self.args[0]
        return "\n".join([f"{len(self.args)} problems:", *(f"  {message}" for message in self.args)])


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: "; did you mean 'small'?", or "" if no known name is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED", "could not create a primitive")


def is_out_of_memory(problem: Exception) -> bool:
    """Check whether an exception means that memory ran out.

    On a CPU, torch raises a RuntimeError that only its text identifies. The texts in `NO_MEMORY` are those of torch's
    CPU allocator, of CUDA, of C++, of the CUDA libraries, and of oneDNN.
    """
    if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return True
    return isinstance(problem, RuntimeError) and any(words in str(problem) for words in NO_MEMORY)
