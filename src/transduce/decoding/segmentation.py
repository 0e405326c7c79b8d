"""Lines and their translations: cut into parts that a model can take, and put together of what it says. Without torch.

lines -> parts -> (a search) -> hypotheses of each part -> translations of the lines
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transduce.data.text import is_blank
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import EOS
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.options import Split
from transduce.errors import UserError

MAX_LINE_TOKENS = 8_192  # a longer line is not translated


@dataclass(frozen=True)
class Translation:
    """One output line.

    score: what the search ranked it by (log-probability over length penalty; the sum over parts of a line that was
    split). pieces, token_log_probs: the tokens and the log-probability of each, EOS included.
    finished: False if it was cut at its maximum length. problem: why there is no translation, or None.
    alternatives: the other outputs of an n-best list, best first.
    """

    text: str
    score: float = 0.0
    pieces: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    finished: bool = True
    problem: str | None = None
    alternatives: tuple["Translation", ...] = ()


@dataclass(frozen=True)
class Part:
    """A piece of line number `line`, and the space that followed it there."""

    line: int
    text: str
    gap: str


def refuse_string(*given: Sequence[str]) -> None:
    """A string is a sequence of strings too, but of characters."""
    if any(isinstance(lines, str) for lines in given):
        raise UserError("expected a list of lines, not one string; write [line]")


# ---- lines -> parts ----------------------------------------------------------------------------------------------


def parts_of(
    lines: Sequence[str], tokenizer: Tokenizer, limit: int, split: Split, prefixes: Sequence[str] | None = None
) -> tuple[list[Part], dict[int, str]]:
    """What is to be translated, in parts of at most `limit` tokens; what is wrong with lines that cannot be, by index.

    split: which lines become parts, each a sentence or less: "long", those of more than `limit` tokens; "sentences",
    all. A line with a prefix stays whole, however long it is.
    """
    parts: list[Part] = []
    refused: dict[int, str] = {}
    for i, (line, ids) in enumerate(zip(lines, tokenizer.encode_batch(lines), strict=True)):
        if is_blank(line):
            continue
        if len(ids) > MAX_LINE_TOKENS:
            refused[i] = f"{len(ids):,} tokens, expected at most {MAX_LINE_TOKENS:,}; split the line"
        elif (prefixes and prefixes[i]) or (split == "long" and len(ids) <= limit):
            parts.append(Part(i, line, ""))
        else:
            parts += [Part(i, text, gap) for text, gap in split_line(line, tokenizer, limit)]
    return parts, refused


def split_line(line: str, tokenizer: Tokenizer, limit: int) -> list[tuple[str, str]]:
    """The sentences of `line`, in parts of at most `limit` tokens, each with the gap that followed it ("" or " ").

    Nothing but white space is lost, and no part is blank unless the line is.
    """
    parts: list[tuple[str, str]] = []
    for sentence, gap in sentences(line):
        parts += _halved(sentence, tokenizer, limit)
        parts[-1] = (parts[-1][0], gap)
    return parts


# What ends a sentence, with quotes and brackets that close there; before white space, or in scripts that have none.
_END = re.compile(r"""([.!?…।؟۔።]+(?:["'’”“«)\]]|\s?»)*)\s+|([。！？]+["'’”」』）]*)\s*""")
_SHORT = re.compile(r"\w(\.\w)*|\d\d")  # initials, "e.g.", "z.B."; in many languages "3." and "21." are "3rd", "21st"
ABBREVIATIONS = frozenset(
    "al approx ca capt cf col corp dept dr etc fig gen gov hon inc jr lt ltd mr mrs ms mt no prof rev sgt sr st vol vs "
    "abs bzw dipl evtl exkl fr ggf hr ing inkl jh nr str tel usw vgl chap mlle mme dra sra srta ud uds".split()
)


def sentences(line: str) -> Iterator[tuple[str, str]]:
    """The sentences of `line`, each with the gap that followed it ("" or " ").

    In doubt two stay together: after what may be an abbreviation, and before a small letter if the line has capitals.
    """
    begin, has_capitals = 0, line != line.lower()
    for match in _END.finditer(line):
        mark, following = match[match.lastindex or 0], line[match.end() : match.end() + 1]
        end = match.start() + len(mark)
        if not following or (has_capitals and following.islower()):
            continue
        if mark == "." and _is_abbreviation(line[begin : match.start()]):
            continue
        yield line[begin:end], " " if match.end() > end else ""
        begin = match.end()
    yield line[begin:], ""


def _is_abbreviation(text: str) -> bool:
    """Whether a full stop after `text` may belong to its last word."""
    if not text or text[-1].isspace():
        return False
    word = text.rsplit(maxsplit=1)[-1].lstrip("([\"'“„‘«")
    return bool(_SHORT.fullmatch(word)) or word.lower() in ABBREVIATIONS


_BREAKS = (
    re.compile(r"(?<=[.!?…])\s+"),  # after what may be an abbreviation
    re.compile(r"(?<=[,;:])\s+|(?<=[、，；])\s*"),  # between clauses
    re.compile(r"\s+"),  # between words
    re.compile(r"(?<=.)(?=.)", re.DOTALL),  # anywhere
)


def _halved(text: str, tokenizer: Tokenizer, limit: int) -> list[tuple[str, str]]:
    """`text` as it is, or if it has more than `limit` tokens, halved at the best break near its middle, and so on."""
    if len(text) < 2 or len(tokenizer.encode(text)) <= limit:
        return [(text, "")]
    middle = _break(text)
    left, right = text[: middle.start()], text[middle.end() :]
    if is_blank(left) or is_blank(right):
        return _halved(left.strip() or right.strip(), tokenizer, limit)
    parts = _halved(left, tokenizer, limit)
    parts[-1] = (parts[-1][0], " " if middle.group() else "")
    return parts + _halved(right, tokenizer, limit)


def _break(text: str) -> re.Match[str]:
    """The best place to break a text of at least two characters, in its middle three fifths."""
    first, last = len(text) // 5, len(text) * 4 // 5
    for pattern in _BREAKS:
        found = [match for match in pattern.finditer(text) if first <= match.start() and match.end() <= last]
        if found:
            return min(found, key=lambda match: abs(match.start() - len(text) // 2))
    raise AssertionError("a text of two characters can be broken between them")


# ---- hypotheses -> translations ----------------------------------------------------------------------------------

Found = tuple[Part, Sequence[Hypothesis]]  # a part and its n-best list


def translations_of(
    lines: Sequence[str], found: Sequence[Found], refused: Mapping[int, str], tokenizer: Tokenizer
) -> list[Translation]:
    """The translation of each line: of what was found for its parts, of its problem, or of its being blank."""
    by_line: list[list[Found]] = [[] for _ in lines]
    for part, hypotheses in found:
        by_line[part.line].append((part, hypotheses))
    return [
        _assemble(members, tokenizer) if members else _untranslated(line, refused.get(i))
        for i, (line, members) in enumerate(zip(lines, by_line, strict=True))
    ]


def _assemble(members: Sequence[Found], tokenizer: Tokenizer) -> Translation:
    """The translation of a line from those of its parts; only a line of one part has alternatives."""
    best = _translation([(part, hypotheses[0]) for part, hypotheses in members], tokenizer)
    if len(members) > 1:
        return best
    part, hypotheses = members[0]
    others = tuple(_translation([(part, other)], tokenizer) for other in hypotheses[1:])
    return dataclasses.replace(best, alternatives=others)


def _translation(members: Sequence[tuple[Part, Hypothesis]], tokenizer: Tokenizer) -> Translation:
    texts = [(tokenizer.decode(hypothesis.ids), part.gap) for part, hypothesis in members]
    ids = [i for _, h in members for i in [*h.ids, *([EOS] if h.finished else [])]]
    return Translation(
        text=re.sub(r"[\r\n]", " ", join(texts)),
        score=sum(h.score for _, h in members),
        pieces=tuple(tokenizer.pieces(ids)),
        token_log_probs=tuple(p for _, h in members for p in h.token_log_probs),
        finished=all(h.finished for _, h in members),
    )


_NARROW_END = re.compile(r"""[.!?…](?:["'’”“«)\]]|\s?»)*$""")
_WIDE_END = re.compile(r"""[。！？、，；]["'’”」』）]*$""")


def join(texts: Sequence[tuple[str, str]]) -> str:
    """Translations of parts, each with the gap that followed its part, as one text.

    Between sentences it has the gaps of its own script: none after a Chinese or Japanese full stop, else a space.
    """
    *others, (last, _) = texts
    return "".join(text + _gap(text, gap) for text, gap in others) + last


def _gap(text: str, gap: str) -> str:
    if _WIDE_END.search(text):
        return ""
    return " " if _NARROW_END.search(text) else gap


def _untranslated(line: str, problem: str | None) -> Translation:
    """A blank line as it is, but that it stays one line; nothing where there is a problem."""
    return Translation("" if problem else line.replace("\n", " "), problem=problem)
