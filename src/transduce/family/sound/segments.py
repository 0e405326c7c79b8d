"""Transcripts, and the segments that the times in an output of Whisper make (Radford et al. 2022, section 2.3).

In an output, a time comes before and after each segment: `<|0.00|> Hello.<|1.20|><|1.20|> How are you?<|2.60|>`. The
ids of times are the last ones of the vocabulary, one for each step of 20 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

SECONDS = 0.02  # of a step of time
FRAMES = 2  # of features in a step of time


@dataclass(frozen=True)
class TranscriptSegment:
    """A part of a transcript, and when it is heard, in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """The words of a sound, and when they are heard.

    language: its code, or None if the model has only one. duration: of the sound, in seconds. segments: in their order.
    cut: start and end in seconds of each window whose output was cut at the maximum number of tokens, so that text may
    be missing. silent: start and end of each window without speech, whose output is left out.
    """

    text: str
    language: str | None
    duration: float
    segments: tuple[TranscriptSegment, ...]
    cut: tuple[tuple[float, float], ...] = ()
    silent: tuple[tuple[float, float], ...] = ()


class TimedIds(NamedTuple):
    """The ids of a segment, with its times; and when it begins and ends, in steps from the start of the window."""

    start: int
    end: int
    ids: Sequence[int]


def timed_ids_of(ids: Sequence[int], first_time: int, n_frames: int) -> tuple[list[TimedIds], int]:
    """Return the segments in an output, and the number of frames from the start of its window to the next window.

    ids: of the output, without its end. first_time: id of the first time, `<|0.00|>`. n_frames: frames of the window.
    Two times side by side end one segment and begin the next one. The next window begins at the first time of the last
    such pair: what follows it is heard there again. Without a pair, or with one time at the end, the window is done.
    """
    is_time = [token >= first_time for token in ids]
    cuts = [i + 1 for i, both in enumerate(pairwise(is_time)) if all(both)]
    if not cuts:
        times = [token - first_time for token in ids if token >= first_time]
        return [TimedIds(0, times[-1] if times and times[-1] else n_frames // FRAMES, ids)], n_frames
    is_complete = is_time[-2:] == [False, True]
    ends = [*cuts, len(ids)] if is_complete else cuts
    parts = [ids[start:end] for start, end in pairwise([0, *ends])]
    n_done = n_frames if is_complete else FRAMES * (ids[cuts[-1] - 1] - first_time)
    return [TimedIds(part[0] - first_time, part[-1] - first_time, part) for part in parts], n_done


def srt(segments: Sequence[TranscriptSegment]) -> str:
    """Return subtitles in SRT."""
    cues = [(segment, segment.text.strip()) for segment in segments]
    cues = [(segment, text) for segment, text in cues if text]
    return "".join(
        f"{number}\n{_clock(segment.start)} --> {_clock(segment.end)}\n{text}\n\n"
        for number, (segment, text) in enumerate(cues, start=1)
    )


def _clock(seconds: float) -> str:
    """Return a time as SRT has it, such as 00:01:02,345."""
    minutes, milliseconds = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds // 1000:02},{milliseconds % 1000:03}"
