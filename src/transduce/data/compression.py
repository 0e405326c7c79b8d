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

PACKED = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}  # none of which begins UTF-8 text
PIECE_BYTES = 1 << 14  # unpacked at once; what it becomes may be a thousand times as long


def open_file(path: StrPath) -> BufferedReader:
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        raise UserError(f"{os.fspath(path)} does not exist; give the path of a text file.") from error
    except (IsADirectoryError, NotADirectoryError) as error:
        raise UserError(f"{os.fspath(path)} is not a file: {error.strerror}; give the path of a text file.") from error
    except PermissionError as error:
        raise UserError(f"{os.fspath(path)} may not be read; change its permissions.") from error


def open_text(path: StrPath) -> BufferedReader:
    """A file as bytes, unpacked if it is a gz, xz or zst file."""
    kind = compression_format(path)
    file = open_file(path)
    return BufferedReader(_Unpacked(file, os.fspath(path), kind), 1 << 20) if kind else file


def compression_format(path: StrPath) -> str | None:
    """Whether a file is packed: "gz", "xz", "zst" or None."""
    with open_file(path) as file:
        first = file.read(max(map(len, PACKED)))
    return next((kind for magic, kind in PACKED.items() if first.startswith(magic)), None)


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of `file`. UserError, naming the file, if it is damaged or cut short."""

    def __init__(self, file: BufferedReader, where: str, kind: str) -> None:
        self._file, self._where, self._kind = file, where, kind
        self._new, self._errors = _unpacker(kind, where)
        self._engine = self._new()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            raw = self._file.read(PIECE_BYTES) if not self._engine.eof else self._next_stream()
            if not raw:
                if self._engine.eof:
                    return 0
                raise self._damaged("it ends in the middle")
            try:
                self._ready = memoryview(self._engine.decompress(raw))
            except self._errors as error:
                raise self._damaged(f"{error}") from error
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _next_stream(self) -> bytes:
        """What stands after the end of a stream: another one, often (`cat a.gz b.gz`), or zeros that mean nothing."""
        raw = self._engine.unused_data.lstrip(b"\0")
        while not raw and (more := self._file.read(PIECE_BYTES)):
            raw = more.lstrip(b"\0")
        if raw:
            self._engine = self._new()
        return raw

    def _damaged(self, why: str) -> UserError:
        return UserError(f"{self._where} cannot be unpacked as {self._kind}: {why}; get the file again.")

    def close(self) -> None:
        self._file.close()
        super().close()


def _unpacker(kind: str, where: str) -> tuple[Callable[[], Any], type[Exception]]:
    """What makes an unpacking engine, and the error it raises."""
    if kind == "gz":
        return lambda: zlib.decompressobj(wbits=31), zlib.error
    if kind == "xz":
        return lzma.LZMADecompressor, lzma.LZMAError
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise UserError(
            f"{where} is packed with zstd, which needs one more package: pip install 'transduce[data]'. "
            f"Or unpack it: zstd -d {where}"
        ) from None
    return lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError
