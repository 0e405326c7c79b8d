"""Checks of a line, of a pair of lines, and of the lengths of all pairs, chosen for few false alarms.

A check yields the kind of a finding (`corpus_report.KINDS`) and the evidence, a part of the text.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from transduce.cleaning.misfits import WORD as ANY_WORD
from transduce.data.vocabulary import TokenizerLike

LONG = 1_000  # characters
COPIED_LETTERS = 12  # a shorter line may be a name

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffd\ue000-\uf8ff\U000f0000-\U0010ffff]")
TAGS = "a|b|i|u|p|br|hr|li|ol|ul|td|tr|th|em|h[1-6]|div|img|sub|sup|pre|code|span|font|table|strong|script|body|html"
MARKUP = re.compile(
    rf"&(?:[a-zA-Z]{{2,8}}|#\d{{1,7}}|#x[0-9a-fA-F]{{1,6}});|</?(?:{TAGS})(?:\s[^<>]*)?/?>", re.IGNORECASE
)
SUBWORDS = re.compile(r"(?<!\w)\w+@@(?= |$)|\u2581\w*")
MOJIBAKE = re.compile(r"[ÂÃ][\x80-\xbf]|Ã[€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘“•–—˜™š›œžŸ]|â€|ï»¿")  # read as Latin-1, or as Windows-1252
ONE_SCRIPT = re.compile(r"[\x00-\u024f\u1e00-\u1eff\u2000-\u206f]*")  # Latin letters only
WORD = re.compile(r"[^\W\d_]{3,}")
LOOKALIKE = {"Latin", "Cyrillic", "Greek"}  # scripts whose letters look alike

# ---- one line ----------------------------------------------------------------------------------------------------


def check_line(line: str) -> Iterator[tuple[str, str]]:
    """Yield kind and evidence of each problem of a line."""
    if len(line) > LONG:
        yield "long", f"{len(line):,} characters"
    if match := CONTROL.search(line):
        yield "control", f"U+{ord(match[0]):04X}"
    if match := SUBWORDS.search(line):
        yield "subwords", line[match.start() : match.start() + 12]
    if match := MARKUP.search(line):
        yield "markup", match[0]
    if line.isascii():
        return
    if match := MOJIBAKE.search(line):
        yield "mojibake", line[match.start() : match.start() + 12]
    if not unicodedata.is_normalized("NFC", line):
        yield "not_nfc", next((w for w in line.split() if not unicodedata.is_normalized("NFC", w)), "")
    if not ONE_SCRIPT.fullmatch(line):
        for word in WORD.findall(line):
            scripts = {script_of(character) for character in word} & LOOKALIKE
            if len(scripts) > 1:
                yield "mixed_script", f"{word} ({' and '.join(sorted(scripts))})"
                break


@lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str:
    """Return the script of a letter, the first word of its Unicode name; "" if it has no script or several."""
    plain = unicodedata.normalize("NFKC", character)[0]
    if not plain.isalpha() or unicodedata.category(plain) == "Lm" or character == "µ":
        return ""
    return unicodedata.name(plain, "").split(" ")[0].title().replace("Cjk", "Han").replace("Ideographic", "Han")


def main_script(line: str) -> str:
    """Return the script of most letters of a line; "" if it has no letters."""
    if ONE_SCRIPT.fullmatch(line):
        return "Latin" if any(map(str.isalpha, line)) else ""
    scripts = Counter(script for character in line if (script := script_of(character)))
    return scripts.most_common(1)[0][0] if scripts else ""


class PieceCheck:
    """The check for characters that a tokenizer splits into bytes."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer
        self._has_piece: dict[str, bool] = {}

    def __call__(self, line: str) -> str:
        """Return the characters of a line for which the tokenizer has no piece, separated by spaces."""
        characters = sorted(set(line))
        for character in characters:
            if character not in self._has_piece:
                pieces = self._tokenizer.pieces(self._tokenizer.encode(character))
                self._has_piece[character] = not any(piece.startswith("<0x") for piece in pieces)
        return " ".join(character for character in characters if not self._has_piece[character])


# ---- one pair ----------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"\d+(?:[.,'’]\d+|[ \u00a0\u202f]\d{3}(?!\d))*")
LINK = re.compile(r"(?:https?://|www\.)[!-~]+")
SPACED_WORD = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")
REPEATED = re.compile(r"(?<!\S)(\S++(?: \S++){0,11}?)(?: \1(?!\S)){2,}")  # up to 12 words, at least 3 times
MANY_NUMBERS = 100  # on both sides; a line with more is a table, and the check of each number reads the other side


def check_pair(src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """Yield kind and evidence of each difference between the sides that a translation would not have."""
    if is_copied(src, tgt):
        yield "copied", src
    if repetition := _repetition(src, tgt) or _repetition(tgt, src):
        yield "repetition", repetition
    numbers, others = _long_numbers(src), _long_numbers(tgt)
    if numbers and others and len(numbers) + len(others) <= MANY_NUMBERS and not _share_digits(numbers, others):
        yield "numbers", f"{numbers[0]} / {others[0]}"
    links = [{link.rstrip(".,;:!?)\"'").casefold() for link in LINK.findall(side)} for side in (src, tgt)]
    if different := sorted(links[0] ^ links[1]):
        yield "links", different[0]


def _repetition(line: str, other: str) -> str:
    """Return the words that a line repeats and the other does not, and how often; "" if there are none.

    In the other line, each character of a script without spaces is a word: 哈哈哈 translates ha ha ha.
    """
    words, n = _most_repeated(SPACED_WORD.findall(line.casefold()))
    has_letter = any(map(str.isalpha, words))  # a number such as 1 000 000 000 repeats its groups
    is_repetition = has_letter and n >= 2 * _most_repeated(ANY_WORD.findall(other.casefold()))[1]
    return f"{words}, {n} times" if is_repetition else ""


def _most_repeated(words: Sequence[str]) -> tuple[str, int]:
    """Return the words that come most often one after the other, and how often; 1 if none comes 3 times."""
    matches = REPEATED.finditer(" ".join(words))
    counts = [(match[1], (len(match[0]) + 1) // (len(match[1]) + 1)) for match in matches]
    return max(counts, key=lambda count: count[1], default=("", 1))


def is_copied(src: str, tgt: str) -> bool:
    """Return True if both sides are the same text, which is too long for a name."""
    return src == tgt and sum(map(str.isalpha, src)) >= COPIED_LETTERS


def _long_numbers(line: str) -> list[str]:
    """Return the digits of each number of at least three digits. Translations rarely spell or convert these."""
    numbers = ("".join(f"{unicodedata.digit(c)}" for c in number if c.isdecimal()) for number in NUMBER.findall(line))
    return [digits for digits in numbers if len(digits) >= 3]


def _share_digits(numbers: list[str], others: list[str]) -> bool:
    """Return True if a number of one side is within the digits of the other side, which may be grouped otherwise."""
    digits, other_digits = "".join(numbers), "".join(others)
    return any(n in other_digits for n in numbers) or any(n in digits for n in others)


# ---- all pairs ---------------------------------------------------------------------------------------------------

MOST_DEVIATIONS = 6.0  # standard deviations, robustly estimated
ENOUGH_PAIRS = 20  # to estimate the deviation
MOST_EQUAL = 0.1  # of the pairs with the same two lengths; short sentences have them in about 0.01 of the pairs
SHORT = 8  # times shorter than the other side predicts: on Multi30k and Tanaka at most 3.4 times


def unusual_ratios(src: NDArray[np.uint32], tgt: NDArray[np.uint32]) -> Iterator[tuple[int, str]]:
    """Yield index and evidence of the pairs whose lengths do not fit each other (Gale and Church, 1993, made robust).

    Each source character gives c target characters, with a variance proportional to the length. So
    (target - c source) / sqrt(target + c source) has the same spread for short and long lines. Median and median
    absolute deviation estimate the usual spread. src, tgt: characters of the lines, above 0.

    If half of the pairs are wrong, the usual spread is the spread of the wrong pairs. So a side is also unusual if it
    is `SHORT` times shorter than the other side predicts, where the other side has at least half the median length.
    Lengths that many pairs have, such as boilerplate, count once for the usual spread, which would be 0 otherwise.
    """
    if len(src) < ENOUGH_PAIRS:
        return
    _, first, counts = np.unique(src.astype(np.uint64) << 32 | tgt, return_index=True, return_counts=True)
    repeats = counts.max() > MOST_EQUAL * len(src) and len(first) >= ENOUGH_PAIRS
    counted = np.zeros(len(src), bool)
    counted[first if repeats else slice(None)] = True
    scale = np.percentile(tgt[counted], 75) / np.percentile(src[counted], 75)  # short lines hardly change it
    is_short = (2 * tgt >= np.median(tgt[counted])) & (SHORT * scale * src < tgt)
    is_short |= (2 * src >= np.median(src[counted])) & (SHORT * tgt < scale * src)
    fits = counted & ~is_short
    if np.count_nonzero(fits) < ENOUGH_PAIRS:
        fits = counted
    expected = np.median(tgt[fits] / src[fits]) * src
    deviations = (tgt - expected) / np.sqrt(tgt + expected)
    deviations -= np.median(deviations[fits])
    usual = max(
        1.4826 * float(np.median(np.abs(deviations[fits]))), 0.25
    )  # a corpus of one sentence form varies too little
    for i in np.flatnonzero(is_short | (np.abs(deviations) > MOST_DEVIATIONS * usual)).tolist():
        yield i, f"{src[i]} : {tgt[i]} characters, usually {src[i]} : {expected[i]:.0f}"
