"""Compile the C++ kernels for this processor's instructions, and keep the library in the user's cache folder.

`native/` has one source for all processors. Its level says which instructions the compiler may use. The environment
variable TRANSDUCE_CPU_LEVEL takes another level than the best one, for tests and benchmarks.

The name of a library has the hash of its source and its level. A library that is not as this program wrote it would
crash the process that loads it. So its SHA-256 follows it in its file, and a library counts only with this hash, and in
a file and a folder that no other user can change. Otherwise it is compiled again.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from transduce.errors import UserError

SOURCE = Path(__file__).parent / "native" / "kernels.cpp"
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC")  # products rounded before sums, as in torch
HASH_BYTES = 32
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
LEVEL = "TRANSDUCE_CPU_LEVEL"


@dataclass(frozen=True)
class Level:
    """Instructions that the kernels use: their names in `torch.cpu.get_capabilities`, and the compiler's flags."""

    capabilities: Sequence[str] = ()
    flags: Sequence[str] = ()


_AVX2 = Level(("avx2", "fma3"), ("-mavx2", "-mfma"))
_AVX512 = Level(
    (*_AVX2.capabilities, "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl"),
    (*_AVX2.flags, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
)
LEVELS = {  # the best ones of each architecture first
    "avx512_vnni": Level((*_AVX512.capabilities, "avx512_vnni"), (*_AVX512.flags, "-mavx512vnni")),
    "avx512": _AVX512,
    "avx_vnni": Level((*_AVX2.capabilities, "avx_vnni"), (*_AVX2.flags, "-mavxvnni")),
    "avx2": _AVX2,
    "neon_dot": Level(("neon", "dot"), ("-march=armv8.2-a+dotprod",)),
    "neon": Level(("neon",)),
    "portable": Level(flags=("-DPORTABLE",)),
}


def levels() -> list[str]:
    """Return the levels whose instructions this processor has, the best one first."""
    capabilities = _capabilities()
    return [name for name, level in LEVELS.items() if all(capabilities.get(has) for has in level.capabilities)]


def _capabilities() -> Mapping[str, object]:
    """Return the names of `torch.cpu.get_capabilities`. An older torch gives the names that x86-64 levels need."""
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    found = {name: torch.cpu._is_avx2_supported() for name in _AVX2.capabilities}
    found |= {name: torch.cpu._is_avx512_supported() for name in _AVX512.capabilities if name not in found}
    return found | {"avx512_vnni": torch.cpu._is_vnni_supported()}


def _wanted_levels() -> list[str]:
    """Return the level that the environment names, or all levels of this processor, the best one first.

    Raises UserError if this processor lacks the level.
    """
    available = levels()
    name = os.environ.get(LEVEL)
    if not name:
        return available
    if name not in available:
        raise UserError(f"{LEVEL}={name}: expected one of {', '.join(available)} on this processor; unset {LEVEL}")
    return [name]


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the functions of native/kernels.cpp on the best level that this machine can compile; None if on none.

    An older compiler may not know the best level. Raises UserError if the environment names a level that this machine
    cannot compile or run.
    """
    for name in _wanted_levels():
        with contextlib.suppress(Exception):  # the kernels in torch give the same results
            functions = library_of(LEVELS[name])
            if functions is not None:
                return functions
    if os.environ.get(LEVEL):
        raise UserError(f"{LEVEL}={os.environ[LEVEL]}: expected a C++ compiler; install g++, or unset {LEVEL}")
    return None


def library_of(level: Level) -> ctypes.CDLL | None:
    """Return the library of a level: of the cache folder, or a new one; None without both a cached one and a compiler.

    Without a safe cache folder, it is compiled each time. An image may have the cached library, and no compiler.
    """
    source = b"".join(path.read_bytes() for path in sorted(SOURCE.parent.iterdir()))
    flags = (*FLAGS, *level.flags)
    key = hashlib.sha256(source + "\0".join(flags).encode()).hexdigest()[:16]
    cache = _cache_folder()
    cached = cache / f"kernels-{key}.so" if cache else None
    if cached is not None and _is_intact(cached):
        return ctypes.CDLL(str(cached))
    compilers = [path for path in map(shutil.which, ("c++", "g++", "clang++")) if path]
    if not compilers:
        return None
    with tempfile.TemporaryDirectory(dir=cache if cache and os.access(cache, os.W_OK) else None) as folder:
        new = Path(folder) / f"kernels-{key}.so"
        subprocess.run([compilers[0], *flags, "-w", SOURCE, "-o", new], check=True, capture_output=True, timeout=120)
        _append_hash(new)
        loaded = ctypes.CDLL(str(new))  # stays in memory when its file is gone
        if cached is not None:
            with contextlib.suppress(OSError):
                os.replace(new, cached)
    return loaded


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
