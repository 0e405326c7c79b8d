"""Text as line-aligned files: bytes in, lines out.

A line is what stands between two LF bytes, decoded as strict UTF-8, whatever the locale says:

    in the file                               what becomes of it
    ----------------------------------------  ---------------------------------------------------------------------
    LF                                        ends a line; the last line may do without
    CR directly before LF                     is dropped with it (files from Windows)
    BOM (EF BB BF) at the start               is dropped; anywhere else it is the character U+FEFF
    U+2028, U+2029, U+0085, NUL, VT, FF, CR   are characters inside a line
    a blank line, on one side or both         is a line like any other, so that pairs stay pairs; `is_blank` tells
    a line of a megabyte                      is a line like any other; one line at a time is held in memory
    bytes that are not UTF-8                  UserError with file, line and byte
    two sides of unequal length               UserError with both counts, when the shorter side ends
    no line at all                            UserError from `read_pairs`; `read_lines` yields nothing
    gz, xz or zst                             is unpacked as it is read, known by its first bytes, not by its name
"""

import codecs
import hashlib
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from typing import IO

from transduce.data.compression import StrPath, open_file, open_text
from transduce.errors import UserError


def read_lines(path: StrPath) -> Iterator[str]:
    """The lines of a file, one at a time."""
    where = os.fspath(path)
    with open_text(path) as file:
        for number, raw in enumerate(file, start=1):
            yield decode_line(raw, where, number)


def read_pairs(src_path: StrPath, tgt_path: StrPath) -> Iterator[tuple[str, str]]:
    """The pairs (source line, target line) of two files that correspond line by line.

    Blank sides are kept: the n-th pair is the n-th line of both files.
    """
    src_name, tgt_name = os.fspath(src_path), os.fspath(tgt_path)
    number = 0
    with open_text(src_path) as src_file, open_text(tgt_path) as tgt_file:
        for number, (src, tgt) in enumerate(zip_longest(src_file, tgt_file), start=1):
            if src is None or tgt is None:
                rest = number + sum(1 for _ in (src_file if tgt is None else tgt_file))
                counts = (rest, number - 1) if tgt is None else (number - 1, rest)
                raise unequal((src_name, tgt_name), counts)
            yield decode_line(src, src_name, number), decode_line(tgt, tgt_name, number)
    if number == 0:
        raise empty(src_name, tgt_name)


def decode_line(raw: bytes, where: str, number: int) -> str:
    """The text of one raw line: `raw` with its LF, if it had one; `number` counts from 1.

    `where` names the source (a path, "stdin") in the UserError about bytes that are not UTF-8.
    """
    try:
        return _trim(raw, number == 1).decode()
    except UnicodeDecodeError as error:
        raise UserError(_not_utf8(raw, where, number, error)) from error


def arriving_lines(file: IO[bytes], where: str, *, at_most: int) -> Iterator[list[str]]:
    """The lines of a stream as they arrive: each list holds what has come so far, at least one line, `at_most` many.

    So a reader can answer before the stream ends. A thread reads ahead, no further than `at_most` lines. Lines before
    one that is not UTF-8 still come; then UserError.
    """
    arrived: queue.Queue[bytes | BaseException | None] = queue.Queue(at_most)

    def read_ahead() -> None:
        try:
            for raw in file:
                arrived.put(raw)
        except BaseException as problem:  # of the stream; raised again where it can be reported
            arrived.put(problem)
        arrived.put(None)

    threading.Thread(target=read_ahead, daemon=True).start()
    number, ended = 0, False
    while not ended:
        lines: list[str] = []
        problem: BaseException | None = None
        items = [arrived.get()]
        while not arrived.empty() and len(items) < at_most:
            items.append(arrived.get())
        for item in items:
            if item is None:
                ended = True
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


def is_blank(line: str) -> bool:
    """Whether a line holds nothing but white space."""
    return not line or line.isspace()


def count_lines(path: StrPath) -> int:
    """How many lines a file has, as `read_lines` would count them; its text is not checked."""
    with open_text(path) as file:
        return lines_of(file)


def lines_of(file: IO[bytes]) -> int:
    """How many lines are left in a file, whose end is reached then."""
    lines, last = 0, b"\n"
    while block := file.read(1 << 20):
        lines += block.count(b"\n")
        last = block[-1:]
    return lines + (last != b"\n")


def spanned_lines(path: StrPath, begin: int, end: int, *, first: int) -> Iterator[tuple[int, int, str]]:
    """The lines between two bytes of a file that is not packed: where the text of each begins and ends, and the text.

    `begin` is the first byte of line number `first`, which counts from 1; `end` is that of another line, or the end.
    """
    where, position = os.fspath(path), begin
    with open_file(path) as file:
        file.seek(begin)
        for number, raw in enumerate(file, start=first):
            if position >= end:
                break
            start = position + (len(codecs.BOM_UTF8) if number == 1 and raw.startswith(codecs.BOM_UTF8) else 0)
            yield start, start + len(_trim(raw, number == 1)), decode_line(raw, where, number)
            position += len(raw)


def read_span(path: StrPath, begin: int, end: int) -> str:
    """The line whose text is the bytes `begin` to `end` of a file, by `spanned_lines`."""
    with open_file(path) as file:
        file.seek(begin)
        raw = file.read(end - begin)
    if len(raw) == end - begin and b"\n" not in raw:
        with suppress(UnicodeDecodeError):
            return raw.decode()
    raise changed(path, f"has no line from byte {begin} to {end} any more")


def changed(path: StrPath, what: str) -> UserError:
    """The error about a text that is not what it was."""
    return UserError(f"{os.fspath(path)} {what}: it was changed while in use. Start again.")


def file_sha256(path: StrPath) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _trim(raw: bytes, first: bool) -> bytes:
    """A raw line without its line end and, at the start of a file, without the byte order mark."""
    if first:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    if raw.endswith(b"\n"):
        return raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
    return raw


def _not_utf8(raw: bytes, where: str, number: int, error: UnicodeDecodeError) -> str:
    if number == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return f"{where} is UTF-16, expected UTF-8; convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW"
    byte = error.object[error.start]
    return (
        f"{where}:{number} is not valid UTF-8: byte {error.start + 1} of the line is 0x{byte:02x}. "
        f"Correct the line, or convert the file if it has another encoding: iconv -f ISO-8859-1 -t UTF-8 OLD > NEW"
    )


def empty(src_name: str, tgt_name: str) -> UserError:
    """The error about two files without a line."""
    return UserError(f"{src_name} and {tgt_name} are empty; give two files with one sentence per line.")


def unequal(names: tuple[str, str], counts: tuple[int, int]) -> UserError:
    """The error about two files that have not the same number of lines."""
    return UserError(
        f"{names[0]} has {counts[0]:,} lines but {names[1]} has {counts[1]:,}; they must match line by line. "
        f"Look for the first pair that does not correspond, or for a file that was cut short."
    )
