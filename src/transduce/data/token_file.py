"""A token file: up to 100,000 pairs of a corpus as ids, written once and read a few pairs at a time.

    blocks     BLOCK_PAIRS pairs each: spans in the text, numbers of tokens, tokens, CRC-32
    offsets    the first byte of each block
    lengths    the tokens of each side of each pair, EOS included; they suffice to plan an epoch
    footer     the key of the store and the numbers of the pairs; CRC-32s of offsets, lengths and footer

Training reads tokens. The spans are for a program that looks up the text of a pair.
The file is written under another name and renamed when it is complete. `open_token_file` checks only footer and size,
so a store opens without reading its token files. Every other part has a checksum, and each read compares it.
"""

import io
import itertools
import os
import struct
import threading
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path

import numpy as np

from transduce.data.disk import synced_file

BLOCK_PAIRS = 32
TOO_LONG = (1 << 16) - 1  # stored as the length of a side of at least this many tokens; its ids are not stored
FOOTER = struct.Struct("<32sQQQIIII")  # key, first, pairs, end of blocks, token bytes, CRCs of offsets, lengths, this

NewPair = tuple[tuple[int, int, int, int], tuple[list[int], list[int]]]  # a pair to write: spans and ids of both sides


@dataclass(frozen=True)
class Contents:
    """The contents of a token file: the lines from `first` up to `first + pairs` (from 0) of two plain `texts`.

    key: the SHA-256 of texts and tokenizer, in hexadecimal. token_bytes: the size of an id, 2 or 4.
    """

    key: str
    texts: tuple[str, str]
    first: int
    pairs: int
    token_bytes: int


class DamagedTokenFile(OSError):
    """A checksum of a token file differs. The file has been removed; the next `open_store` writes it again."""

    def __init__(self, path: Path, part: str) -> None:
        close_token_files()
        path.unlink(missing_ok=True)
        super().__init__(
            f"{path} is damaged ({part}) and has been removed; run the same command with --resume to write it again"
        )


# ---- reading -----------------------------------------------------------------------------------------------------


TokenRows = tuple[list[np.ndarray], list[np.ndarray]]  # the ids of the sources and of the targets, without BOS and EOS


@dataclass(frozen=True)
class TokenFile:
    """A token file for reading. Its methods raise DamagedTokenFile if a checksum differs.

    inode: distinguishes the file from a later file of the same name.
    """

    path: Path
    contents: Contents
    inode: int
    blocks_end: int
    offsets_crc: int
    lengths_crc: int

    def __len__(self) -> int:
        return self.contents.pairs

    def block(self, number: int) -> bytes:
        """Return a block, after comparing its checksum, which are its last 4 bytes."""
        begin, end = self.offsets[number : number + 2].tolist()
        content = self._bytes(begin, end)
        if content[-4:] != _crc(memoryview(content)[:-4], number):
            raise DamagedTokenFile(self.path, f"block {number}")
        return content

    def block_size(self, number: int) -> int:
        """Return the number of pairs in a block."""
        return min(BLOCK_PAIRS, len(self) - BLOCK_PAIRS * number)

    def lengths(self) -> np.ndarray:
        """Return the lengths of source and target in tokens, EOS included: uint16 (n,2)."""
        begin = self.blocks_end + 8 * (_block_count(len(self)) + 1)
        content = self._bytes(begin, begin + 4 * len(self))
        if zlib.crc32(content) != self.lengths_crc:
            raise DamagedTokenFile(self.path, "lengths")
        return np.frombuffer(content, "<u2").reshape(-1, 2)

    @cached_property
    def offsets(self) -> np.ndarray:
        """The first byte of each block, and the end of the last: uint64 (blocks + 1,)."""
        content = self._bytes(self.blocks_end, self.blocks_end + 8 * (_block_count(len(self)) + 1))
        if zlib.crc32(content) != self.offsets_crc:
            raise DamagedTokenFile(self.path, "offsets")
        return np.frombuffer(content, "<u8")

    def _bytes(self, begin: int, end: int) -> bytes:
        return _open_file(self.path, self.inode).read(begin, end - begin)


def rows_of(
    blocks: list[bytes], sizes: list[int], members: np.ndarray, numbers: np.ndarray, token_bytes: int
) -> TokenRows:
    """Return the ids of pairs: for each, the index of its block in `blocks`, and its number in the block.

    sizes: the number of pairs in each block. One pass over all pairs takes a third of the time of one by one.
    """
    parts = [
        block[32 * size : 40 * size].ljust(8 * BLOCK_PAIRS, b"\0") for block, size in zip(blocks, sizes, strict=True)
    ]
    counts = np.frombuffer(b"".join(parts), "<u4").reshape(-1, BLOCK_PAIRS, 2)
    lengths = counts[members, numbers].astype(np.int64)
    totals = counts.sum(axis=2, dtype=np.int64)
    begins = 40 * np.array(sizes)[members] + token_bytes * (totals.cumsum(axis=1) - totals)[members, numbers]
    ends = begins + token_bytes * lengths.sum(axis=1)
    spans = zip(members.tolist(), begins.tolist(), ends.tolist(), strict=True)
    ids = np.frombuffer(b"".join([blocks[member][begin:end] for member, begin, end in spans]), f"<u{token_bytes}")
    bounds = [0, *lengths.ravel().cumsum().tolist()]
    sides = [ids[begin:end] for begin, end in itertools.pairwise(bounds)]
    return sides[0::2], sides[1::2]


class _OpenFile:
    """A file that is open for reading while this object exists. Several threads may read it.

    The pages of a memory map would count as memory of the process.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def read(self, begin: int, size: int) -> bytes:
        if hasattr(os, "pread"):  # a process that was forked shares the position of the file
            return os.pread(self._file.fileno(), size, begin)
        with self._lock:
            self._file.seek(begin)
            return self._file.read(size)

    def __del__(self) -> None:
        self._file.close()


@lru_cache(maxsize=400)  # the usual limit of a process is 1,024 open files
def _open_file(path: Path, inode: int) -> _OpenFile:
    return _OpenFile(io.FileIO(path))


def close_token_files() -> None:
    """Close all token files; a later read opens its file again. Windows neither removes nor replaces an open file."""
    _open_file.cache_clear()


def _block_count(pairs: int) -> int:
    return -(-pairs // BLOCK_PAIRS)


def _crc(content: bytes | memoryview, number: int) -> bytes:
    """Return the checksum of block number `number`. It depends on the number, to detect exchanged blocks."""
    return zlib.crc32(content, number).to_bytes(4, "little")


# ---- opening and writing -----------------------------------------------------------------------------------------


def open_token_file(path: Path, contents: Contents) -> TokenFile | None:
    """Return the token file in `path`, or None if it is missing, incomplete or holds other contents."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            inode = os.fstat(file.fileno()).st_ino
            file.seek(max(0, size - FOOTER.size))
            footer = file.read()
    except FileNotFoundError:
        return None
    if len(footer) < FOOTER.size or zlib.crc32(footer[:-4]).to_bytes(4, "little") != footer[-4:]:
        return None
    key, first, pairs, blocks_end, token_bytes, offsets_crc, lengths_crc, _ = FOOTER.unpack(footer)
    actual = Contents(key.hex(), contents.texts, first, pairs, token_bytes)
    expected_size = blocks_end + 8 * (_block_count(pairs) + 1) + 4 * pairs + FOOTER.size
    if (actual, size) != (contents, expected_size):
        return None
    return TokenFile(path, contents, inode, blocks_end, offsets_crc, lengths_crc)


def write_token_file(path: Path, contents: Contents, pairs: Iterator[NewPair]) -> None:
    """Write `pairs` to a temporary file, and rename it to `path` when it is complete."""
    offsets = array("Q", [0])
    lengths = array("H")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with synced_file(temporary) as file:
            while rows := list(islice(pairs, BLOCK_PAIRS)):
                block = _block(rows, len(offsets) - 1, contents.token_bytes)
                offsets.append(offsets[-1] + file.write(block))
                lengths.extend(min(len(ids) + 1, TOO_LONG) for _, both in rows for ids in both)
            file.write(_tail(contents, offsets, lengths))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _block(rows: list[NewPair], number: int, token_bytes: int) -> bytes:
    sides = [ids if len(ids) + 1 < TOO_LONG else [] for _, both in rows for ids in both]
    spans = np.array([spans for spans, _ in rows], "<u8")
    counts = np.array([len(ids) for ids in sides], "<u4")
    tokens = np.fromiter(chain.from_iterable(sides), f"<u{token_bytes}", int(counts.sum()))
    content = b"".join(values.tobytes() for values in (spans, counts, tokens))
    return content + _crc(content, number)


def _tail(contents: Contents, offsets: array, lengths: array) -> bytes:
    """Return the part of the file after the blocks: offsets, lengths and footer."""
    tables = np.array(offsets, "<u8").tobytes(), np.array(lengths, "<u2").tobytes()
    crcs = [zlib.crc32(table) for table in tables]
    fields = bytes.fromhex(contents.key), contents.first, contents.pairs, offsets[-1], contents.token_bytes
    footer = FOOTER.pack(*fields, *crcs, 0)[:-4]
    return b"".join((*tables, footer, zlib.crc32(footer).to_bytes(4, "little")))
