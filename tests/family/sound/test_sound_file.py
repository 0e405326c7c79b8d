"""Sound files that end early, that are several sounds, or whose headers do not say how long they are."""

import io
import os
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.whisper_folder import RATE, noise

from transduce.errors import UserError
from transduce.family.sound.sound_file import check_sound, read_sound
from transduce.family.sound.whole_file import _frame

soundfile = pytest.importorskip("soundfile", reason="needs transduce[sound]")
needs_mp3 = pytest.mark.skipif("MP3" not in soundfile.available_formats(), reason="needs a libsndfile with mp3")


def content(seconds: float, form: str, rate: int = RATE, **options: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, noise(seconds * RATE / rate).numpy()[: int(seconds * rate)], rate, format=form, **options)
    return file.getvalue()


def mp3(seconds: float, mode: str = "CONSTANT") -> bytes:
    return content(seconds, "MP3", bitrate_mode=mode, compression_level=0.5)


def without_header(whole: bytes) -> bytes:
    """Return an mp3 without its first frame, which has no sound but the number of frames."""
    assert b"Xing" in whole[:200] or b"Info" in whole[:200]
    return whole[_frame(whole[:4])[0] :]


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as problem:
        read_sound(path)
    message = str(problem.value)
    assert message.startswith(f"{path}: expected ") and "\n" not in message
    with pytest.raises(UserError) as early:
        check_sound(path)  # before any transcription
    assert str(early.value) == message
    return message


@needs_mp3
@pytest.mark.parametrize("seconds", [2.0, 17.0])  # less and more than a block
def test_half_an_mp3_is_refused(tmp_path: Path, seconds: float) -> None:
    whole = mp3(seconds)
    path = tmp_path / "a.mp3"
    path.write_bytes(whole[: len(whole) // 2])
    assert "use a whole copy" in refusal(path)
    path.write_bytes(without_header(whole)[: 144 * 60 + 50])  # within a frame: the cut shows without the header too
    assert "convert it" in refusal(path)
    path.write_bytes(whole)
    assert len(read_sound(path)) == pytest.approx(seconds * RATE, abs=2_000)


@needs_mp3
def test_an_mp3_whose_length_is_estimated_is_refused_where_the_estimate_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    path.write_bytes(mp3(2) + mp3(1))
    assert refusal(path).endswith("convert it: ffmpeg -i IN OUT.wav")
    path.write_bytes(without_header(mp3(2, "VARIABLE")))
    assert refusal(path).endswith("convert it: ffmpeg -i IN OUT.wav")


@needs_mp3
def test_an_mp3_with_tags_and_one_without_a_header_are_whole(tmp_path: Path) -> None:
    whole = mp3(2)
    path = tmp_path / "a.mp3"
    tag = b"ID3\x04\0\0\0\0\x07\0" + b"\xff\xf3\x88\xc4" * 100 + bytes(496)  # a picture may look like frames
    path.write_bytes(tag + whole + b"TAG" + bytes(125))
    assert len(read_sound(path)) == pytest.approx(2 * RATE, abs=2_000)
    path.write_bytes(without_header(whole))
    assert len(read_sound(path)) == pytest.approx(2 * RATE, abs=3_000)


@pytest.mark.parametrize(("form", "ending"), [("WAV", "wav"), ("AIFF", "aiff"), ("OGG", "ogg")])
def test_half_a_file_is_refused(tmp_path: Path, form: str, ending: str) -> None:
    whole = content(1, form)
    path = tmp_path / f"a.{ending}"
    for n in len(whole) // 2, len(whole) - 1:
        path.write_bytes(whole[:n])
        assert "use a whole copy" in refusal(path)
    path.write_bytes(whole)
    check_sound(path)
    assert len(read_sound(path)) == RATE


def test_a_chain_of_ogg_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ogg"
    path.write_bytes(content(1, "OGG") * 2)
    assert "expected one sound, not several" in refusal(path)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000])
def test_a_wav_of_a_stream_has_the_size_of_its_file(tmp_path: Path, size: int) -> None:
    whole = content(1, "WAV")
    path = tmp_path / "a.wav"
    path.write_bytes(whole[:40] + struct.pack("<I", size) + whole[44:])
    assert len(read_sound(path)) == RATE


def test_a_header_without_a_length_has_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a"
    wav, flac = content(1, "WAV"), bytearray(content(1, "FLAC"))
    path.write_bytes(wav[:40] + bytes(4) + wav[44:])
    assert "number of samples in its header; convert it: ffmpeg -i IN OUT.wav" in refusal(path)
    flac[21] &= 0xF0
    flac[22:26] = bytes(4)
    path.write_bytes(flac)
    assert "number of samples in its header; convert it: ffmpeg -i IN OUT.wav" in refusal(path)


def test_low_rates_and_other_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(100), 8)
    assert "expected a rate of at least 1,000 Hz, not 8" in refusal(path)
    path = tmp_path / "a.au"
    soundfile.write(path, np.zeros(100), RATE)
    assert "not AU; convert it" in refusal(path)


def test_the_name_of_a_file_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "a.raw"
    path.write_bytes(content(0.1, "WAV"))
    assert len(read_sound(path)) == RATE // 10
    path.write_bytes(bytes(1_000))
    assert "expected a sound (Format not recognised)" in refusal(path)
    try:
        path = path.rename(tmp_path / os.fsdecode(b"\xff.wav"))
    except OSError:
        pytest.skip("the file system needs names in UTF-8")
    path.write_bytes(content(0.1, "WAV"))
    assert len(read_sound(path)) == RATE // 10


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    check_sound(path)  # does not open it
    writer = threading.Thread(target=path.write_bytes, args=(content(1, "WAV"),))
    writer.start()
    assert len(read_sound(path)) == RATE
    writer.join()
