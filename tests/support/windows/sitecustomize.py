"""Python on Linux as on Windows: with this folder on PYTHONPATH, each process lacks what Windows lacks.

Modules, signals and functions of POSIX are hidden. Folders cannot be opened, open files neither removed nor renamed,
and names cannot have the characters that Windows keeps for itself. What the standard library needs here remains.
"""

import asyncio
import builtins
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import subprocess  # before `msvcrt`, which it takes for the proof of Windows
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

SIGNALS = "SIGHUP SIGUSR1 SIGUSR2 SIGQUIT SIGALRM SIGPIPE SIGTSTP SIGCONT pthread_kill sigwait setitimer"
FUNCTIONS = (
    "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK chown fchmod fchown fork forkpty geteuid getgid getuid killpg lockf "
    "mkfifo nice posix_fadvise posix_fallocate pread preadv pwrite pwritev sched_getaffinity setsid sync sysconf wait3 "
    "wait4"
)


def main() -> None:
    os.environ.setdefault("USERNAME", "user")
    flock = fcntl.flock
    for name in SIGNALS.split():
        delattr(signal, name)
    for name in FUNCTIONS.split():
        delattr(os, name)
    builtins.__import__ = _import
    signal.SIGBREAK = signal.CTRL_BREAK_EVENT = signal.SIGTTIN  # type: ignore[attr-defined]  # 21, its number there
    asyncio.SelectorEventLoop.add_signal_handler = _not_implemented  # type: ignore[method-assign]
    subprocess.Popen = _Popen  # type: ignore[misc]
    ctypes.CDLL = _Library  # type: ignore[misc]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile  # type: ignore[assignment]
    os.rename = _rename
    sys.modules["msvcrt"] = _msvcrt(flock)
    sys.addaudithook(_check)


_posix_import = builtins.__import__


def _import(name: str, globals: Any = None, *arguments: Any, **keywords: Any) -> Any:
    """Hide modules from this project alone: other packages ask `os.name`, which remains, before they import them."""
    if name in ("fcntl", "resource", "pwd", "grp", "termios") and str(globals["__name__"]).startswith("transduce"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return _posix_import(name, globals, *arguments, **keywords)


def _not_implemented(*_: object) -> None:
    raise NotImplementedError


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        assert not keywords.get("pass_fds"), "pass_fds not supported on Windows."
        super().__init__(*arguments, **keywords)


class _Library(ctypes.CDLL):
    def __init__(self, name: str | None, *arguments: Any, **keywords: Any) -> None:
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        super().__init__(name, *arguments, **keywords)


def _msvcrt(flock: Any) -> types.ModuleType:
    module: Any = types.ModuleType("msvcrt")
    module.LK_NBLCK = fcntl.LOCK_EX | fcntl.LOCK_NB

    def locking(file: int, mode: int, count: int) -> None:
        try:
            flock(file, mode)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    module.locking = locking
    return module


_posix_rename = os.rename


def _rename(old: Any, new: Any, **folders: Any) -> None:
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, "Cannot create a file when that file already exists", os.fspath(new))
    _posix_rename(old, new, **folders)


def _check(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what Windows refuses, before Python does it."""
    if event == "open" and isinstance(arguments[0], str | bytes):
        path = os.fsdecode(arguments[0])
        if arguments[1] is None and os.path.isdir(path):  # of `os.open`
            raise PermissionError(errno.EACCES, "Permission denied", path)
        if (arguments[2] or 0) & os.O_CREAT:
            _check_name(path)
    elif event == "os.mkdir":
        _check_name(os.fsdecode(arguments[0]))
    elif event in ("os.remove", "os.rename"):
        for path in arguments[: 1 if event == "os.remove" else 2]:
            _check_closed(Path(os.fsdecode(path)).absolute())


def _check_name(path: str) -> None:
    if set(os.path.basename(path)) & set('<>:"|?*') and not path.startswith(("/dev/", "/proc/")):
        raise OSError(errno.EINVAL, "Invalid argument", path)


def _check_closed(path: Path) -> None:
    """Raise PermissionError if this process has the file, or a file in the folder, open."""
    for number in os.listdir("/proc/self/fd"):
        try:
            file = Path(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
        if file == path or path in file.parents:
            raise PermissionError(errno.EACCES, "The process cannot access the file: another one uses it", str(path))


main()
