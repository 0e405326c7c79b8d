"""`transduce transcribe`: the text of sound files, by a Whisper or a wav2vec 2.0."""

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from transduce.cli.options import BeamSizeOption, OutputOption, with_device
from transduce.cli.parse import AutoPrecisionOption
from transduce.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from transduce.family.sound.segments import Transcript

SpeechModelArgument = Annotated[
    Path, Parameter(help="Folder of a Whisper or a wav2vec 2.0, as made here or elsewhere.")
]
SoundsArgument = Annotated[
    Path,
    Parameter(
        required=True,
        allow_leading_hyphen=True,  # of "-"
        help="Sound files, such as wav, flac, ogg or mp3; - is standard input.",
    ),
]
TranscriptForm = Literal["text", "srt", "json"]
STDIN = Path("-")


@with_device
def transcribe(
    folder: SpeechModelArgument,
    /,
    *sounds: SoundsArgument,
    output: OutputOption = None,
    language: Annotated[
        str | None,
        Parameter(help="Whisper: code of the language that is spoken, such as de.", show_default="the most likely one"),
    ] = None,
    task: Annotated[
        Literal["transcribe", "translate"] | None,
        Parameter(
            help="Whisper: translate writes English, whatever is spoken.", show_default="the folder's, or transcribe"
        ),
    ] = None,
    beam_size: BeamSizeOption = None,
    precision: AutoPrecisionOption = "fp32",
    format: Annotated[
        TranscriptForm,
        Parameter(
            help="text: a line for each file. json: an object for each file, with its segments. srt: subtitles of one "
            "file, by a Whisper."
        ),
    ] = "text",
) -> None:
    """Write the words of sound files, in their order, each as soon as it is ready.

    A sound may have any rate and number of channels. A Whisper hears it in windows of 30 seconds, a wav2vec 2.0 as a
    whole, so its JSON has one segment for each sound. A window whose text is cut at the maximum number of tokens is
    named on standard error, as is a damaged file, which gives a blank line, or null in JSON, and exit code 2 at the
    end. Needs transduce[sound].

    Examples
    --------
    transduce transcribe whisper-tiny talk.wav --language en
    transduce transcribe whisper-tiny film.flac --format srt --output film.srt
    transduce transcribe whisper-tiny rede.wav --language de --task translate
    transduce transcribe whisper-tiny *.wav --format json > transcripts.jsonl
    transduce transcribe wav2vec2-base-960h talk.wav --beam-size 10
    """
    from transduce.cli.output import output_file

    names = _checked_names(sounds, output, format)  # before a model is loaded, which takes long

    from transduce.model.cpu_backend import keep_freed_memory

    keep_freed_memory()
    transcript_of = _transcriber(folder, precision, format, language, task, beam_size)
    n_damaged = 0
    with output_file(output) if output is not None else nullcontext(sys.stdout.buffer) as file:
        for sound, name in zip(sounds, names, strict=True):
            samples, transcript = _samples(sound, is_alone=len(sounds) == 1), None
            if samples is not None:
                transcript = transcript_of(samples)
                _warn_of_cuts(transcript, name)
            n_damaged += transcript is None
            file.write(_in_form(transcript, sound, format))
            file.flush()
    if n_damaged:
        raise UserError(f"{n_damaged} of {len(sounds)} sounds: expected whole files; see the messages above")


def _checked_names(sounds: tuple[Path, ...], output: Path | None, form: TranscriptForm) -> list[str]:
    """Return the names of the sounds for messages. Raises UserError for a call that cannot work."""
    from transduce.cli.output import check_output

    if form == "srt" and len(sounds) > 1:
        raise UserError(f"--format=srt: expected one sound file, not {len(sounds)}; transcribe one after the other")
    for sound in sounds:
        if sound != STDIN and sound.name.startswith("-") and not sound.exists():
            raise UserError(f"{sound}: expected a known option or a sound file; see `transduce transcribe --help`")
        check_output(output, 0 if sound == STDIN else sound)

    from transduce.family.sound.sound_file import check_sound

    return [check_sound(sound) for sound in sounds]


def _transcriber(
    folder: Path,
    precision: AutoPrecisionOption,
    form: TranscriptForm,
    language: str | None,
    task: str | None,
    beam_size: int | None,
) -> "Callable[[np.ndarray], Transcript]":
    """Return what makes a transcript of samples. Raises UserError for options that the model of the folder lacks."""
    from transduce.family import load
    from transduce.family.inference.application import Application
    from transduce.family.inference.speech_recogniser import SpeechRecogniser
    from transduce.family.inference.transcriber import Transcriber

    model: Application = load(folder, precision=precision)
    match model:
        case Transcriber():
            if precision == "auto":
                print(f"transduce: precision {model.precision}", file=sys.stderr)
            times = True if form == "srt" or form == "json" and model.tokens.no_times is not None else None
            return partial(model.transcribe, language=language, task=task, times=times, beam_size=beam_size)
        case SpeechRecogniser():
            for name, value in (("language", language), ("task", task)):
                if value is not None:
                    raise UserError(f"{name}={value!r}: must not be set for a wav2vec 2.0; leave it out")
            if form == "srt":
                raise UserError("--format=srt: expected a Whisper: a wav2vec 2.0 has no times; leave it out")
            return partial(model.transcript, beam_size=1 if beam_size is None else beam_size)
        case _:
            raise model.another("a model of sound, Whisper or wav2vec 2.0")


def _samples(sound: Path, *, is_alone: bool) -> "np.ndarray | None":
    """Return the samples of a sound. A damaged one of several is named, and gives None, so that the others follow."""
    from transduce.family.sound.sound_file import read_sound

    try:
        return read_sound(sound)
    except UserError as problem:
        if is_alone:
            raise
        print(f"transduce: {problem}", file=sys.stderr)
        return None


def _warn_of_cuts(transcript: "Transcript", name: str) -> None:
    for start, end in transcript.cut:
        where = f"{name}: from {start:g} to {end:g} s"
        print(f"transduce: {where}: cut at the maximum number of tokens; text may be missing", file=sys.stderr)


def _in_form(transcript: "Transcript | None", sound: Path, form: TranscriptForm) -> bytes:
    """Return a transcript as bytes of the output. None is one of a damaged file."""
    import msgspec

    from transduce.family.sound.segments import srt

    if form == "json":
        name = os.fsencode(sound).decode("utf-8", "replace")  # JSON has no bytes that are not UTF-8
        return msgspec.json.encode({"file": name, **(vars(transcript) if transcript else {"text": None})}) + b"\n"
    if transcript is None:
        return b"\n"
    return srt(transcript.segments).encode() if form == "srt" else " ".join(transcript.text.split()).encode() + b"\n"
