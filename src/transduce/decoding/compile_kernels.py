"""Compile kernels.cpp, with its headers, on this machine, and keep the library in the user's cache folder.

The name of a library has the hash of its source, its compiler and the processor. A library that is not as this program
wrote it would crash the process that loads it. So its SHA-256 follows it in its file, and a library counts only with
this hash, and in a file and a folder that no other user can change. Otherwise it is compiled again.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.cpp")
INCLUDED = [SOURCE.with_name(name) for name in ("products.h", "ranking.h")]
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")
INSTRUCTIONS = ("avx512f", "avx512bw", "avx512_vnni")
HASH_BYTES = 32
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the functions of kernels.cpp; None where this machine cannot compile or run them, for any reason."""
    try:
        return _library() if _has_instructions() else None
    except Exception:  # the kernels in torch give the same results
        return None


def _has_instructions() -> bool:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return all(name in flags for name in INSTRUCTIONS)


def _library() -> ctypes.CDLL | None:
    """Return the library of the cache folder, or a new one; None without both a cached one and a compiler.

    Without a safe cache folder, it is compiled each time. An image may have the cached library, and no compiler.
    """
    source = b"".join(path.read_bytes() for path in (SOURCE, *INCLUDED))
    key = hashlib.sha256(source + "\0".join((*FLAGS, *_processor())).encode()).hexdigest()[:16]
    cache = _cache_folder()
    cached = cache / f"kernels-{key}.so" if cache else None
    if cached is not None and _is_intact(cached):
        return ctypes.CDLL(str(cached))
    compilers = [path for path in map(shutil.which, ("c++", "g++", "clang++")) if path]
    if not compilers:
        return None
    with tempfile.TemporaryDirectory(dir=cache if cache and os.access(cache, os.W_OK) else None) as folder:
        new = Path(folder) / f"kernels-{key}.so"
        subprocess.run([compilers[0], *FLAGS, "-w", SOURCE, "-o", new], check=True, capture_output=True, timeout=120)
        _append_hash(new)
        loaded = ctypes.CDLL(str(new))  # stays in memory when its file is gone
        if cached is not None:
            with contextlib.suppress(OSError):
                os.replace(new, cached)
    return loaded


def _processor() -> Sequence[str]:
    """Return the lines that -march=native depends on: several machines may share a cache folder."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return sorted({line for line in lines if line.startswith(("model name", "flags"))})


# ---- the cache folder --------------------------------------------------------------------------------------------


def _cache_folder() -> Path | None:
    """Return the cache folder of this user, which only this user may write to; None if there is none."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transduce"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.geteuid():
            return None
        if status.st_mode & OTHERS_MAY_WRITE:  # from an earlier version
            folder.chmod(0o700)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return None
    return folder


def _append_hash(path: Path) -> None:
    """Write the SHA-256 of the content of a file to its end, and wait until the disk has all of it."""
    with path.open("r+b") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(hashlib.sha256(file.read()).digest())
        file.flush()
        os.fsync(file.fileno())


def _is_intact(path: Path) -> bool:
    """Return True if a file belongs to this user, only this user may write it, and it ends with its SHA-256."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            is_ours = status.st_uid == os.geteuid() and not status.st_mode & OTHERS_MAY_WRITE
            content = file.read() if stat.S_ISREG(status.st_mode) and is_ours else b""
    except OSError:
        return False
    return hashlib.sha256(content[:-HASH_BYTES]).digest() == content[-HASH_BYTES:]


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, but not a link. A pipe opens without a writer."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
