"""Segmentation: lines -> segments that a model can take. Without torch.

lines -> segments -> (a search) -> hypotheses of each segment -> translations of the lines (`translations`)
"""

import dataclasses
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from numbers import Integral
from typing import NamedTuple

from transduce.config.schema import Config, DataConfig
from transduce.data.sentences import sentences
from transduce.data.text import check_text, is_blank
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.options import DecodingOptions
from transduce.errors import UserError

MAX_LINE_TOKENS = 8_192  # a longer line is not translated
MAX_LINE_CHARACTERS = 64 * MAX_LINE_TOKENS  # a longer line is not even encoded
PORTION_LINES, PORTION_CHARACTERS = 1_024, 1 << 18  # encoded at once, because a character takes 100 bytes meanwhile


@dataclass(frozen=True)
class Segment:
    """A part of line number `line`, its token ids, and the gap between it and the next segment of the line.

    start: the place of its text, without a tag, in the line. in_capitals: the ids are of the text in small
    letters, and the output is written in capitals. is_unsplit: it is a whole line, which would be several segments
    without its constraint.
    """

    line: int
    text: str
    gap: str
    ids: Sequence[int]
    start: int = 0
    in_capitals: bool = False
    is_unsplit: bool = False


class LinePart(NamedTuple):
    """A part of a text to translate. gap: that follows it, before the next part. start: its place in the text."""

    text: str
    gap: str
    start: int


@dataclass(frozen=True)
class LongLine:
    """A line that is too long for a model. side: 0 in the source, 1 in the target. index, excess: of the line."""

    side: int
    index: int
    excess: str

    def problem(self, names: Sequence[str], first_number: int = 0) -> str:
        """Return the message. names: of the two texts. first_number: the number of lines before these ones."""
        return f"{names[self.side]}:{first_number + self.index + 1}: {self.excess}"


# ---- the arguments of a call -------------------------------------------------------------------------------------


def check_lines(**texts: Sequence[str]) -> None:
    """Raise UserError unless each of `texts`, by its name, is a sequence of strings, such as a list.

    A string is also one, but of characters. An iterator can be read only once.
    """
    for name, lines in texts.items():
        if isinstance(lines, str | bytes):
            raise UserError(f"{name}: expected a list of strings, not one string; write [{name}]")
        if not isinstance(lines, Sequence):
            remedy = f"; write list({name})" if isinstance(lines, Iterable) else ""
            raise UserError(f"{name}: expected a list of strings, not a {type(lines).__name__}{remedy}")
        for i, line in enumerate(lines):
            check_line(f"{name}[{i}]", line)


def check_line(name: str, line: str) -> None:
    """Raise UserError unless `line` is a string that can be encoded as UTF-8."""
    if not isinstance(line, str):
        raise UserError(f"{name}={reprlib.repr(line)}: expected a string, not a {type(line).__name__}")
    check_text(line, name)


def check_number(name: str, number: int) -> None:
    """Raise UserError unless `number` is an integer, of Python or another library."""
    if not isinstance(number, Integral):
        raise UserError(f"{name}={number!r}: expected an integer")


# ---- lines -> ids ------------------------------------------------------------------------------------------------


def encode_lines(lines: Iterable[str], tokenizer: TokenizerLike) -> Iterator[list[int] | None]:
    """Yield the ids of each line; None for a line of more than MAX_LINE_CHARACTERS."""
    remaining, is_last = iter(lines), False
    while not is_last:
        texts, characters = list[str | None](), 0  # of a portion; None: too long
        while len(texts) < PORTION_LINES and characters < PORTION_CHARACTERS:
            line = next(remaining, None)
            if is_last := line is None:
                break
            texts.append(line if len(line) <= MAX_LINE_CHARACTERS else None)
            characters += min(len(line), MAX_LINE_CHARACTERS)
        ids = iter(tokenizer.encode_batch([text for text in texts if text is not None]))
        yield from (None if text is None else next(ids) for text in texts)


def most_tokens(max_positions: int | None) -> int:
    """Return the most tokens of a line without EOS. max_positions: of the model; None: it has no limit."""
    return MAX_LINE_TOKENS if max_positions is None else min(MAX_LINE_TOKENS, max_positions - 1)


def with_positions(config: Config, most: int | None) -> Config:
    """Return the configuration of a model whose engine has positions for at most `most` tokens; None: no limit."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, max_positions=most))


def excess(line: str, ids: Sequence[int] | None, limit: int = MAX_LINE_TOKENS) -> str | None:
    """Return the message that a line is too long, or None. ids: of the line, as `encode_lines` yields them."""
    if ids is None:
        return f"expected at most {MAX_LINE_CHARACTERS:,} characters, not {len(line):,}; split the line"
    return f"expected at most {limit:,} tokens, not {len(ids):,}; split the line" if len(ids) > limit else None


def encode_pairs(
    src: Sequence[str], tgt: Sequence[str], tokenizer: TokenizerLike, max_positions: int | None = None
) -> tuple[list[tuple[list[int], list[int]]], LongLine | None]:
    """Return the ids of the pairs before the first line that is too long, and this line; None if there is none.

    max_positions: of the model, which EOS takes one of; None: no limit but MAX_LINE_TOKENS.
    """
    limit = most_tokens(max_positions)
    pairs = []
    sides = encode_lines(src, tokenizer), encode_lines(tgt, tokenizer.target)
    for i, (src_ids, tgt_ids) in enumerate(zip(*sides, strict=True)):
        for side, line, ids in ((0, src[i], src_ids), (1, tgt[i], tgt_ids)):
            if problem := excess(line, ids, limit):
                return pairs, LongLine(side, i, problem)
        pairs.append((src_ids, tgt_ids))
    return pairs, None


def check_tag(tag: str | None, tokenizer: TokenizerLike) -> None:
    """Raise UserError for a tag that the tokenizer does not have. None: no tag."""
    if tag is not None and not tokenizer.tags:
        raise UserError(f"tag={tag!r}: must not be set, because the model has no tags; leave it out")
    if tag is not None and tag not in tokenizer.tags:
        raise UserError(f"tag={tag!r}: expected a tag of the model; use one of {', '.join(tokenizer.tags)}")


def with_tag(lines: Sequence[str], tag: str | None, tokenizer: TokenizerLike) -> Sequence[str]:
    """Return the lines, each that is not blank with `tag` before it; None: the lines as they are.

    Raises UserError for a tag that the tokenizer does not have.
    """
    if tag is None:
        return lines
    check_tag(tag, tokenizer)
    return [line if is_blank(line) else f"{tag} {line}" for line in lines]


# ---- lines -> segments -------------------------------------------------------------------------------------------


def segments_of(
    lines: Sequence[str],
    tokenizer: TokenizerLike,
    config: Config,
    options: DecodingOptions,
    whole: Collection[int] = (),
) -> tuple[list[Segment], dict[int, str]]:
    """Return the segments of all lines, in order, and the problem of each line that has none, by line number.

    config: of the model; a segment has fewer than `data.max_tokens` tokens. options: `split` and `numbers`.
    whole: numbers of lines that stay whole, however long they are.
    A line that is not split, and has more tokens than the model has positions, has a problem.
    A part without a letter is no segment, and a line break ends a segment. Each segment of a line with a tag has the
    tag.
    """
    segments: list[Segment] = []
    problems: dict[int, str] = {}
    data, limit = config.data, most_tokens(config.model.max_positions)
    for i, (line, ids) in enumerate(zip(lines, encode_lines(lines, tokenizer), strict=True)):
        tag, text = tokenizer.split_tag(line)
        if is_blank(text):
            continue
        start, n_before = len(line) - len(text), len(segments)
        if ids is None or len(ids) > MAX_LINE_TOKENS:
            problems[i] = excess(line, ids) or ""
        elif i in whole:
            parts = split_line(text, tokenizer, data, options, has_tag=bool(tag))
            ids = tokenizer.encode(_BREAK.sub(" ", line))
            segments.append(Segment(i, line, "", ids, start, is_unsplit=len(parts) > 1))
        elif len(_lines(text, options)) == 1 and _stays_whole(text, len(ids), data, options):
            if not is_copied(text, options):
                segments.append(Segment(i, line, "", ids, start))
        else:
            before = f"{tag} " if tag else ""
            parts = split_line(text, tokenizer, data, options, has_tag=bool(tag))
            texts = [before + part.text for part in parts]
            pairs = zip(texts, parts, tokenizer.encode_batch(texts), strict=True)
            segments += [Segment(i, text, part.gap, ids, start + part.start) for text, part, ids in pairs]
        if too_long := next(filter(None, (excess(s.text, s.ids, limit) for s in segments[n_before:])), None):
            problems[i] = too_long
            del segments[n_before:]
    return segments, problems


def without_tag(segments: Sequence[Segment], tag: str | None) -> Sequence[Segment]:
    """Return the segments with their places in the lines before `with_tag` put `tag` there."""
    n_added = 0 if tag is None else len(tag) + 1
    return [dataclasses.replace(segment, start=segment.start - n_added) for segment in segments]


def in_small_letters(
    segments: Sequence[Segment],
    tokenizer: TokenizerLike,
    config: Config,
    options: DecodingOptions,
    constraints: Sequence[object] = (),
) -> list[Segment]:
    """Return the segments; those in capitals have the ids of small letters, unless `options.capitals` is "keep".

    config: of the model. constraints: of the segments. One with a constraint stays as it is, because its output must
    have a given spelling. One whose small letters are too long for the model stays as it is, too.
    """
    if options.capitals == "keep":
        return [*segments]
    limit = most_tokens(config.model.max_positions)
    return [
        segment if any(constraints[i : i + 1]) else _lowered(segment, tokenizer, limit)
        for i, segment in enumerate(segments)
    ]


def _lowered(segment: Segment, tokenizer: TokenizerLike, limit: int) -> Segment:
    """Return the segment, with the ids of its text in small letters if its words are in capitals, and they fit."""
    tag, text = tokenizer.split_tag(segment.text)
    if not text.isupper() or len(_CAPITALS.findall(text)) < 2:
        return segment
    sentence = _FIRST_LETTER.sub(lambda match: match[0].upper(), text.lower(), count=1)
    ids = tokenizer.encode(f"{tag} {sentence}" if tag else sentence)
    return segment if len(ids) > limit else dataclasses.replace(segment, ids=ids, in_capitals=True)


_CAPITALS = re.compile(r"[^\W\d_]{2,}")  # words of letters
_FIRST_LETTER = re.compile(r"[^\W\d_]")


# White space with a line break. The look back keeps the time linear in the length of a run of spaces.
_BREAK = re.compile(r"((?<!\s)\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*)")


def _lines(text: str, options: DecodingOptions) -> list[str]:
    """Return the lines of a text, and between them their line breaks.

    A line with tabs and a column of digits or symbols is a row of a table: each of its columns is a line, unless
    `options.split` is "none". In another line, a tab is a space.
    """
    pieces = list[str]()
    if options.split == "none" or "\t" not in text:
        return _BREAK.split(text)
    for i, piece in enumerate(_BREAK.split(text)):
        columns = piece.split("\t") if i % 2 == 0 else []
        if len(columns) > 1 and any(not is_blank(column) and not _has_letter(column) for column in columns):
            pieces += [*chain.from_iterable((column, "\t") for column in columns)][:-1]
        else:
            pieces.append(piece)
    return pieces


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def split_line(
    text: str, tokenizer: TokenizerLike, data: DataConfig, options: DecodingOptions, *, has_tag: bool = False
) -> list[LinePart]:
    """Return the parts of `text` to translate.

    A gap is "" or " ", or holds line breaks or text to copy; with the parts it is all of the text that is visible,
    except what comes before the first part. data, options: as in `segments_of`. has_tag: each part gets a tag.
    """
    parts, end = list[LinePart](), 0  # end: of the last sentence, in `text`
    pieces, room = _lines(text, options), data.max_tokens - 1 - has_tag
    for line, line_break in zip_longest(pieces[::2], pieces[1::2], fillvalue=""):
        stays_whole = _stays_whole(line, len(tokenizer.encode(line)) + has_tag, data, options)
        for sentence, gap in [(line, "")] if stays_whole else sentences(line):
            start = text.index(sentence, end)
            end = start + len(sentence)
            if is_copied(sentence, options):
                parts[-1:] = [part._replace(gap=part.gap + sentence + gap) for part in parts[-1:]]
                continue
            halves = [(sentence, "")] if stays_whole else _halved(sentence, tokenizer, room)
            for half, gap_of_half in [*halves[:-1], (halves[-1][0], gap)]:
                start = text.index(half, start)
                parts.append(LinePart(half, gap_of_half, start))
                start += len(half)
        parts[-1:] = [part._replace(gap=part.gap + line_break) for part in parts[-1:]]
    return parts


def _stays_whole(line: str, n_tokens: int, data: DataConfig, options: DecodingOptions) -> bool:
    """Return True if a line without line breaks is translated as it is. n_tokens: of the line, with its tag."""
    if options.split == "none":
        return True
    if options.split == "sentences" or n_tokens >= data.max_tokens:
        return False
    most = data.sentences_per_line or 1
    return options.split == "long" or next(islice(sentences(line), most, None), None) is None


_MARKUP = re.compile(r"<[^<>]*>|&#?\w+;")


def is_copied(text: str, options: DecodingOptions) -> bool:
    """Return True for a text without a letter, which is its own translation; digits depend on `options.numbers`."""
    if _has_letter(text):
        text = _MARKUP.sub("", text)
    is_translated = str.isalnum if options.numbers == "translate" else str.isalpha
    return not any(map(is_translated, text))


_BREAKS = (
    re.compile(r"(?<=[.!?…])\s+"),  # after a possible abbreviation
    re.compile(r"(?<=[,;:])\s+|(?<=[、，；])\s*"),  # between clauses
    re.compile(r"\s+"),  # between words
    re.compile(r"(?<=.)(?=.)", re.DOTALL),  # anywhere
)


def _halved(text: str, tokenizer: TokenizerLike, limit: int) -> list[tuple[str, str]]:
    """Return `text` with its gap, or its halves, each of at most `limit` tokens.

    A text of more tokens is halved at the best break near its middle, and so are its halves.
    """
    if len(text) < 2 or len(tokenizer.encode(text)) <= limit:
        return [(text, "")]
    middle = _break(text)
    left, right = text[: middle.start()], text[middle.end() :]
    if not left.strip() or not right.strip():
        return _halved(left.strip() or right.strip(), tokenizer, limit)
    texts = _halved(left, tokenizer, limit)
    texts[-1] = (texts[-1][0], " " if middle.group() else "")
    return texts + _halved(right, tokenizer, limit)


def _break(text: str) -> re.Match[str]:
    """Return the best place to break a text of at least two characters, in its middle three fifths."""
    first, last = len(text) // 5, len(text) * 4 // 5
    for pattern in _BREAKS:
        breaks = [match for match in pattern.finditer(text) if first <= match.start() and match.end() <= last]
        if breaks:
            return min(breaks, key=lambda match: abs(match.start() - len(text) // 2))
    raise AssertionError("a text of two characters can be broken between them")
