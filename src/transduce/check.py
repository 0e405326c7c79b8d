"""`transduce check`: what is in a corpus, and what is wrong with it, before hours are spent on training. It only reads.

The text is read once (twice with a validation text), line by line. What stays in memory is 35 bytes for each pair, and
130 at the peak, when duplicates are looked for: 13 GB for a corpus of 100 million pairs. Duplicates are found by 64-bit
hashes; the chance that one of them is none is below 1 in 1,000 for 100 million pairs.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from transduce.data import corpora, text
from transduce.data.compression import open_text
from transduce.data.corpora import Corpus
from transduce.data.line_checks import faults_of_line, faults_of_pair, main_script, script_of
from transduce.data.overlap import find_leaks
from transduce.data.vocabulary import TokenizerLike
from transduce.errors import UserError

KINDS = {
    "not_utf8": "not UTF-8",
    "unequal": "a side that ends before the other",
    "blank": "blank on one side or both",
    "leak": "of the validation text that are in training as a pair",
    "leaked_source": "of the validation text whose source is in training",
    "copied": "the same on both sides",
    "ratio": "a side much too long for the other",
    "numbers": "other numbers on the other side",
    "links": "other links on the other side",
    "script": "in a script that is rare here",
    "mixed_script": "a word of letters from two scripts",
    "mojibake": "UTF-8 that was read as Latin-1",
    "not_nfc": "not in Unicode's normal form C",
    "control": "control or private characters",
    "markup": "HTML tags or entities",
    "long": "over 1,000 characters",
    "bytes": "a character that the tokenizer has no piece for",
    "repeated": "a pair that was there before",
    "repeated_src": "a source that was there before",
    "repeated_tgt": "a target that was there before",
}  # in the order in which they are shown
FATAL = ("not_utf8", "unequal")
NOTES = ("repeated_src", "repeated_tgt", "leak", "leaked_source")  # no fault of a pair by itself

RARE_SCRIPT = 0.01  # of the letters of a side
TOO_FAR = 6.0  # standard deviations, robustly estimated
ENOUGH_PAIRS = 20  # to know what is usual


@dataclass(frozen=True)
class Place:
    """A line, counted from 1, and what was seen there."""

    line: int
    seen: str


@dataclass(frozen=True)
class Finding:
    """Lines with the same trouble. where: "pair", "src", "tgt" or "valid"; first: the first few of them."""

    kind: str
    where: str
    count: int
    first: list[Place]


@dataclass(frozen=True)
class Side:
    """What one side holds. lengths: characters of the lines that are not blank, by percentile; histogram: how many
    lines have so many characters, in bars of `bar_characters`, the last of which takes what is longer, too."""

    name: str
    words: int
    characters: int
    blank: int
    distinct_characters: int
    scripts: dict[str, int]
    lengths: dict[str, int]
    histogram: list[int]
    bar_characters: int


@dataclass(frozen=True)
class Checked:
    """All that was found. suspects: pairs with a finding that is more than a note."""

    pairs: int
    sides: tuple[Side, Side]
    findings: list[Finding]
    suspects: int
    trainable: bool


def check(
    corpus: Corpus, valid: tuple[Path, Path] | None = None, *, tokenizer: TokenizerLike | None = None, first: int = 5
) -> Checked:
    """Look through a corpus; `first` says how many lines of a finding are named.

    Lines that are not UTF-8 and sides of unequal length are findings in two text files, packed or not. UserError for
    what cannot be read at all, and for the first bad row of a table.
    """
    names = _names(corpus)
    judged = list(text.read_pairs(*valid)) if valid else []
    found = _Findings(first)
    sides = _Side("src", names[0], tokenizer), _Side("tgt", names[1], tokenizer)
    whole = array("q")
    for number, pair in enumerate(_shown(corpus, found), start=1):
        for side, line in zip(sides, pair, strict=True):
            side.take(line, number, found)
        whole.append(hash(pair))
        src, tgt = pair
        if src and tgt:
            for kind, seen in faults_of_pair(src, tgt):
                found.add(kind, "pair", number, seen)
        elif None not in pair:
            found.add("blank", "pair", number, _blank_sides(src, tgt))
    if not whole and not found.kinds(FATAL):
        raise text.empty(*names)

    lengths = [np.asarray(side.lengths) for side in sides]
    usable = (lengths[0] > 0) & (lengths[1] > 0)
    _look_for_repeats(
        found, usable, {"repeated": whole, "repeated_src": sides[0].hashes, "repeated_tgt": sides[1].hashes}
    )
    _look_at_ratios(found, usable, lengths)
    for side in sides:
        side.look_for_rare_scripts(found)
    if valid:
        leaks = find_leaks(_readable(corpus), judged)
        found.add_all("leak", "valid", ((number, "") for number in leaks.pairs))
        found.add_all("leaked_source", "valid", ((number, "") for number in leaks.sources))
    trainable = bool(usable.any()) and not found.kinds(FATAL)
    return Checked(len(whole), (sides[0].sum_up(), sides[1].sum_up()), found.sorted(), found.suspects, trainable)


class _Findings:
    """What has been found so far."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._counts: Counter[tuple[str, str]] = Counter()
        self._places: dict[tuple[str, str], list[Place]] = {}
        self._suspects = bytearray()  # by line: 1 if there is more than a note about it

    def add(self, kind: str, where: str, number: int, seen: str) -> None:
        self._counts[kind, where] += 1
        places = self._places.setdefault((kind, where), [])
        if len(places) < self._first:
            places.append(Place(number, _printable(seen)))
        if kind not in NOTES:
            if number > len(self._suspects):
                self._suspects.extend(bytes(number - len(self._suspects)))
            self._suspects[number - 1] = 1

    def add_all(self, kind: str, where: str, lines: Iterable[tuple[int, str]]) -> None:
        for number, seen in lines:
            self.add(kind, where, number, seen)

    def kinds(self, asked: Sequence[str]) -> bool:
        """Whether there is a finding of these kinds."""
        return any(kind in asked for kind, _ in self._counts)

    @property
    def suspects(self) -> int:
        return self._suspects.count(1)

    def sorted(self) -> list[Finding]:
        """By kind, then source before target."""
        order = list(KINDS)
        keys = sorted(self._counts, key=lambda key: (order.index(key[0]), key[1]))
        return [Finding(*key, self._counts[key], self._places[key]) for key in keys]


def _printable(seen: str) -> str:
    """For a terminal: short, without characters that control it."""
    cut = seen if len(seen) <= 40 else f"{seen[:39]}…"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in cut)


# ---- reading -----------------------------------------------------------------------------------------------------


def _names(corpus: Corpus) -> tuple[str, str]:
    """What the two sides are called."""
    return (f"{corpus.src}", f"{corpus.tgt}") if corpus.tgt else (f"{corpus.src} (source)", f"{corpus.src} (target)")


def _shown(corpus: Corpus, found: _Findings) -> Iterable[tuple[str | None, str | None]]:
    """The pairs, with a bar on a terminal."""
    hidden = not sys.stderr.isatty()
    total = None if hidden or corpus.tgt is None else text.count_lines(corpus.src)
    shown = Console(stderr=True)
    return track(_pairs(corpus, found), "checking", total, console=shown, transient=True, disable=hidden)


def _pairs(corpus: Corpus, found: _Findings) -> Iterator[tuple[str | None, str | None]]:
    """The pairs without the white space around lines; None is a side that cannot be read, and has been noted."""
    if corpus.tgt is None:
        yield from ((src.strip(), tgt.strip()) for src, tgt in corpora.read_pairs(corpus))
        return
    with open_text(corpus.src) as src_file, open_text(corpus.tgt) as tgt_file:
        for number, (src, tgt) in enumerate(zip_longest(src_file, tgt_file), start=1):
            if src is None or tgt is None:
                rest = 1 + sum(1 for _ in (src_file if tgt is None else tgt_file))
                found.add("unequal", "src" if src is None else "tgt", number, f"the other has {rest:,} more")
                return
            yield _decoded(src, "src", number, found), _decoded(tgt, "tgt", number, found)


def _decoded(raw: bytes, where: str, number: int, found: _Findings) -> str | None:
    try:
        return text.decode_line(raw, where, number).strip()
    except UserError as error:
        cause = error.__cause__
        seen = (
            f"byte {cause.start + 1} is 0x{cause.object[cause.start]:02x}"
            if isinstance(cause, UnicodeDecodeError)
            else ""
        )
        found.add("not_utf8", where, number, seen)
        return None


def _readable(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """The pairs that can be read."""
    return ((src, tgt) for src, tgt in _pairs(corpus, _Findings(0)) if src is not None and tgt is not None)


# ---- one side ------------------------------------------------------------------------------------------------------


class _Side:
    """What one side holds, gathered line by line."""

    def __init__(self, where: str, name: str, tokenizer: TokenizerLike | None) -> None:
        self.where, self.name = where, name
        self.lengths, self.hashes = array("I"), array("q")  # characters, 0: nothing to look at
        self._scripts = bytearray()  # by line: the script of most letters, as its number in _script_names
        self._script_names = [""]
        self._characters: Counter[str] = Counter()
        self._words = self._blank = 0
        self._tokenizer, self._has_piece = tokenizer, dict[str, bool]()

    def take(self, line: str | None, number: int, found: _Findings) -> None:
        """Take in a line; None is one that cannot be read."""
        self.lengths.append(len(line or ""))
        self.hashes.append(hash(line))
        self._blank += line == ""
        script = main_script(line) if line else ""
        if script not in self._script_names:
            self._script_names.append(script)
        self._scripts.append(self._script_names.index(script))
        if line:
            self._words += len(line.split())
            self._characters.update(line)
            for kind, seen in faults_of_line(line):
                found.add(kind, self.where, number, seen)
            if self._tokenizer and (split := self._split(line)):
                found.add("bytes", self.where, number, " ".join(split))

    def _split(self, line: str) -> list[str]:
        """The characters of a line that have no piece of their own."""
        distinct = sorted(set(line))
        for character in distinct:
            if character not in self._has_piece and self._tokenizer:
                pieces = self._tokenizer.pieces(self._tokenizer.encode(character))
                self._has_piece[character] = not any(piece.startswith("<0x") for piece in pieces)
        return [character for character in distinct if not self._has_piece[character]]

    def look_for_rare_scripts(self, found: _Findings) -> None:
        """Note the lines most of whose letters are of a script that this side hardly has."""
        letters = self._letters()
        rare = [n for n, name in enumerate(self._script_names) if 0 < letters[name] < RARE_SCRIPT * letters.total()]
        lines = np.frombuffer(self._scripts, np.uint8) if self._scripts else np.zeros(0, np.uint8)
        for index in np.flatnonzero(np.isin(lines, rare)).tolist():
            found.add("script", self.where, index + 1, self._script_names[lines[index]])

    def _letters(self) -> Counter[str]:
        """How many letters there are of each script."""
        letters: Counter[str] = Counter()
        for character, count in self._characters.items():
            if script := script_of(character):
                letters[script] += count
        return letters

    def sum_up(self) -> Side:
        lengths = np.asarray(self.lengths)[np.asarray(self.lengths) > 0]
        shares = {"least": 0, "5 %": 5, "25 %": 25, "median": 50, "75 %": 75, "95 %": 95, "99 %": 99, "most": 100}
        at = (
            np.percentile(lengths, list(shares.values()), method="lower").tolist()
            if len(lengths)
            else [0] * len(shares)
        )
        percentiles = dict(zip(shares, at, strict=True))
        width = max(1, -(-percentiles["99 %"] // BARS))
        histogram = np.bincount(np.minimum((lengths - 1) // width, BARS - 1), minlength=BARS).tolist()
        scripts, total = dict(self._letters().most_common()), self._characters.total()
        distinct = len(self._characters)
        return Side(self.name, self._words, total, self._blank, distinct, scripts, percentiles, histogram, width)


def _blank_sides(src: str | None, tgt: str | None) -> str:
    return "both" if not src and not tgt else "source" if not src else "target"


# ---- all pairs ---------------------------------------------------------------------------------------------------


def _look_for_repeats(found: _Findings, usable: NDArray[np.bool_], hashes: dict[str, "array[int]"]) -> None:
    """Note the lines that were there before; a pair that repeats is not also one whose source and target do."""
    indices = np.flatnonzero(usable)
    told = np.zeros(len(usable), bool)
    for kind, values in hashes.items():
        kept = np.asarray(values)[usable]
        order = np.argsort(kept, kind="stable")
        begins = np.ones(len(order), bool)
        begins[1:] = kept[order][1:] != kept[order][:-1]
        earliest = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
        again = np.sort(order[~begins])
        before = np.zeros(len(order), np.int64)
        before[order] = earliest
        for i in again[~told[indices[again]]].tolist():
            found.add(kind, "pair", int(indices[i]) + 1, f"line {indices[before[i]] + 1}")
        if kind == "repeated":
            told[indices[again]] = True


def _look_at_ratios(found: _Findings, usable: NDArray[np.bool_], lengths: Sequence[NDArray[np.uint32]]) -> None:
    """Note the pairs whose lengths do not belong together (Gale and Church, 1993, made robust).

    Each character of the source gives c characters of the target, with a variance that grows with the length. So
    (target - c source) / sqrt(target + c source) is spread alike for short and long lines; median and median absolute
    deviation tell how much is usual.
    """
    src, tgt = (side[usable].astype(np.float64) for side in lengths)
    if len(src) < ENOUGH_PAIRS:
        return
    c = np.median(tgt / src)
    apart = (tgt - c * src) / np.sqrt(tgt + c * src)
    apart -= np.median(apart)
    usual = max(1.4826 * float(np.median(np.abs(apart))), 0.25)  # a corpus of one sentence form varies too little
    for i in np.flatnonzero(np.abs(apart) > TOO_FAR * usual).tolist():
        found.add("ratio", "pair", int(np.flatnonzero(usable)[i]) + 1, f"{src[i]:.0f} : {tgt[i]:.0f} characters")


# ---- for people --------------------------------------------------------------------------------------------------

BARS = 40
HEIGHTS = " ▁▂▃▄▅▆▇█"


def show(checked: Checked) -> str:
    """`checked` as text for a person, without the verdict."""
    lines = [f"{checked.pairs:,} pairs", ""]
    for side in checked.sides:
        blank = f", {side.blank:,} blank lines" if side.blank else ""
        kinds = f"{side.distinct_characters:,} different"
        lines += [f"{side.name}", f"  {side.words:,} words, {side.characters:,} characters ({kinds}){blank}"]
        letters = max(1, sum(side.scripts.values()))
        shares = [f"{name} {_percent(count / letters)}" for name, count in list(side.scripts.items())[:5]]
        lines += [f"  letters: {', '.join(shares) or 'none'}"]
        lines += ["  characters a line: " + ", ".join(f"{name} {value:,}" for name, value in side.lengths.items())]
        most = max(1, *side.histogram)
        bars = "".join(HEIGHTS[-(-count * (len(HEIGHTS) - 1) // most)] for count in side.histogram)
        lines += [f"  1 |{bars}| {side.bar_characters * BARS:,} and more", ""]
    names = {"src": checked.sides[0].name, "tgt": checked.sides[1].name}
    width = max((len(f"{finding.count:,}") for finding in checked.findings), default=0)
    for finding in checked.findings:
        where = f", in {names[finding.where]}" if finding.where in names else ""
        lines += [
            f"{finding.count:{width},} {'line ' if finding.count == 1 else 'lines'}  {KINDS[finding.kind]}{where}"
        ]
        places = [f"{place.line} ({place.seen})" if place.seen else f"{place.line}" for place in finding.first]
        more = ", ..." if finding.count > len(places) else ""
        lines += [f"{'':{width}}        {', '.join(places)}{more}"] if places else []
    return "\n".join([*lines, ""] if checked.findings else lines)


def verdict(checked: Checked) -> str:
    """One sentence: can it be trained on?"""
    if not checked.trainable:
        bad = [KINDS[finding.kind] for finding in checked.findings if finding.kind in FATAL]
        reason = "; ".join(dict.fromkeys(bad)) or "every pair is blank on one side or both"
        return f"this text cannot be trained on: {reason}. Mend the lines named above, and check again."
    leaked = sum(finding.count for finding in checked.findings if finding.kind == "leak")
    leaks = f" {leaked:,} validation pairs are in training, too, and will flatter the scores." if leaked else ""
    if checked.suspects:
        share = _percent(checked.suspects / checked.pairs)
        return f"It can be trained on; {checked.suspects:,} of {checked.pairs:,} pairs ({share}) deserve a look.{leaks}"
    return f"It can be trained on; no pair needs a look.{leaks}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else "under 0.1 %"
