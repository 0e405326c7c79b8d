"""Subtitles in SRT and WebVTT. The lines of a cue are a text, and its lines again; numbers, times and notes stay."""

import re
from collections.abc import Iterator
from itertools import chain

from transduce.errors import LineError
from transduce.serve.documents import Part
from transduce.serve.formats.plain import PLAIN, line_end, line_tokens, lines_of, plain_token, text_tokens
from transduce.serve.markup import HTML, markup_document
from transduce.serve.markup_line import Syntax
from transduce.serve.markup_tokens import Token, text_token

_SRT_TIME = re.compile(r"\s*\d+:\d+:\d+([,.]\d+)?\s*-->\s*\d+:\d+:\d+([,.]\d+)?(\s|$)")
_VTT_TIME = re.compile(r"\s*(\d+:)?\d\d:\d\d\.\d{3}\s+-->\s+(\d+:)?\d\d:\d\d\.\d{3}(\s|$)")
_TAG = re.compile(r"<(/?)([A-Za-z]++)[^<>]*>|</>|<\d[\d:.]*>|\{\\[^{}]*\}")
VTT = Syntax(HTML.escape)


def read_srt(text: str) -> Iterator[str | Part]:
    """Yield the texts of subtitles in SRT. A cue ends before the number and the times of the next one."""
    return markup_document(_tokens(text, _SRT_TIME, "00:00:01,000 --> 00:00:02,000"), PLAIN)


def read_vtt(text: str) -> Iterator[str | Part]:
    """Yield the texts of subtitles in WebVTT. A cue ends before a blank line."""
    if not re.match(r"WEBVTT(\s|$)", text):
        raise LineError(1, "expected WEBVTT at the start of the file; add it, or correct the extension")
    return markup_document(_tokens(text, _VTT_TIME, "00:01.000 --> 00:02.000", is_vtt=True), VTT)


READERS = {"srt": read_srt, "vtt": read_vtt}


def _tokens(text: str, times: re.Pattern[str], example: str, *, is_vtt: bool = False) -> Iterator[Token]:
    lines = lines_of(text)
    is_cue = False
    for i, (line, end) in enumerate(lines):
        following = lines[i + 1][0] if i + 1 < len(lines) else ""
        is_time, is_blank = "-->" in line, not line.strip()
        is_number = not is_vtt and line.strip().isdecimal() and "-->" in following
        if is_time and not times.match(line):
            raise LineError(i + 1, f"expected times such as {example}; correct the line")
        is_cue = is_time or is_cue and not is_number and not (is_vtt and is_blank)
        if is_cue and not is_time and not is_blank:
            yield from _tags(line, is_vtt=is_vtt)
            yield line_end(_TAG.sub("", line), end, "" if "-->" in following else _TAG.sub("", following))
        elif is_vtt or is_time or is_number or is_blank:
            yield Token("block", line + end)
        else:
            raise LineError(i + 1, f"expected a number, and times such as {example}, before a text; add them")


def _tags(line: str, *, is_vtt: bool) -> Iterator[Token]:
    """Yield the tokens of a line of a cue. Voices and times within it have no closing tag.

    The mark of a speaker comes before all text of the line. After text, a dash and a number are part of the sentence.
    """
    token_of = text_token if is_vtt else plain_token
    has_text = False
    place = 0
    for match in chain(_TAG.finditer(line), [None]):
        raw = line[place : match.start() if match else len(line)]
        if raw:
            yield from text_tokens(raw, token_of) if has_text else line_tokens(raw, token_of)
            has_text = has_text or not raw.isspace()
        if match is None:
            return
        name, place = (match[2] or "v").lower(), match.end()
        yield Token("mark" if name == "v" else "close" if match[1] else "open", match[0], name)
