"""A part of the token store: a file of some of a corpus's pairs as ids, written once, read a pair at a time.

    blocks     of BLOCK_PAIRS pairs: spans in the text, numbers of tokens, tokens, CRC-32
    offsets    where each block begins
    lengths    of each side of each pair in tokens, EOS included, for planning an epoch
    footer     which store and which pairs these are; CRC-32s of offsets, lengths and itself

It is written beside and renamed when it is whole. `find_part` looks at footer and size only. Everything else carries a
checksum that is tested whenever it is read, so that opening a store need not read the whole.
"""

import os
import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path

import numpy as np

from transduce.data import text

BLOCK_PAIRS = 32
TOO_LONG = (1 << 16) - 1  # the length of a side with so many tokens or more; they are not kept
FOOTER = struct.Struct("<32sQQQIIII")  # key, first, pairs, end of blocks, token bytes, CRCs of offsets, lengths, this

Encoded = tuple[tuple[int, int, int, int], tuple[list[int], list[int]]]  # the spans of both sides, and their ids


@dataclass(frozen=True)
class Contents:
    """What a part holds: the lines `first` to `first + pairs` (from 0) of two plain `texts`, under the store's key."""

    key: str  # SHA-256, in hexadecimal
    texts: tuple[str, str]
    first: int
    pairs: int
    token_bytes: int  # of an id: 2 or 4


class Damaged(OSError):
    """A file of a store is not what was written. It has been removed, and the next opening prepares it anew."""

    def __init__(self, path: Path, what: str) -> None:
        path.unlink(missing_ok=True)
        remedy = "the same command with --resume prepares it anew and goes on"
        super().__init__(f"{path} is damaged ({what}) and has been removed; {remedy}")


# ---- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A pair of a store. ids: of source and target, without BOS and EOS. spans: of its lines in `texts`, in bytes."""

    ids: tuple[np.ndarray, np.ndarray]
    spans: tuple[tuple[int, int], tuple[int, int]]
    texts: tuple[str, str]

    def line(self, side: int) -> str:
        """The text of one side, 0 source, 1 target. UserError if the file has changed since."""
        return text.read_span(self.texts[side], *self.spans[side])


@dataclass(frozen=True)
class Part:
    """A part, open for reading. Raises Damaged for whatever is not as it was written."""

    path: Path
    contents: Contents
    inode: int  # tells this file from one that takes its place
    blocks_end: int
    offsets_crc: int
    lengths_crc: int

    def __len__(self) -> int:
        return self.contents.pairs

    def read(self, number: int) -> Pair:
        """Pair number `number` of this part."""
        block, row = divmod(number, BLOCK_PAIRS)
        pairs = min(BLOCK_PAIRS, len(self) - block * BLOCK_PAIRS)
        content = self.block(block)
        spans = np.frombuffer(content, "<u8", 4 * pairs)[4 * row : 4 * row + 4].tolist()
        counts = np.frombuffer(content, "<u4", 2 * pairs, offset=32 * pairs)
        tokens = np.frombuffer(content, f"<u{self.contents.token_bytes}", offset=40 * pairs)
        begin = int(counts[: 2 * row].sum())
        middle = begin + int(counts[2 * row])
        ids = tokens[begin:middle], tokens[middle : middle + int(counts[2 * row + 1])]
        return Pair(ids, ((spans[0], spans[1]), (spans[2], spans[3])), self.contents.texts)

    def block(self, number: int) -> bytes:
        """The content of a block, without its checksum, which has been tested."""
        content = self._bytes(*self.offsets[number : number + 2].tolist())
        if content[-4:] != _crc(content[:-4], number):
            raise Damaged(self.path, f"block {number}")
        return content[:-4]

    def check(self) -> None:
        """Read everything."""
        self.lengths()
        for number in range(len(self.offsets) - 1):
            self.block(number)

    def lengths(self) -> np.ndarray:
        """The lengths of source and target, EOS included, uint16 (n,2)."""
        begin = self.blocks_end + 8 * (_blocks(len(self)) + 1)
        content = self._bytes(begin, begin + 4 * len(self))
        if zlib.crc32(content) != self.lengths_crc:
            raise Damaged(self.path, "lengths")
        return np.frombuffer(content, "<u2").reshape(-1, 2)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each block begins, and where the last one ends, uint64 (blocks + 1,)."""
        content = self._bytes(self.blocks_end, self.blocks_end + 8 * (_blocks(len(self)) + 1))
        if zlib.crc32(content) != self.offsets_crc:
            raise Damaged(self.path, "offsets")
        return np.frombuffer(content, "<u8")

    def _bytes(self, begin: int, end: int) -> bytes:
        """Bytes of the file. Not mapped: a map counts as memory of the process, more and more of it."""
        return os.pread(_opened(self.path, self.inode).number, end - begin, begin)


class _Opened:
    """A file that is open for reading while this object lives."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self.number)


@lru_cache(maxsize=400)  # of the 1,024 files that a process may usually have open
def _opened(path: Path, inode: int) -> _Opened:
    return _Opened(path)


def _blocks(pairs: int) -> int:
    """How many blocks hold so many pairs."""
    return -(-pairs // BLOCK_PAIRS)


def _crc(content: bytes, number: int) -> bytes:
    """The checksum of block number `number`."""
    return zlib.crc32(content, number).to_bytes(4, "little")


# ---- finding and writing ---------------------------------------------------------------------------------------


def find_part(path: Path, contents: Contents) -> Part | None:
    """The part in `path`, if it is there, whole, and holds just that."""
    try:
        with path.open("rb") as file:
            size, inode = file.seek(0, os.SEEK_END), os.fstat(file.fileno()).st_ino
            file.seek(max(0, size - FOOTER.size))
            footer = file.read()
    except FileNotFoundError:
        return None
    if len(footer) < FOOTER.size or zlib.crc32(footer[:-4]).to_bytes(4, "little") != footer[-4:]:
        return None
    key, first, pairs, blocks_end, token_bytes, offsets_crc, lengths_crc, _ = FOOTER.unpack(footer)
    found = Contents(key.hex(), contents.texts, first, pairs, token_bytes)
    whole = blocks_end + 8 * (_blocks(pairs) + 1) + 4 * pairs + FOOTER.size
    if (found, size) != (contents, whole):
        return None
    return Part(path, contents, inode, blocks_end, offsets_crc, lengths_crc)


def write_part(path: Path, contents: Contents, pairs: Iterator[Encoded]) -> None:
    """Write the file of a part."""
    offsets, lengths = array("Q", [0]), array("H")
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with writing.open("wb") as file:
            while rows := list(islice(pairs, BLOCK_PAIRS)):
                block = _block(rows, len(offsets) - 1, contents.token_bytes)
                offsets.append(offsets[-1] + file.write(block))
                lengths.extend(min(len(ids) + 1, TOO_LONG) for _, both in rows for ids in both)
            file.write(_tail(contents, offsets, lengths))
            file.flush()
            os.fsync(file.fileno())
        writing.rename(path)
    finally:
        writing.unlink(missing_ok=True)


def _block(rows: list[Encoded], number: int, token_bytes: int) -> bytes:
    kept = [ids if len(ids) + 1 < TOO_LONG else [] for _, both in rows for ids in both]
    spans = np.array([spans for spans, _ in rows], "<u8")
    counts = np.array([len(ids) for ids in kept], "<u4")
    tokens = np.fromiter(chain.from_iterable(kept), f"<u{token_bytes}", int(counts.sum()))
    content = b"".join(values.tobytes() for values in (spans, counts, tokens))
    return content + _crc(content, number)


def _tail(contents: Contents, offsets: array, lengths: array) -> bytes:
    parts = np.array(offsets, "<u8").tobytes(), np.array(lengths, "<u2").tobytes()
    crcs = [zlib.crc32(part) for part in parts]
    what = bytes.fromhex(contents.key), contents.first, contents.pairs, offsets[-1], contents.token_bytes
    footer = FOOTER.pack(*what, *crcs, 0)[:-4]
    return b"".join((*parts, footer, zlib.crc32(footer).to_bytes(4, "little")))
