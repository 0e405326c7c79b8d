"""Sound from a file: wav, flac, ogg or mp3 of any rate and number of channels, as one channel at 16 kHz."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from transduce.console import printable
from transduce.errors import UserError
from transduce.family.sound.log_mel import RATE
from transduce.family.sound.whole_file import CONVERT, FRAME, check_mp3, check_whole

BLOCK = 1 << 18  # samples of each channel that are read at a time
FORMATS = ("WAV", "WAVEX", "AIFF", "FLAC", "OGG", "MP3")  # in which a file that ends early is found
LEAST_RATE = 1_000  # samples a second; a sound of 1 Hz would grow 16,000 times
STDIN = Path("-")
REMEDY = "use a sound file, such as wav, flac, ogg or mp3"


def samples_of(sound: str | Path | np.ndarray | Tensor) -> Tensor:
    """Return the samples (N,) of a sound: a file, or samples. Raises UserError as `read_sound` does."""
    if isinstance(sound, str | Path):
        sound = read_sound(sound)
    return torch.as_tensor(np.ascontiguousarray(sound) if isinstance(sound, np.ndarray) else sound)


def read_sound(path: str | Path) -> np.ndarray:
    """Return the samples (N,) of a sound file in fp32, mixed to one channel, at `RATE`. "-" is standard input.

    Raises UserError for a file that is no sound, is damaged or not whole, or has no samples.
    """
    path = Path(path)
    name = _name(path)
    with _open(path, name) as file:
        samples = np.concatenate([np.empty(0, np.float32), *_blocks(file, name)])
    if not len(samples):
        raise UserError(f"{name}: expected a sound, but it has no samples; {REMEDY}")
    return samples


def sound_length(path: Path) -> int:
    """Return the number of samples at `RATE` of a sound file, by its header: its samples may still be damaged.

    Raises UserError as `check_sound` does.
    """
    with _open(path, _name(path)) as file:
        return round(file.frames * RATE / file.samplerate)


def check_sound(path: Path) -> str:
    """Return the name of a sound file for messages.

    Raises UserError if its header shows that it is no sound or not whole, or if packages are missing. A pipe is not
    read.
    """
    name = _name(path)
    if path != STDIN and path.is_file():
        with _open(path, name):
            pass
    return name


def _name(path: Path) -> str:
    name = "standard input" if path == STDIN else printable(path)
    if path != STDIN and not path.is_file() and not path.is_fifo():
        problem = "no file" if path.exists() else "missing"
        raise UserError(f"{name}: expected a sound file, but it is {problem}; check the path")
    _libraries(name)
    return name


@contextmanager
def _open(path: Path, name: str) -> Iterator[Any]:
    """Open a sound file with soundfile. Raises UserError, also for the errors of libsndfile in the block."""
    soundfile, _ = _libraries(name)
    with _bytes_of(path) as source:
        check_whole(source, name)
        try:
            with soundfile.SoundFile(source) as file:
                if file.format not in FORMATS:
                    raise UserError(f"{name}: expected wav, flac, ogg, mp3 or aiff, not {file.format}; {CONVERT}")
                if file.samplerate < LEAST_RATE:
                    expected = f"expected a rate of at least {LEAST_RATE:,} Hz, not {file.samplerate:,}"
                    raise UserError(f"{name}: {expected}; use another copy")
                if file.format == "MP3":
                    position = source.tell()
                    source.seek(0)
                    check_mp3(source.read(), file.frames, name)
                    source.seek(position)
                yield file
        except soundfile.LibsndfileError as problem:
            reason = str(problem.error_string).rstrip(".") or "of an unknown form"
            raise UserError(f"{name}: expected a sound ({reason}); {REMEDY}") from None


def _bytes_of(path: Path) -> BinaryIO:
    """Return a file whose bytes can be read in any order, without a name: soundfile would guess the format by it."""
    if path == STDIN:
        return io.BytesIO(open(0, "rb", closefd=False).read())
    if path.is_fifo():
        return io.BytesIO(path.read_bytes())
    file = io.FileIO(path)
    file.name = ""
    return io.BufferedReader(file)


def _blocks(file: Any, name: str) -> Iterator[np.ndarray]:
    """Yield the samples of an open file, block by block, so that a long one needs little memory."""
    _, soxr = _libraries(name)
    stream = soxr.ResampleStream(file.samplerate, RATE, 1, dtype="float32")
    n_read = 0
    while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
        if not np.isfinite(block).all():
            raise UserError(f"{name}: expected samples that are finite numbers; use another copy")
        n_read += len(block)
        yield stream.resample_chunk(block.mean(axis=1))
    yield stream.resample_chunk(np.empty(0, np.float32), last=True)
    missing = file.frames - n_read
    if missing > (4 * FRAME if file.format == "MP3" else 0):  # of mp3, the number is an estimate
        raise UserError(f"{name}: expected {file.frames:,} samples, but it ends after {n_read:,}; use another copy")


def _libraries(name: str) -> tuple[Any, Any]:
    try:
        import soundfile
        import soxr
    except (ImportError, OSError) as problem:  # the second: no libsndfile on the system
        raise UserError(
            f"{name}: expected the packages soundfile and soxr ({problem}); pip install 'transduce[sound]'"
        ) from None
    return soundfile, soxr
