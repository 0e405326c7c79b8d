"""The one exception that stands for a mistake of the user's, not of the program's; lack of memory, however it shows."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake the user can mend, or several that were found together: one argument each.

    A message says what was given, what was expected, where, and what to do. The command line prints it
    without a traceback and exits with 2.
    """

    def __init__(self, *messages: str) -> None:
        super().__init__(*messages)

    def __str__(self) -> str:
        if len(self.args) == 1:
            return self.args[0]
        return "\n".join([f"{len(self.args)} problems:", *(f"  {message}" for message in self.args)])


def nearest(name: str, known: Iterable[str]) -> str:
    """What a message about an unknown name ends with: "; did you mean 'small'?", or nothing if no known one is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED", "could not create a primitive")


def is_out_of_memory(problem: Exception) -> bool:
    """Whether an exception says that memory ran out. torch does so by a RuntimeError, on a CPU known by its text only.

    The texts are those of torch's CPU allocator, of CUDA, of C++, of the CUDA libraries, and of oneDNN.
    """
    if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return True
    return isinstance(problem, RuntimeError) and any(words in str(problem) for words in NO_MEMORY)
