"""Compressed text and pipes: recognised by the first bytes, read once, and refused by name."""

import bz2
import gzip
import io
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.streams import piped

from transduce.cleaning.check import check
from transduce.data import text
from transduce.data.compression import compression_format, open_file, open_text, text_of
from transduce.data.corpora import Corpus, read_pairs
from transduce.errors import UserError

LINES = [f"{number} a b" for number in range(3_000)]
CONTENT = "".join(line + "\n" for line in LINES).encode()


class Trickle(io.RawIOBase):
    """A stream that has `size` bytes at a time, as a pipe may have."""

    def __init__(self, content: bytes, size: int) -> None:
        self._content, self._size = io.BytesIO(content), size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._content.read(min(self._size, len(buffer)))
        buffer[: len(block)] = block
        return len(block)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress])
def test_a_pipe_is_read_from_its_first_byte(compress: Callable[[bytes], bytes]) -> None:
    with piped(compress(CONTENT)) as (path,):
        assert list(text.read_lines(path)) == LINES
    with piped(compress(CONTENT), compress(CONTENT)) as paths:
        assert list(text.read_pairs(*paths)) == list(zip(LINES, LINES, strict=True))
    assert text_of(Trickle(compress(CONTENT), 1), "stream").read() == CONTENT


@pytest.mark.parametrize("content", [b"", b"(", b"\x1f", b"(\n", b"BZ", b"PK\x03 x\n", b"\xfd7zXZ"])
def test_a_text_that_begins_like_a_format_is_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text").write_bytes(content)
    with open_text(tmp_path / "text") as file:
        assert file.read() == content
    assert compression_format(tmp_path / "text") is None


def test_what_must_be_read_again_refuses_a_pipe(tmp_path: Path) -> None:
    """Also a named pipe that nobody writes to, without waiting."""
    os.mkfifo(tmp_path / "pipe")
    with piped(CONTENT, CONTENT) as pipes:
        for read in (open_file, compression_format, text.count_lines, text.file_sha256):
            for path in (tmp_path / "pipe", pipes[0]):
                with pytest.raises(UserError, match=f"{path.name}: expected a regular file, .* not a pipe"):
                    read(path)
        for corpus in (Corpus(pipes[0], pipes[1]), Corpus(pipes[0]), Corpus(tmp_path / "pipe")):
            with pytest.raises(UserError, match="expected a regular file"):
                check(corpus)
        with pytest.raises(UserError, match="expected a regular file"):
            list(read_pairs(Corpus(pipes[0])))
        assert list(text.read_lines(pipes[0])) == LINES


def test_a_format_that_is_not_read_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a.txt", "a b\n")
    (tmp_path / "bz2").write_bytes(bz2.compress(b"a b\n"))
    (tmp_path / "7z").write_bytes(b"7z\xbc\xaf\x27\x1c\0")
    for name in ("zip", "bz2", "7z"):
        with pytest.raises(UserError, match=f"{name}: expected text, or gz, xz or zst, not {name}; decompress"):
            list(text.read_lines(tmp_path / name))
    for name, inner in (("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)):
        (tmp_path / "twice").write_bytes(gzip.compress(inner(b"a b\n")))
        with pytest.raises(UserError, match=f"twice: expected text in the gz file, not {name}; decompress it"):
            list(text.read_lines(tmp_path / "twice"))


@pytest.mark.parametrize(("name", "form"), [("a b.docx", "plain text"), ("a.odt", "plain text"), ("a.XLSX", "CSV")])
def test_a_document_of_an_office_program_is_named(tmp_path: Path, name: str, form: str) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("document.xml", "<a/>")
    (tmp_path / "one.en").write_bytes(b"a b\n")
    extension = name[-4:].strip(".").lower()
    message = f"{name}: expected text, not a {extension} document; open it in an office program and save it as {form}"
    for corpus in (Corpus(tmp_path / name, tmp_path / "one.en"), Corpus(tmp_path / name)):
        with pytest.raises(UserError, match=f"{message} in UTF-8$"):
            check(corpus)
    (tmp_path / name).write_bytes(b"a text with a wrong name\n")
    assert list(text.read_lines(tmp_path / name)) == ["a text with a wrong name"]


def test_a_line_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MAX_LINE_BYTES", 1_000)
    (tmp_path / "bomb").write_bytes(gzip.compress(b"a\n" + bytes(10_000_000)))
    (tmp_path / "text").write_bytes(b"a\n" + b"b" * 999 + b"\n" + b"c" * 1_000 + b"\n")
    for path, place in ((Path("/dev/zero"), "zero:1"), (tmp_path / "bomb", "bomb:2"), (tmp_path / "text", "text:3")):
        for lines in (text.read_lines(path), text.read_pairs(path, path)):
            with pytest.raises(UserError, match=f"{place}: expected a line of at most 1,000 bytes; split the line"):
                list(lines)
    with pytest.raises(UserError, match="text:3: expected a line of at most 1,000 bytes"):
        list(text.spanned_lines(tmp_path / "text", 2, 2_003, first=2))


def test_a_stream_is_read_ahead_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lines fill the queue sooner than 1,024 short ones, and each list, too."""
    monkeypatch.setattr(text, "READ_AHEAD_BYTES", 10_000)
    content = b"x" * 3_999 + b"\n"
    lists = list(text.arriving_lines(io.BytesIO(content * 20), "memory", at_most=1_000))
    assert sum(map(len, lists)) == 20 and max(map(len, lists)) <= 3
    lists = list(text.arriving_lines(io.BytesIO(b"x\n" * 500), "memory", at_most=10))
    assert sum(map(len, lists)) == 500 and max(map(len, lists)) <= 10
