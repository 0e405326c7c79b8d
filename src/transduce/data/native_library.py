"""The libraries in C++, which the installation compiles from folders native/ (CMakeLists.txt of the repository)."""

import ctypes
import functools
import hashlib
from pathlib import Path

REMEDY = "install a C++ compiler such as g++, then transduce again"


def native_library(folder: Path, name: str) -> ctypes.CDLL | None:
    """Return a library of a folder native/; None if it is not installed, or is of another system or another version."""
    for path in folder.glob(f"libraries/{name}.*"):
        try:
            functions = ctypes.CDLL(str(path))
            own_hash = ctypes.c_char_p.in_dll(functions, "source_hash").value
        except (OSError, ValueError):  # of another system, or of a version without the hash
            return None
        return functions if source_hash(folder) in (None, own_hash) else None
    return None


@functools.cache
def source_hash(folder: Path) -> bytes | None:
    """Return the hash of the source in a folder, as CMakeLists.txt makes it; None in a wheel, which has no source."""
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".cpp", ".h"))
    hashes = "".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in sources)
    return hashlib.sha256(hashes.encode()).hexdigest().encode() if sources else None
