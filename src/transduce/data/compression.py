"""Compressed text: gz, xz and zst, recognised by its first bytes and decompressed while it is read."""

import importlib
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import Any, Protocol

from transduce.errors import UserError

StrPath = str | os.PathLike[str]

FORMATS = {
    b"\x1f\x8b": "gz",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
}  # by the first bytes of a file, which are not valid UTF-8
OTHER_FORMATS = {
    **{f"BZh{level}1AY&SY".encode(): "bz2" for level in range(1, 10)},
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "Z",
}  # these are refused by name: as text, they would give the error of a line that is not UTF-8
ALL_FORMATS = FORMATS | OTHER_FORMATS
DOCUMENTS = {
    **dict.fromkeys(("docx", "odt", "pptx", "odp"), "plain text"),
    **dict.fromkeys(("xlsx", "ods"), "CSV"),
}  # zip files by their extension: what an office program saves them as
PLAIN_BYTES = 1 << 18  # bytes of one read
PACKED_BYTES = 1 << 10  # compressed bytes of one step: at most 33 MB of text, in the densest zst file


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def open_file(path: StrPath) -> BufferedReader:
    """Open a regular file as bytes. Unlike a pipe, it can be opened and read more than once.

    Raises UserError if the path is missing, is not a regular file, or is not readable.
    """
    with _explain(path):
        _check_regular(path)
        return BufferedReader(io.FileIO(path))


def open_text(path: StrPath) -> BufferedReader:
    """Open a file or a pipe as bytes, decompressed if it is gz, xz or zst. Reads each byte once.

    Raises UserError if the path is missing, is a folder, or is not readable.
    """
    with _explain(path):
        return text_of(io.FileIO(path), os.fspath(path))


def text_of(file: io.RawIOBase, where: str) -> BufferedReader:
    """Return the text of an open file or pipe, decompressed if it is gz, xz or zst. Reads nothing yet.

    where: the name of the file in messages. Reading raises UserError for another compression, or damaged content.
    """
    return BufferedReader(_BlockFile(_text_blocks(file, where), file), 1 << 20)


def compression_format(path: StrPath) -> str | None:
    """Return "gz", "xz" or "zst", or None if a file is not compressed by one of these."""
    with open_file(path) as file:
        return FORMATS.get(_first_bytes(file))


@contextmanager
def _explain(path: StrPath) -> Iterator[None]:
    """Raise UserError for a path that cannot be opened in the block."""
    where = os.fspath(path)
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{where}: expected a text file, but it does not exist; check the path") from error
    except (IsADirectoryError, NotADirectoryError) as error:
        reason = f"it is not a file ({error.strerror})"
        raise UserError(f"{where}: expected a text file, but {reason}; check the path") from error
    except PermissionError as error:
        raise UserError(f"{where}: expected a readable file; change its permissions") from error


def _check_regular(path: StrPath) -> None:
    """Raise UserError for a pipe or a device. Opening a pipe would take its bytes from the next reader."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UserError(
            f"{os.fspath(path)}: expected a regular file, which can be read again, not a pipe or a device; "
            "write the text to a file first"
        )


def _first_bytes(file: _Readable) -> bytes:
    """Read and return the first bytes of a file, until they equal a key of ALL_FORMATS or can equal none."""
    head = b""
    while head not in ALL_FORMATS and any(magic.startswith(head) for magic in ALL_FORMATS):
        byte = file.read(1)
        if not byte:
            break
        head += byte
    return head


def _rest(head: bytes, file: _Readable, size: int) -> Iterator[bytes]:
    """Yield `head`, which was read from `file`, and the rest of `file`, at most `size` bytes at a time."""
    yield head
    while block := file.read(size):
        yield block


def _text_blocks(file: _Readable, where: str) -> Iterator[bytes]:
    """Yield the text of a file, in blocks."""
    head = _first_bytes(file)
    extension = where.rpartition(".")[2].lower()
    if OTHER_FORMATS.get(head) == "zip" and extension in DOCUMENTS:
        raise UserError(
            f"{where}: expected text, not a {extension} document; open it in an office program and save it as "
            f"{DOCUMENTS[extension]} in UTF-8"
        )
    if head in OTHER_FORMATS:
        raise UserError(f"{where}: expected text, or gz, xz or zst, not {OTHER_FORMATS[head]}; decompress it first")
    if head not in FORMATS:
        yield from _rest(head, file, PLAIN_BYTES)
        return
    kind = FORMATS[head]
    text = _BlockFile(_decompress(_rest(head, file, PACKED_BYTES), where, kind))
    head = _first_bytes(text)
    if head in ALL_FORMATS:
        raise UserError(f"{where}: expected text in the {kind} file, not {ALL_FORMATS[head]}; decompress it first")
    yield from _rest(head, text, PLAIN_BYTES)


class _BlockFile(io.RawIOBase):
    """A raw file of `blocks`. Closing it closes `origin`."""

    def __init__(self, blocks: Iterator[bytes], origin: io.RawIOBase | None = None) -> None:
        self._blocks = blocks
        self._origin = origin
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._ready = memoryview(block)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        if self._origin is not None:
            self._origin.close()
        super().close()


def _decompress(blocks: Iterator[bytes], where: str, kind: str) -> Iterator[bytes]:
    """Yield the decompressed blocks of one stream or several (`cat a.gz b.gz`). Skip zeros after a stream, as padding.

    Raises UserError if the content is damaged or cut short.
    """
    new_engine, failure = _decompressor(kind, where)
    engine = new_engine()
    for block in blocks:
        raw = block
        while raw:
            if engine.eof:
                raw = raw.lstrip(b"\0")
                if not raw:
                    break
                engine = new_engine()
            try:
                plain = engine.decompress(raw)
            except failure as error:
                raise _damage(where, kind, f"{error}") from error
            yield plain
            raw = engine.unused_data if engine.eof else b""
    if not engine.eof:
        raise _damage(where, kind, "it ends in the middle")


def _damage(where: str, kind: str, reason: str) -> UserError:
    return UserError(f"{where}: expected a complete {kind} file: {reason}; get the file again")


def _decompressor(kind: str, where: str) -> tuple[Callable[[], Any], type[Exception]]:
    """Return the function that makes a decompressor, and the error that the decompressor raises."""
    if kind == "gz":
        return lambda: zlib.decompressobj(wbits=31), zlib.error
    if kind == "xz":
        return lzma.LZMADecompressor, lzma.LZMAError
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise UserError(
            f"{where}: expected the package zstandard for a zst file; pip install 'transduce[data]', "
            f"or decompress it: zstd -d {where}"
        ) from None
    return lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError
