"""What may be wrong with a line, or with a pair of lines, seen by itself: rules with few false alarms.

Each rule gives a kind, by which `check` names it, and what was seen.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

LONG = 1_000  # characters
COPIED_LETTERS = 12  # what is shorter may well be a name

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffd\ue000-\uf8ff\U000f0000-\U0010ffff]")
TAGS = "a|b|i|u|p|br|hr|li|ol|ul|td|tr|th|em|h[1-6]|div|img|sub|sup|pre|code|span|font|table|strong|script|body|html"
MARKUP = re.compile(
    rf"&(?:[a-zA-Z]{{2,8}}|#\d{{1,7}}|#x[0-9a-fA-F]{{1,6}});|</?(?:{TAGS})(?:\s[^<>]*)?/?>", re.IGNORECASE
)
MOJIBAKE = re.compile(r"[ÂÃ][\x80-\xbf]|â€|ï»¿")
ONE_SCRIPT = re.compile(r"[\x00-\u024f\u1e00-\u1eff\u2000-\u206f]*")  # Latin letters and none of another script
WORD = re.compile(r"[^\W\d_]{3,}")
LOOKALIKE = {"Latin", "Cyrillic", "Greek"}  # scripts whose letters are typed for one another


def faults_of_line(line: str) -> Iterator[tuple[str, str]]:
    """What is wrong with a line by itself: kind, and what was seen."""
    if len(line) > LONG:
        yield "long", f"{len(line):,} characters"
    if match := CONTROL.search(line):
        yield "control", f"U+{ord(match[0]):04X}"
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
    """The script of a letter, as the first word of its Unicode name; "" for what belongs to none or to all."""
    plain = unicodedata.normalize("NFKC", character)[0]
    if not plain.isalpha() or unicodedata.category(plain) == "Lm" or character == "µ":
        return ""
    return unicodedata.name(plain, "").split(" ")[0].title().replace("Cjk", "Han").replace("Ideographic", "Han")


def main_script(line: str) -> str:
    """The script of most letters of a line; "" if it has none."""
    if ONE_SCRIPT.fullmatch(line):
        return "Latin" if any(map(str.isalpha, line)) else ""
    scripts = Counter(script for character in line if (script := script_of(character)))
    return scripts.most_common(1)[0][0] if scripts else ""


# ---- one pair ----------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"\d+(?:[.,'’]\d+|[ \u00a0\u202f]\d{3}(?!\d))*")
LINK = re.compile(r"(?:https?://|www\.)[!-~]+")


def faults_of_pair(src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """What the sides of a pair should share, but do not: kind, and what was seen."""
    if src == tgt and sum(map(str.isalpha, src)) >= COPIED_LETTERS:
        yield "copied", src
    ours, theirs = _long_numbers(src), _long_numbers(tgt)
    if ours and theirs and not any(n in "".join(theirs) for n in ours) and not any(n in "".join(ours) for n in theirs):
        yield "numbers", f"{ours[0]} / {theirs[0]}"
    links = [{link.rstrip(".,;:!?)\"'").casefold() for link in LINK.findall(side)} for side in (src, tgt)]
    if different := sorted(links[0] ^ links[1]):
        yield "links", different[0]


def _long_numbers(line: str) -> list[str]:
    """The numbers of three digits and more, which are seldom written in words or converted, as digits alone."""
    numbers = ("".join(f"{unicodedata.digit(c)}" for c in number if c.isdecimal()) for number in NUMBER.findall(line))
    return [digits for digits in numbers if len(digits) >= 3]
