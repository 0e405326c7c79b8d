"""Printable names and numbers, the standard streams, Ctrl-C, and other processes of this program."""

import _thread
import html
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TextIO, cast

INTERRUPT_DELAY = 0.01  # seconds until a lost Ctrl-C comes again, when the finalizer has ended


def printable(text: "str | os.PathLike[str]", keep: str = "") -> str:
    """Return a name or a message without characters that a terminal obeys or that UTF-8 cannot express.

    They become escapes, as in `repr`: "\\n", "\\x1b", and "\\xe4" for a byte of a file name that is not UTF-8.
    keep: characters that stay as they are.
    """
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in os.fspath(text))


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that Python could not decode
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, such as "1 pair" or "1,200 pairs"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def in_markdown(text: "str | os.PathLike[str]") -> str:
    """Return a name or a value as Markdown that shows it in one line: no HTML, no link, no column of a table."""
    line = html.escape(printable(" ".join(os.fspath(text).splitlines())), quote=False)
    return line.replace("[", "&#91;").replace("|", "\\|")


def best_effort_stderr() -> TextIO:
    """Return standard error as a stream that drops what cannot be written: a message must not stop the work.

    The cause can be a full disk, or that the reader or the terminal has gone.
    """
    return cast(TextIO, _BestEffort(sys.stderr))


class _BestEffort:
    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            if self.stream is not None:
                self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            if self.stream is not None:
                self.stream.flush()

    def isatty(self) -> bool:
        with suppress(ValueError):
            return self.stream is not None and self.stream.isatty()
        return False

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def open_missing_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed.

    The next file that the program opens would otherwise get the number of the missing stream, and its messages.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def drop_unwritten(stream: TextIO) -> None:
    """Flush a stream, and discard what cannot be written. Python would write it again at exit, and fail again."""
    try:
        stream.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def repeat_lost_interrupt(problem: "sys.UnraisableHookArgs") -> None:
    """Deliver a Ctrl-C again that arrived within a finalizer (`__del__`); report other problems as Python does.

    To be used as `sys.unraisablehook`. Python drops an exception of a finalizer: the program would not stop.
    """
    if problem.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(problem)
    elif not sys.is_finalizing():
        main = threading.main_thread().ident
        interrupt = getattr(signal, "pthread_kill", lambda *_: _thread.interrupt_main())  # Windows lacks the first
        timer = threading.Timer(INTERRUPT_DELAY, interrupt, (main, signal.SIGINT))
        timer.daemon = True
        timer.start()


# ---- other processes of this program -----------------------------------------------------------------------------

# They import nothing from the working folder. `python -m` and an empty entry of PYTHONPATH would put the working folder
# first on the import path. Python would then execute a file queue.py or random.py there instead of its module.


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this program. Its environment needs PYTHONPATH=`import_path()`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def import_path() -> str:
    """Return the value of PYTHONPATH with which a process finds this package: the value here, without empty entries."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([*filter(None, entries), str(Path(__file__).parents[1])])


def in_words(minutes: float) -> str:
    """Return a time as "1.5 minutes", "12 minutes" or "5.2 hours"."""
    if minutes < 100:
        return f"{minutes:.0f} minutes" if minutes >= 3 else f"{minutes:.1f} minutes"
    return f"{minutes / 60:.1f} hours"
