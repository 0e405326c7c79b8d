"""Lines and their translations: cut into parts that a model can take, and put together of what it says. Without torch.

lines -> parts -> (a search) -> hypotheses of each part -> translations of the lines
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transduce.config import Config, SearchConfig, problems
from transduce.errors import UserError
from transduce.hypotheses import Hypothesis
from transduce.text import is_blank
from transduce.tokens import EOS, Tokenizer

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


def search_settings(config: Config, beam_size: int | None, alpha: float | None, n_best: int) -> SearchConfig:
    """The search settings of `config`, or others in their place. UserError if they cannot be met."""
    ask = config.search
    ask = dataclasses.replace(ask, beam_size=ask.beam_size if beam_size is None else beam_size)
    ask = dataclasses.replace(ask, alpha=ask.alpha if alpha is None else alpha)
    wrong = problems(dataclasses.replace(config, search=ask))
    if not 1 <= n_best <= ask.beam_size:
        wrong.append(f"n_best={n_best}: expected 1 to the beam size, {ask.beam_size}")
    if wrong:
        raise UserError("; ".join(wrong))
    return ask


def refuse_string(*given: Sequence[str]) -> None:
    """A string is a sequence of strings too, but of characters."""
    if any(isinstance(lines, str) for lines in given):
        raise UserError("expected a list of lines, not one string; write [line]")


# ---- lines -> parts ----------------------------------------------------------------------------------------------


def parts_of(
    lines: Sequence[str], tokenizer: Tokenizer, limit: int, prefixes: Sequence[str] | None = None
) -> tuple[list[Part], dict[int, str]]:
    """What is to be translated, in parts of at most `limit` tokens; what is wrong with lines that cannot be, by index.

    A line with a prefix stays whole, however long it is.
    """
    parts: list[Part] = []
    refused: dict[int, str] = {}
    for i, (line, ids) in enumerate(zip(lines, tokenizer.encode_batch(lines), strict=True)):
        if is_blank(line):
            continue
        if len(ids) > MAX_LINE_TOKENS:
            refused[i] = f"{len(ids):,} tokens, expected at most {MAX_LINE_TOKENS:,}; split the line"
        elif len(ids) <= limit or (prefixes and prefixes[i]):
            parts.append(Part(i, line, ""))
        else:
            parts += [Part(i, text, gap) for text, gap in split_line(line, tokenizer, limit)]
    return parts, refused


_BREAKS = (
    re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*"),  # between sentences
    re.compile(r"(?<=[,;:])\s+|(?<=[、，；])\s*"),  # between clauses
    re.compile(r"\s+"),  # between words
    re.compile(r"(?<=.)(?=.)", re.DOTALL),  # anywhere
)


def split_line(line: str, tokenizer: Tokenizer, limit: int) -> list[tuple[str, str]]:
    """`line` in parts of at most `limit` tokens, each with the gap to put after its translation ("" or " ").

    A part that is too long is halved at the best break near its middle: between sentences, else between clauses, else
    between words, else anywhere. Nothing but white space is lost, and no part is blank unless the line is.
    """
    if len(line) < 2 or len(tokenizer.encode(line)) <= limit:
        return [(line, "")]
    middle = _break(line)
    left, right = line[: middle.start()], line[middle.end() :]
    if is_blank(left) or is_blank(right):
        return split_line(left.strip() or right.strip(), tokenizer, limit)
    parts = split_line(left, tokenizer, limit)
    parts[-1] = (parts[-1][0], " " if middle.group() else "")
    return parts + split_line(right, tokenizer, limit)


def _break(line: str) -> re.Match[str]:
    """The best place to break a line of at least two characters, in its middle three fifths."""
    first, last = len(line) // 5, len(line) * 4 // 5
    for pattern in _BREAKS:
        found = [match for match in pattern.finditer(line) if first <= match.start() and match.end() <= last]
        if found:
            return min(found, key=lambda match: abs(match.start() - len(line) // 2))
    raise AssertionError("a line of two characters can be broken between them")


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
    texts = [tokenizer.decode(hypothesis.ids) + part.gap for part, hypothesis in members]
    ids = [i for _, h in members for i in [*h.ids, *([EOS] if h.finished else [])]]
    return Translation(
        text=re.sub(r"[\r\n]", " ", "".join(texts)),
        score=sum(h.score for _, h in members),
        pieces=tuple(tokenizer.pieces(ids)),
        token_log_probs=tuple(p for _, h in members for p in h.token_log_probs),
        finished=all(h.finished for _, h in members),
    )


def _untranslated(line: str, problem: str | None) -> Translation:
    """A blank line as it is, but that it stays one line; nothing where there is a problem."""
    return Translation("" if problem else line.replace("\n", " "), problem=problem)
