"""Sound from a file: any format, rate and number of channels that libsndfile reads, as one channel at 16 kHz."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transduce.console import printable
from transduce.errors import UserError
from transduce.family.sound.log_mel import RATE

BLOCK = 1 << 18  # samples of each channel that are read at a time
STDIN = Path("-")
REMEDY = "use a sound file, such as wav, flac, ogg or mp3"


def read_sound(path: str | Path) -> np.ndarray:
    """Return the samples (N,) of a sound file in fp32, mixed to one channel, at `RATE`. "-" is standard input.

    Raises UserError for a file that is no sound, is damaged, or has no samples.
    """
    path = Path(path)
    name = check_sound(path)
    soundfile, soxr = _libraries(name)
    source = path if path != STDIN else io.BytesIO(open(0, "rb", closefd=False).read())
    try:
        with soundfile.SoundFile(source) as file:
            samples = np.concatenate([np.empty(0, np.float32), *_blocks(file, soxr, name)])
    except soundfile.LibsndfileError as problem:
        raise UserError(f"{name}: expected a sound ({str(problem.error_string).rstrip('.')}); {REMEDY}") from None
    if not len(samples):
        raise UserError(f"{name}: expected a sound, but it has no samples; {REMEDY}")
    return samples


def check_sound(path: Path) -> str:
    """Return the name of a sound file for messages. Raises UserError if it is no file, or if packages are missing."""
    name = "standard input" if path == STDIN else printable(path)
    if path != STDIN and not path.is_file():
        problem = "no file" if path.exists() else "missing"
        raise UserError(f"{name}: expected a sound file, but it is {problem}; check the path")
    _libraries(name)
    return name


def _blocks(file: Any, soxr: Any, name: str) -> Iterator[np.ndarray]:
    """Yield the samples of an open file, block by block, so that a long one needs little memory."""
    stream = soxr.ResampleStream(file.samplerate, RATE, 1, dtype="float32")
    n_read = 0
    for block in file.blocks(BLOCK, dtype="float32", always_2d=True):
        if not np.isfinite(block).all():
            raise UserError(f"{name}: expected samples that are finite numbers; use another copy")
        n_read += len(block)
        yield stream.resample_chunk(block.mean(axis=1), last=n_read == file.frames)
    if n_read < file.frames:
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
