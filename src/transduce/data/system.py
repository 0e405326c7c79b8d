"""What Windows and the POSIX systems do differently: locks, permissions, limits, signals and other processes.

Each function has an equivalent for Windows. Elsewhere in this package, only `console` has one too.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from transduce.data.disk import error_at
from transduce.errors import UserError

fcntl: ModuleType | None
resource: ModuleType | None
try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = resource = None

# ---- folders and files -------------------------------------------------------------------------------------------

NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # flag of `os.open`; on Windows, only administrators make links
LOCK_FILE = ".lock"  # on Windows


@contextlib.contextmanager
def locked(folder: Path, message: str) -> Iterator[int]:
    """Lock a folder against other processes in the block, and yield the number of the open file that has the lock.

    A process that inherits the file keeps the lock, except on Windows. A file system without locks gives none, and a
    network file system may not pass it on to other machines. Raises UserError with `message` if another process has
    the lock.
    """
    # Windows opens no folder, and removes no file that another process has open
    file = os.open(folder, os.O_RDONLY) if fcntl else os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        if not _lock(file):
            raise UserError(message)
        yield file
    finally:
        os.close(file)
        if not fcntl:
            with contextlib.suppress(OSError):
                (folder / LOCK_FILE).unlink()


def _lock(file: int) -> bool:
    """Return True unless another process holds the lock of an open file."""
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            windows: Any = msvcrt
            windows.locking(file, windows.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        pass
    return True


def sync_folder(folder: Path) -> None:
    """Flush the names of the files in `folder` to disk. Windows has no function for this."""
    if not fcntl:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        raise error_at(problem, "making its names durable", folder) from problem
    finally:
        os.close(descriptor)


def copy_permissions(place: Path, number: int) -> None:
    """Give the open file `number` the owner and the permissions of `place`, or the permissions of a new file.

    On Windows, a file has the permissions of its folder.
    """
    if not fcntl:
        return
    if place.exists():
        status = place.stat()
        mode = stat.S_IMODE(status.st_mode)
        with contextlib.suppress(OSError):  # only root may give files away
            os.fchown(number, status.st_uid, status.st_gid)
    else:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    with contextlib.suppress(OSError):  # some file systems have no permissions
        os.fchmod(number, mode)


def allow_open_files(needed: int) -> int:
    """Let this process have `needed` files open. Return the number that it may have if that is less, else `needed`."""
    if not resource:
        return needed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    if hard != resource.RLIM_INFINITY and hard < needed:
        return hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError):  # macOS has a limit below the hard one
        return soft
    return needed


# ---- signals -----------------------------------------------------------------------------------------------------


def signals(*names: str) -> list[int]:
    """Return the numbers of the signals that this system has. Only Windows has SIGBREAK, and it lacks SIGHUP."""
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


ENDING = signals("SIGINT", "SIGTERM", "SIGBREAK")  # ask a program to end


def call_at_signal(loop: asyncio.AbstractEventLoop, number: int, function: Callable[[], None]) -> None:
    """Let the event loop, which runs in the main thread, call `function` at a signal."""
    try:
        loop.add_signal_handler(number, function)
    except NotImplementedError:  # the loop of Windows, which wakes up at a signal all the same
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(function))


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in the block: for this thread until its end, and for good for the processes that start in it.

    Windows delivers it at once.
    """
    if not fcntl:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- other processes ---------------------------------------------------------------------------------------------


def start_apart(command: list[str], lock: int, **streams: Any) -> subprocess.Popen[bytes]:
    """Start a process that a Ctrl-C of the terminal does not reach, only `ask_to_end`.

    lock: the number of an open file that the process inherits (see `locked`).
    """
    apart: dict[str, Any] = {"pass_fds": [lock], "start_new_session": True}
    if not fcntl:
        apart = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    process: subprocess.Popen[Any] = subprocess.Popen(command, **streams, **apart)
    return process


def ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process of `start_apart` to save and end: by SIGTERM, or by Ctrl-Break, which is SIGBREAK there."""
    process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))


def processor_seconds(process: subprocess.Popen[bytes]) -> float | None:
    """Return the processor time of a process that has ended, and set its exit code; None if it still runs."""
    if hasattr(os, "wait4"):
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid == 0:
            return None
        process.returncode = os.waitstatus_to_exitcode(status)
        return usage.ru_utime + usage.ru_stime
    if process.poll() is None:
        return None
    windows, times = getattr(ctypes, "windll", None), [ctypes.c_uint64() for _ in range(4)]
    if windows:
        handle = ctypes.c_void_p(int(getattr(process, "_handle")))  # noqa: B009
        windows.kernel32.GetProcessTimes(handle, *map(ctypes.byref, times))
    return sum(time.value for time in times[2:]) / 1e7  # in the system and in the program, each in 100 ns
