"""Writing to a disk that may be full: a check for room, and errors that name the path and the bytes."""

import errno
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


def error_at(problem: OSError, doing: str, path: Path | str) -> OSError:
    """Return `problem` with the path and `doing`, such as "writing 5 bytes", in its message."""
    return OSError(problem.errno, f"{problem.strerror}, {doing}", str(path))


def check_room(path: Path, needed: int) -> None:
    """Raise OSError if the disk of `path`, a file or folder to be written, has less than `needed` bytes free."""
    folder = next(place for place in (path, *path.absolute().parents) if place.is_dir())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes needed, {free:,} free", str(path))


class LocatedFile(io.FileIO):
    """A file for writing. Its errors name `place` and the number of bytes."""

    def __init__(self, file: Path | int, place: Path | str, *, closefd: bool = True) -> None:
        super().__init__(file, "wb", closefd=closefd)
        self._place = place

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as problem:
            raise error_at(problem, f"writing {memoryview(data).nbytes:,} bytes", self._place) from problem

    def sync(self) -> None:
        """Flush the content to disk."""
        try:
            os.fsync(self.fileno())
        except OSError as problem:
            raise error_at(problem, "making it durable", self._place) from problem


@contextmanager
def synced_file(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing, and flush it to disk at the end of the block."""
    with LocatedFile(path, path) as raw, io.BufferedWriter(raw) as file:
        yield file
        file.flush()
        raw.sync()
