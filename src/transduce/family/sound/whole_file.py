"""Checks that a sound file is whole and is one sound: libsndfile reads some others short, without a word."""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

from transduce.errors import UserError

CONVERT = "convert it: ffmpeg -i IN OUT.wav"
CHUNKS = {b"RIFF": ("<", b"data"), b"RIFX": (">", b"data"), b"FORM": (">", b"SSND")}  # order of bytes, chunk of samples
OF_A_STREAM = 0x7FFF0000  # sizes from here on, about 2 GB, stand for "unknown"
BEGIN, END = 2, 4  # flags of an Ogg page
MP3_RATES = (44_100, 48_000, 32_000)
MP3_BITRATES = {  # kbit/s, by the version of MPEG
    1: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
FRAME = 1_152  # samples of an mp3 frame, at most


def check_whole(file: BinaryIO, name: str) -> None:
    """Raise UserError if a wav, aiff, flac or ogg file ends early, or has several sounds or none of a known length.

    file: open at its beginning, where it is again afterwards. name: of the file, for messages.
    """
    start = file.read(26)
    size = file.seek(0, os.SEEK_END)
    if start[:4] in CHUNKS:
        _check_chunks(file, size, name, *CHUNKS[start[:4]])
    elif start[:4] == b"fLaC" and len(start) == 26 and not int.from_bytes(start[21:26], "big") & 0xF_FFFF_FFFF:
        raise UserError(f"{name}: expected the number of samples in its header; {CONVERT}")
    elif start[:4] == b"OggS":
        _check_pages(file, size, name)
    file.seek(0)


def _check_chunks(file: BinaryIO, size: int, name: str, order: str, samples: bytes) -> None:
    position = 12
    while position + 8 <= size:
        file.seek(position)
        kind, n_bytes = struct.unpack(f"{order}4sI", file.read(8))
        position += 8
        if kind == samples and n_bytes < OF_A_STREAM:
            if n_bytes == 0 and position < size:
                raise UserError(f"{name}: expected the number of samples in its header; {CONVERT}")
            if position + n_bytes > size:
                raise UserError(_too_short(name, f"{n_bytes:,} bytes of samples", f"{size - position:,}"))
        position += n_bytes + n_bytes % 2


def _too_short(name: str, expected: str, found: str) -> str:
    return f"{name}: expected {expected}, but it ends after {found}; use a whole copy"


def _check_pages(file: BinaryIO, size: int, name: str) -> None:
    flags = 0
    position = 0
    codecs = list[bytes]()
    while position < size:
        file.seek(position)
        header = file.read(27)
        lengths = file.read(header[26]) if header[:4] == b"OggS" and len(header) == 27 else b""
        flags = header[5] if lengths else 0
        position += 27 + len(lengths) + sum(lengths)
        if not lengths or position > size:
            flags = 0
            break
        codecs += [file.read(7)] if flags & BEGIN else []
    if len(codecs) > len(set(codecs)):
        raise UserError(f"{name}: expected one sound, not several in a chain; {CONVERT}")
    if not flags & END:
        raise UserError(f"{name}: expected an ogg file with its end; use a whole copy, or {CONVERT}")


def check_mp3(content: bytes, n_samples: int, name: str) -> None:
    """Raise UserError if an mp3 file does not have about the number of samples that libsndfile expects.

    content: the whole file. n_samples: of each channel. Without a header, libsndfile only estimates their number.
    """
    frames = list(_frames(content))
    n, end = sum(n for n, _ in frames), frames[-1][1] if frames else 0
    if n < n_samples - 4 * FRAME or end > len(content):
        raise UserError(f"{_too_short(name, f'about {n_samples:,} samples', f'{n:,}')}, or {CONVERT}")
    if n > n_samples + 4 * FRAME:
        raise UserError(f"{name}: expected one mp3 with its length, not {n:,} samples for {n_samples:,}; {CONVERT}")


def _frames(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the number of samples of each frame of an mp3 file, and where it ends. Tags between frames are skipped."""
    position, mark = 0, b"\xff"
    while 0 <= position < len(content) - 4:
        head = content[position : position + 10]
        if head[:3] == b"ID3" and len(head) == 10:
            position += 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True))
            continue
        if head[:3] == b"TAG":
            position += 128
            continue
        n_bytes, n = _frame(head)
        if not n_bytes:
            ends = (content.find(start, position + 1) for start in (mark, b"ID3"))
            position = min((end for end in ends if end > 0), default=-1)
            continue
        mark = head[:2]
        position += n_bytes
        yield n, position


def _frame(head: bytes) -> tuple[int, int]:
    """Return the number of bytes and of samples of a frame by its first 4 bytes; 0 and 0 where none begins."""
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    bitrate, rate = head[2] >> 4, head[2] >> 2 & 3
    if head[0] != 0xFF or head[1] < 0xE0 or version == 1 or layer != 1 or bitrate in (0, 15) or rate == 3:
        return 0, 0
    n = FRAME if version == 3 else FRAME // 2
    bits = 1_000 * MP3_BITRATES[1 if version == 3 else 2][bitrate - 1]
    return n // 8 * bits // (MP3_RATES[rate] >> (0, 1, 2)[(3, 2, 0).index(version)]) + (head[2] >> 1 & 1), n
