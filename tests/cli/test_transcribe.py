"""`transduce transcribe` as a Unix filter, with sound files of many kinds."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import assert_mistake
from support.small_encoders import bert_folder
from support.toy_task import CommandResult
from support.whisper_folder import RATE, noise, write_whisper

from transduce.family.hugging_face.folder import Member, write_member
from transduce.family.hugging_face.wav2vec2 import CONVERSION
from transduce.family.inference.speech_recogniser import SpeechRecogniser
from transduce.family.inference.transcriber import Transcriber
from transduce.family.sound.configs import Wav2Vec2Config
from transduce.family.sound.sound_file import read_sound
from transduce.family.sound.wav2vec2 import Wav2Vec2

soundfile = pytest.importorskip("soundfile", reason="needs transduce[sound]")
Cli = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper") / "model"
    write_whisper(folder)
    return folder


@pytest.fixture
def sounds(tmp_path: Path) -> list[Path]:
    """Return three sounds of 0.5, 1.5 and 1 s."""
    paths = [tmp_path / name for name in ("a.wav", "b.flac", "c.ogg")]
    for path, seconds in zip(paths, (0.5, 1.5, 1.0), strict=True):
        soundfile.write(path, noise(seconds, 7).numpy(), RATE)
    return paths


def test_a_line_of_output_is_the_text_of_a_file(folder: Path, sounds: list[Path], cli: Cli) -> None:
    model = Transcriber.load(folder)
    transcripts = [model.transcribe(sound, language="de", task="translate", beam_size=2) for sound in sounds]
    result = cli("transcribe", folder, *sounds, "--language", "de", "--task", "translate", "--beam-size", 2)
    assert result.code == 0, result.err
    expected = [" ".join(transcript.text.split()) for transcript in transcripts]
    assert result.out.decode() == "".join(f"{line}\n" for line in expected)
    cut = [
        f"{path}: from {start:g} to {end:g} s: cut"
        for path, t in zip(sounds, transcripts, strict=True)
        for start, end in t.cut
    ]
    lines = result.err.splitlines()
    assert cut and len(lines) == len(cut) and all(part in line for part, line in zip(cut, lines, strict=True))


def test_json_has_segments(folder: Path, sounds: list[Path], cli: Cli) -> None:
    result = cli("transcribe", folder, *sounds[:2], "--format", "json")
    records = [json.loads(line) for line in result.out.splitlines()]
    model = Transcriber.load(folder)
    for record, sound in zip(records, sounds, strict=False):
        transcript = model.transcribe(sound, times=True)
        assert record["file"] == str(sound) and record["language"] == transcript.language in ("en", "de", "yue")
        assert [s["text"] for s in record["segments"]] == [segment.text for segment in transcript.segments]
    assert records[1]["duration"] == 1.5


def test_subtitles_are_numbered_and_in_order(folder: Path, sounds: list[Path], cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "b.srt"
    result = cli("transcribe", folder, sounds[1], "--format", "srt", "--language", "en", "--output", target)
    assert (result.code, result.out) == (0, b"")
    cues = [cue.split("\n", 2) for cue in target.read_text("utf-8").rstrip("\n").split("\n\n")]
    assert [number for number, *_ in cues] == [str(i + 1) for i in range(len(cues))] and len(cues) > 2
    starts = [times.split(" --> ")[0] for _, times, _ in cues]
    assert starts == sorted(starts) and starts[0].startswith("00:00:00,")
    two = cli("transcribe", folder, *sounds[:2], "--format", "srt")
    assert_mistake(two, "--format=srt: expected one sound file, not 2; transcribe one after the other")


def test_standard_input_is_a_sound(folder: Path, sounds: list[Path], cli: Cli) -> None:
    stdin = os.dup(0)
    try:
        with sounds[0].open("rb") as file:
            os.dup2(file.fileno(), 0)
        result = cli("transcribe", folder, "-", sounds[0], "--language", "en")
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
    first, second = result.out.splitlines()
    assert first == second and "standard input: from 0" in result.err


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "expected a sound ("),
        (b"RIFF", "expected a sound ("),
        (b"no sound at all\n" * 100, "expected a sound ("),
        (None, "expected a sound file, but it is missing; check the path"),
    ],
)
def test_what_is_no_sound_is_named(
    folder: Path, tmp_path: Path, cli: Cli, content: bytes | None, expected: str
) -> None:
    path = tmp_path / "broken.wav"
    if content is not None:
        path.write_bytes(content)
    assert_mistake(cli("transcribe", folder, path), f"{path}: {expected}")


def test_a_folder_and_a_sound_without_samples_are_named(folder: Path, tmp_path: Path, cli: Cli) -> None:
    assert_mistake(cli("transcribe", folder, tmp_path), f"{tmp_path}: expected a sound file, but it is no file")
    path = tmp_path / "empty.wav"
    soundfile.write(path, np.zeros(0), RATE)
    assert_mistake(cli("transcribe", folder, path), f"{path}: expected a sound, but it has no samples")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_batch_goes_on_after_a_damaged_file(
    folder: Path, sounds: list[Path], cli: Cli, tmp_path: Path, form: str
) -> None:
    content, output = sounds[1].read_bytes(), tmp_path / "output"
    sounds[1].write_bytes(content[: len(content) // 2])  # the header of a flac does not show it
    result = cli("transcribe", folder, *sounds, "--language", "en", "--output", output, "--format", form)
    assert result.code == 2 and "Traceback" not in result.err
    assert f"transduce: {sounds[1]}: expected " in result.err
    assert result.err.splitlines()[-1].endswith("1 of 3 sounds: expected whole files; see the messages above")
    lines = output.read_text().split("\n")
    if form == "text":
        assert lines[0] and lines[1] == "" and lines[2] and lines[3:] == [""]
    else:
        first, second, third = map(json.loads, lines[:3])
        assert first["text"] and third["text"] and second == {"file": str(sounds[1]), "text": None}


def test_a_batch_does_not_begin_with_a_file_whose_header_is_damaged(folder: Path, sounds: list[Path], cli: Cli) -> None:
    sounds[2].write_bytes(sounds[2].read_bytes()[:-10])
    assert_mistake(cli("transcribe", folder, *sounds), f"{sounds[2]}: expected an ogg file with its end")


def test_json_has_a_name_that_is_not_utf_8(folder: Path, sounds: list[Path], cli: Cli, tmp_path: Path) -> None:
    try:
        path = sounds[0].rename(tmp_path / os.fsdecode(b"\xe4.wav"))
    except OSError:
        pytest.skip("the file system needs names in UTF-8")
    result = cli("transcribe", folder, path, "--format", "json", "--language", "en")
    assert result.code == 0 and json.loads(result.out)["file"] == f"{tmp_path}/\ufffd.wav"


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of a wav2vec 2.0 with random weights and the characters of public folders."""
    torch.manual_seed(1)
    config = Wav2Vec2Config(
        vocab_size=6, d_model=16, n_layers=1, n_heads=2, n_channels=8, position_width=4, position_groups=2
    )
    model = Wav2Vec2(config).eval()
    with torch.no_grad():
        model.output.weight *= 20
    characters = {"<pad>": 0, "|": 1, **{character: i for i, character in enumerate("ACEH", start=2)}}
    member = Member(model, CONVERSION.settings(model), {"vocab.json": json.dumps(characters).encode()})
    folder = tmp_path_factory.mktemp("wav2vec2") / "model"
    write_member(folder, member)
    return folder


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_wav2vec_2_hears_the_same_files(recogniser: Path, sounds: list[Path], cli: Cli, beam_size: int) -> None:
    model = SpeechRecogniser.load(recogniser)
    texts = [model.transcribe(sound, beam_size=beam_size) for sound in sounds]
    result = cli("transcribe", recogniser, *sounds, "--beam-size", beam_size)
    assert (result.code, result.err) == (0, "") and len({*texts}) == 3 and all(texts)
    assert result.out.decode().splitlines() == [" ".join(text.split()) for text in texts]


def test_a_sound_is_one_segment_of_a_wav2vec_2(recogniser: Path, sounds: list[Path], cli: Cli) -> None:
    sounds[0].write_bytes(write(np.full(8_000, np.nan), RATE, subtype="FLOAT").getvalue())
    result = cli("transcribe", recogniser, *sounds[:2], "--format", "json")
    assert result.code == 2 and f"{sounds[0]}: expected samples that are finite numbers" in result.err
    damaged, record = map(json.loads, result.out.splitlines())
    assert damaged == {"file": str(sounds[0]), "text": None}
    (segment,) = record["segments"]
    assert record["text"] and segment == {"start": 0.0, "end": 1.5, "text": record["text"]}
    assert (record["language"], record["duration"]) == (None, 1.5)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--format", "srt", "--format=srt: expected a Whisper: a wav2vec 2.0 has no times; leave it out"),
        ("--language", "de", "--language='de': must not be set for a wav2vec 2.0; leave it out"),
        ("--task", "translate", "--task='translate': must not be set for a wav2vec 2.0; leave it out"),
        ("--precision", "int8", "--precision='int8': expected 'fp32', the only precision of model_type='wav2vec2'"),
        ("--beam-size", 0, "--beam-size=0: expected"),
    ],
)
def test_options_that_a_wav2vec_2_lacks_are_named(
    recogniser: Path, sounds: list[Path], cli: Cli, option: str, value: Any, message: str
) -> None:
    assert_mistake(cli("transcribe", recogniser, sounds[0], option, value), message)


def test_another_member_and_wrong_options_are_named(folder: Path, sounds: list[Path], cli: Cli) -> None:
    assert_mistake(
        cli("transcribe", folder, sounds[0], "--language", "xx"), "--language='xx': expected one of en, de, yue"
    )
    assert_mistake(cli("transcribe", folder, sounds[0], "--beam-size", 0), "--beam-size=0: expected")
    assert_mistake(
        cli("transcribe", folder, sounds[0], "--lang", "de"), "--lang: expected a known option or a sound file"
    )
    assert_mistake(cli("transcribe", folder), "SOUNDS: expected a value")
    assert_mistake(cli("transcribe", folder, sounds[0], "--output", sounds[0]), "expected another file than the input")


def test_a_member_that_does_not_hear_is_named(sounds: list[Path], tmp_path: Path, cli: Cli) -> None:
    folder = bert_folder(tmp_path / "bert")
    assert_mistake(cli("transcribe", folder, sounds[0]), "model_type='bert': expected a model of sound, Whisper or")


def write(samples: np.ndarray, rate: int, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=options.pop("format", "WAV"), **options)
    return file


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("n_channels", [1, 2, 6])
def test_rates_and_channels_become_one_channel_at_16_khz(tmp_path: Path, rate: int, n_channels: int) -> None:
    """A tone stays this tone, of the same loudness and length, whatever the blocks in which it is read."""
    n = 2 * rate + 7
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(n) / rate)
    path = tmp_path / "tone.wav"
    path.write_bytes(write(np.stack([tone] * n_channels, axis=1), rate, subtype="FLOAT").getvalue())
    samples = read_sound(path)
    assert samples.dtype == np.float32 and abs(len(samples) - n * RATE / rate) <= 1
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(len(samples)) / RATE)
    assert np.abs(samples - expected)[500:-500].max() < 1e-3


def test_blocks_do_not_change_a_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "noise.wav"
    soundfile.write(path, noise(1.0).numpy(), 44_100)
    whole = read_sound(path)
    monkeypatch.setattr("transduce.family.sound.sound_file.BLOCK", 1_000)
    assert np.abs(read_sound(path) - whole).max() < 1e-6


def test_samples_that_are_no_numbers_are_named(tmp_path: Path, folder: Path, cli: Cli) -> None:
    path = tmp_path / "nan.wav"
    path.write_bytes(write(np.array([0.0, np.nan]), RATE, subtype="FLOAT").getvalue())
    assert_mistake(cli("transcribe", folder, path), f"{path}: expected samples that are finite numbers")


def test_without_the_packages_there_is_a_remedy(folder: Path, sounds: list[Path], cli: Cli, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    assert_mistake(cli("transcribe", folder, sounds[0]), "pip install 'transduce[sound]'")
