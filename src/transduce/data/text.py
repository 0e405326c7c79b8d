"""Text as line-aligned files: bytes in, lines out.

A line is the text between two LF bytes, decoded as strict UTF-8 in any locale:

    in the file                               result
    ----------------------------------------  ---------------------------------------------------------------------
    LF                                        ends a line; the last line may lack it
    CR directly before LF                     is dropped with it (files from Windows)
    BOM (EF BB BF) at the start               is dropped; elsewhere it is the character U+FEFF
    U+2028, U+2029, U+0085, NUL, VT, FF, CR   are characters inside a line
    a blank line, on one side or both         is an ordinary line, so the lines stay aligned (see `is_blank`)
    a line of a megabyte                      is an ordinary line; memory holds one line at a time
    a line over MAX_LINE_BYTES                UserError with file and line: it may never end
    bytes that are not UTF-8                  UserError with file, line and byte
    two sides of unequal length               UserError with both counts, when the shorter side ends
    no line                                   UserError from `read_pairs`; `read_lines` yields nothing
    gz, xz or zst                             is decompressed while it is read; recognised by its first bytes
    a pipe                                    is read once; what must be read again refuses it (`open_file`)
"""

import codecs
import hashlib
import json
import os
import queue
import threading
import unicodedata
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from transduce.data.compression import StrPath, open_file, open_text, text_of
from transduce.errors import UserError

T = TypeVar("T")
LinePair = tuple[str, str]  # a source line and its target line
FilePair = tuple[Path, Path]  # two files that correspond line by line

MAX_LINE_BYTES = 1 << 26
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
INVISIBLE = frozenset(("Zs", "Zl", "Zp", "Cc", "Cf"))  # Unicode categories, such as Cf of U+200B and U+FEFF
READ_AHEAD_BYTES = 1 << 22  # the bytes that are read from a stream before they are needed; at most one line more


def read_lines(path: StrPath) -> Iterator[str]:
    """Yield the lines of a file."""
    where = os.fspath(path)
    with open_text(path) as file:
        for number, raw in enumerate(raw_lines(file, where), start=1):
            yield decode_line(raw, where, number)


def read_pairs(src_path: StrPath, tgt_path: StrPath) -> Iterator[LinePair]:
    """Yield the pairs (source line, target line) of two files that correspond line by line.

    Pairs with a blank side are kept: the n-th pair is the n-th line of both files.
    """
    src_name, tgt_name = os.fspath(src_path), os.fspath(tgt_path)
    number = 0
    with open_text(src_path) as src_file, open_text(tgt_path) as tgt_file:
        sides = raw_lines(src_file, src_name), raw_lines(tgt_file, tgt_name)
        for number, (src, tgt) in enumerate(zip_longest(*sides), start=1):
            if src is None or tgt is None:
                rest = number + lines_of(src_file if tgt is None else tgt_file)
                counts = (rest, number - 1) if tgt is None else (number - 1, rest)
                raise unequal((src_name, tgt_name), counts)
            yield decode_line(src, src_name, number), decode_line(tgt, tgt_name, number)
    if number == 0:
        raise empty(src_name, tgt_name)


def raw_lines(file: IO[bytes], where: str, *, first: int = 1) -> Iterator[bytes]:
    """Yield the undecoded lines of a file, from its position on. first: the number of the first of them.

    Raises UserError, which names `where`, for a line over MAX_LINE_BYTES.
    """
    number = first
    while raw := file.readline(MAX_LINE_BYTES + 1):
        if len(raw) > MAX_LINE_BYTES:
            raise UserError(f"{where}:{number}: expected a line of at most {MAX_LINE_BYTES:,} bytes; split the line")
        yield raw
        number += 1


def decode_line(raw: bytes, where: str, number: int) -> str:
    """Return the text of a raw line, which may end in LF. number: number of the line, from 1.

    Raises UserError, which names `where` (a path, "stdin"), for bytes that are not UTF-8. Its cause is a
    UnicodeDecodeError, unless the whole text is in UTF-16.
    """
    try:
        return _trim(raw, number == 1).decode()
    except UnicodeDecodeError as error:
        if number == 1 and raw.startswith(UTF16_MARKS):
            raise in_utf16(where) from None
        raise UserError(_not_utf8(where, number, error)) from error


def arriving_lines(file: IO[bytes], where: str, *, at_most: int) -> Iterator[list[str]]:
    """Yield the lines of a stream as they arrive, in lists of 1 to `at_most` lines.

    The caller can process lines before the stream ends. A thread reads ahead, at most `at_most` lines and about
    READ_AHEAD_BYTES; no list is longer. Raises UserError for a line that is not UTF-8, after it has yielded the lines
    before it.
    """
    ahead = _ReadAhead(at_most)

    def read_ahead() -> None:
        try:
            for raw in raw_lines(file, where):
                ahead.put(raw)
        except BaseException as problem:  # raised in the thread of the caller, which can report it
            ahead.put(problem)
        ahead.put(None)

    threading.Thread(target=read_ahead, daemon=True).start()
    number = 0
    is_at_end = False
    while not is_at_end:
        lines: list[str] = []
        problem: BaseException | None = None
        for item in ahead.take():
            if item is None:
                is_at_end = True
                break
            if isinstance(item, BaseException):
                problem = item
                break
            number += 1
            try:
                lines.append(decode_line(item, where, number))
            except UserError as error:
                problem = error
                break
        if lines:
            yield lines
        if problem is not None:
            raise problem


class _ReadAhead(queue.Queue[bytes | BaseException | None]):
    """A queue of raw lines, an error, and None at the end. It is full at `at_most` items, or at READ_AHEAD_BYTES."""

    def __init__(self, at_most: int) -> None:
        self._least = READ_AHEAD_BYTES // at_most  # the least size that an item counts
        self._size = 0
        super().__init__(READ_AHEAD_BYTES)

    def take(self) -> list[bytes | BaseException | None]:
        """Wait for an item. Return it and the items that already follow it, up to the size of a full queue."""
        items = [self.get()]
        size = self._size_of(items[0])
        while size + self._least <= self.maxsize and not self.empty():
            items.append(self.get())
            size += self._size_of(items[-1])
        return items

    def _size_of(self, item: bytes | BaseException | None) -> int:
        return max(self._least, len(item)) if isinstance(item, bytes) else self._least

    # queue.Queue calls these under its lock. It compares _qsize with maxsize.

    def _qsize(self) -> int:
        return self._size

    def _put(self, item: bytes | BaseException | None) -> None:
        super()._put(item)
        self._size += self._size_of(item)

    def _get(self) -> bytes | BaseException | None:
        item = super()._get()
        self._size -= self._size_of(item)
        return item


def is_blank(line: str) -> bool:
    """Return True if a line has no visible character: only white space, control and format characters."""
    return all(unicodedata.category(c) in INVISIBLE for c in line)


def in_capitals(text: str) -> str:
    """Return the text in capitals, character by character, so that no place in it changes."""
    capitals = ((c, c.upper()) for c in text.replace("ß", "ẞ"))
    return "".join(capital if len(capital) == 1 else c for c, capital in capitals)


def check_text(line: str, where: str = "a line") -> str:
    """Return the line unchanged. Raises UserError, which names `where`, if it cannot be encoded as UTF-8."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"character {error.start + 1} of {where}: expected a character, not {line[error.start]!r}, one half of a "
            f"surrogate pair; decode the text from its right encoding, or remove it"
        ) from error
    return line


def count_lines(path: StrPath) -> int:
    """Return the number of lines that `read_lines` would yield. The text is not checked."""
    with text_of(open_file(path).detach(), os.fspath(path)) as file:
        return lines_of(file)


def lines_of(file: IO[bytes]) -> int:
    """Read a file to its end and return the number of lines."""
    lines = 0
    last = b"\n"
    while block := file.read(1 << 20):
        lines += block.count(b"\n")
        last = block[-1:]
    return lines + (last != b"\n")


def spanned_lines(path: StrPath, begin: int, end: int, *, first: int) -> Iterator[tuple[int, int, str]]:
    """Yield the first byte, the end and the text of each line from byte `begin` to byte `end` of an uncompressed file.

    begin: the first byte of line number `first`, counted from 1. end: the first byte of a later line, or the end of the
    file.
    """
    where = os.fspath(path)
    position = begin
    with open_file(path) as file:
        file.seek(begin)
        for number, raw in enumerate(raw_lines(file, where, first=first), start=first):
            if position >= end:
                break
            start = position + (len(codecs.BOM_UTF8) if number == 1 and raw.startswith(codecs.BOM_UTF8) else 0)
            yield start, start + len(_trim(raw, number == 1)), decode_line(raw, where, number)
            position += len(raw)


def changed(path: StrPath, difference: str) -> UserError:
    """Return the error for a text file that changed during the run."""
    return UserError(f"{os.fspath(path)}: expected the same text as before, but {difference}; run the command again")


def file_sha256(path: StrPath) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode_names(content: object) -> bytes:
    """Return values with names of files as JSON. `decode_names` returns the same names, also if they are not UTF-8."""
    return json.dumps(msgspec.to_builtins(content), separators=(",", ":")).encode()


def decode_names(content: bytes, kind: type[T]) -> T:
    """Return the value of type `kind` that `encode_names` encoded. Raises ValueError for any other text."""
    return msgspec.convert(json.loads(content), kind)


def _trim(raw: bytes, first: bool) -> bytes:
    """Return a raw line without its line end and, at the start of a file, without the byte order mark."""
    if first:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    if raw.endswith(b"\n"):
        return raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
    return raw


def _not_utf8(where: str, number: int, error: UnicodeDecodeError) -> str:
    byte = error.object[error.start]
    return (
        f"{where}:{number}: expected UTF-8, but byte {error.start + 1} of the line is 0x{byte:02x}; "
        f"correct the line, or convert the file from its encoding: iconv -f ISO-8859-1 -t UTF-8 OLD > NEW"
    )


def in_utf16(where: str) -> UserError:
    """Return the error for a text that begins with one of UTF16_MARKS."""
    return UserError(f"{where}: expected UTF-8, but it is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW")


def empty(src_name: str, tgt_name: str) -> UserError:
    """Return the error for two empty files, or for one that is both."""
    if src_name == tgt_name:
        return UserError(f"{src_name}: expected at least 1 line, not an empty file; give one sentence per line")
    return UserError(
        f"{src_name} and {tgt_name}: expected at least 1 line, not empty files; give one sentence per line"
    )


def unequal(names: tuple[str, str], counts: tuple[int, int]) -> UserError:
    """Return the error for two files with different numbers of lines."""
    return UserError(
        f"{names[0]} and {names[1]}: expected the same number of lines, not {counts[0]:,} and {counts[1]:,}; look for "
        f"the first pair that does not correspond, or for a file that was cut short"
    )
