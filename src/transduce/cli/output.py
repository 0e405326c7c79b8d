"""Output that several commands share: standard output in any encoding, and files that are replaced when complete."""

import codecs
import io
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from transduce.console import drop_unwritten, printable
from transduce.data.disk import LocatedFile
from transduce.data.system import copy_permissions
from transduce.errors import UserError

STDOUT = "standard output"
BARS = dict(zip("▁▂▃▄▅▆▇█", "12345678", strict=True))  # for a histogram in an encoding without bars
DESCRIPTORS = {"/dev/stdout": 1, "/dev/stderr": 2}


def print_json(value: object) -> None:
    """Print `value` as one line of JSON, in UTF-8 in every locale."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")


# ---- standard output ---------------------------------------------------------------------------------------------


@contextmanager
def standard_output() -> Iterator[None]:
    """Write to standard output, in the block, with errors that name it, and with any character in any encoding."""
    original = sys.stdout
    if not isinstance(original, io.TextIOWrapper) or not _is_file(original):
        # the program that called `main` has replaced it, or it is the console of Windows, which has its own encoding
        yield
        original.flush()
        return
    original.flush()
    raw = LocatedFile(original.fileno(), STDOUT, closefd=False)
    is_direct = original.line_buffering or original.write_through
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), original.encoding, errors=ESCAPES, line_buffering=is_direct)
    try:
        yield
    finally:
        output, sys.stdout = sys.stdout, original
        try:
            output.flush()
        except OSError:
            drop_unwritten(output)
            raise


def _is_file(stream: io.TextIOWrapper) -> bool:
    """Return True unless the stream is the console of Windows. Without a buffer, its file takes the place of it."""
    return isinstance(getattr(stream.buffer, "raw", stream.buffer), io.FileIO)


def _escape(problem: UnicodeError) -> tuple[str | bytes, int]:
    """Return the replacement of a character that the encoding lacks: a digit for a bar, an escape for all others."""
    if isinstance(problem, UnicodeEncodeError) and (digit := BARS.get(problem.object[problem.start])):
        return digit, problem.start + 1
    return codecs.backslashreplace_errors(problem)


ESCAPES = "transduce.escapes"
codecs.register_error(ESCAPES, _escape)


# ---- files -------------------------------------------------------------------------------------------------------


def check_output(path: Path | None, source: int | Path, option: str = "--output") -> None:
    """Raise UserError for an output that cannot be written, or that is the input.

    path: the output; None is standard output. source: the input, a file or the number of an open file. option: the
    option that names the path.
    """
    name = STDOUT if path is None else f"{option}={path}"
    if path is not None:
        if path.is_dir():
            raise UserError(f"{name}: expected a file, not a folder; give the name of a file")
        parent = _existing_parent(path.absolute())
        if not parent.is_dir():
            raise UserError(f"{name}: expected a file in a folder, but {parent} is a file; give another name")
    with suppress(OSError):  # one of them does not exist yet, or is closed
        statuses = [os.stat(1 if path is None else path), os.stat(source)]
        if os.path.samestat(*statuses) and stat.S_ISREG(statuses[0].st_mode):
            raise UserError(f"{name}: expected another file than the input; give another name")
    if path is not None and _is_replaceable(path):
        place = Path(os.path.realpath(path))
        if place.exists() and not os.access(place, os.W_OK):
            raise UserError(f"{name}: expected a file that may be written; change its permissions")
        if not os.access(_existing_parent(place), os.W_OK):
            remedy = f"use standard output: > {path}" if place.exists() else "give a name in another folder"
            raise UserError(f"{name}: expected a folder in which a file can be made; {remedy}")


def _existing_parent(path: Path) -> Path:
    """Return the lowest existing folder, or file, above an absolute path. The folders below it will be made."""
    return next(parent for parent in path.parents if parent.exists())


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing. A regular file keeps its old content until the block has ended without an error.

    Until then the output is in another file, PATH.partial-..., which remains after an error unless it is empty. Missing
    folders above it are made. Pipes and devices, such as /dev/stdout, are written directly.
    """
    if not _is_replaceable(path):
        number = _descriptor(path)
        raw = LocatedFile(path, path) if number is None else LocatedFile(number, path, closefd=False)
        with raw, io.BufferedWriter(raw) as file:
            yield file
        return
    place = Path(os.path.realpath(path))  # a link stays a link
    place.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(prefix=f"{place.name[:60]}.partial-", dir=place.parent)
    partial = Path(name)
    try:
        copy_permissions(place, number)
        with LocatedFile(number, partial) as raw, io.BufferedWriter(raw) as file:
            yield file
            file.flush()
            raw.sync()
        _replace(partial, place)
    except BaseException:
        if partial.stat().st_size:
            message = f"{printable(path)}: unchanged; the output so far is in {printable(partial)}"
            print(f"transduce: {message}", file=sys.stderr)
        else:
            partial.unlink()
        raise


@contextmanager
def interrupt_named(path: Path) -> Iterator[None]:
    """Say at Ctrl-C within the block, which comes before the output, that nothing was written to `path`."""
    try:
        yield
    except KeyboardInterrupt:
        state = "unchanged" if path.exists() else "not written"
        print(f"transduce: {printable(path)}: {state}; interrupted before the output", file=sys.stderr)
        raise


def _is_replaceable(path: Path) -> bool:
    """Return True for a path of a regular file, or of none yet. It is False for pipes, devices and descriptors."""
    return _descriptor(path) is None and (path.is_file() or not path.exists())


def _descriptor(path: Path) -> int | None:
    """Return the number of the open file that a path such as /dev/stdout names: a second open would truncate it."""
    name = path.as_posix()
    match = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", name)
    return int(match[1]) if match else DESCRIPTORS.get(name)


def _replace(partial: Path, place: Path) -> None:
    try:
        partial.replace(place)
    except OSError:  # a mount point, as a container has for a single file, cannot be replaced
        if not place.is_file():
            raise
        with partial.open("rb") as source, LocatedFile(place, place) as raw, io.BufferedWriter(raw) as target:
            shutil.copyfileobj(source, target)
        partial.unlink()
