"""Compressed text: gz, xz and zst files, recognised by their first bytes and decompressed while they are read."""

import importlib
import io
import lzma
import os
import zlib
from collections.abc import Callable
from io import BufferedReader
from typing import Any

from transduce.errors import UserError

StrPath = str | os.PathLike[str]

FORMATS = {
    b"\x1f\x8b": "gz",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
}  # by the first bytes of a file, which are not valid UTF-8
CHUNK_BYTES = 1 << 14  # compressed bytes of one step; decompressed, they may be a thousand times as long


def open_file(path: StrPath) -> BufferedReader:
    """Open a file as bytes. Raises UserError if the path is missing, is not a file, or is not readable."""
    where = os.fspath(path)
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        raise UserError(f"{where}: expected a text file, but it does not exist; check the path") from error
    except (IsADirectoryError, NotADirectoryError) as error:
        reason = f"it is not a file ({error.strerror})"
        raise UserError(f"{where}: expected a text file, but {reason}; check the path") from error
    except PermissionError as error:
        raise UserError(f"{where}: expected a readable file; change its permissions") from error


def open_text(path: StrPath) -> BufferedReader:
    """Open a file as bytes, decompressed if it is a gz, xz or zst file."""
    kind = compression_format(path)
    file = open_file(path)
    return BufferedReader(_Decompressor(file, os.fspath(path), kind), 1 << 20) if kind else file


def compression_format(path: StrPath) -> str | None:
    """Return "gz", "xz" or "zst", or None if a file is not compressed."""
    with open_file(path) as file:
        first = file.read(max(map(len, FORMATS)))
    return next((kind for magic, kind in FORMATS.items() if first.startswith(magic)), None)


class _Decompressor(io.RawIOBase):
    """The decompressed bytes of `file`. Reading raises UserError if it is damaged or cut short."""

    def __init__(self, file: BufferedReader, where: str, kind: str) -> None:
        self._file, self._where, self._kind = file, where, kind
        self._new_engine, self._error = _decompressor(kind, where)
        self._engine = self._new_engine()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            raw = self._file.read(CHUNK_BYTES) if not self._engine.eof else self._next_stream()
            if not raw:
                if self._engine.eof:
                    return 0
                raise self._damage("it ends in the middle")
            try:
                self._ready = memoryview(self._engine.decompress(raw))
            except self._error as error:
                raise self._damage(f"{error}") from error
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _next_stream(self) -> bytes:
        """Return the bytes after the end of a stream: another stream (`cat a.gz b.gz`), or none. Skip padding zeros."""
        raw = self._engine.unused_data.lstrip(b"\0")
        while not raw and (more := self._file.read(CHUNK_BYTES)):
            raw = more.lstrip(b"\0")
        if raw:
            self._engine = self._new_engine()
        return raw

    def _damage(self, reason: str) -> UserError:
        return UserError(f"{self._where}: expected a complete {self._kind} file: {reason}; get the file again")

    def close(self) -> None:
        self._file.close()
        super().close()


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
