"""The report of `transduce check`, as objects and as text: statistics of a corpus, and its suspicious lines."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transduce.cleaning.line_checks import main_script, script_of
from transduce.console import counted
from transduce.data.overlap import EXCHANGED

KINDS = {
    "not_utf8": "not UTF-8",
    "unequal": "a side that ends before the other",
    "blank": "blank on one side or both",
    "leak": "of the validation text that are in training as a pair",
    "leaked_source": "of the validation text whose source is in training",
    "exchanged": "of the validation text, whose sides look exchanged",
    "unrelated": "of sides that hardly belong together",
    "many_targets": "a source with very many different targets",
    "many_sources": "a target with very many different sources",
    "copied": "the same on both sides",
    "ratio": "lengths of the sides that differ from the usual ratio",
    "repetition": "words that one side repeats again and again",
    "numbers": "other numbers on the other side",
    "links": "other links on the other side",
    "script": "in a script that is rare here",
    "mixed_script": "a word of letters from two scripts",
    "mojibake": "UTF-8 that was read as Latin-1",
    "not_nfc": "not in Unicode's normal form C",
    "control": "control or private characters",
    "subwords": "marks of subwords",
    "markup": "HTML tags or entities",
    "long": "over 1,000 characters",
    "bytes": "a character that the tokenizer has no piece for",
    "repeated": "a repeated pair",
    "repeated_src": "a repeated source",
    "repeated_tgt": "a repeated target",
}  # in the order of the report
FATAL = ("not_utf8", "unequal")
NOTES = ("repeated_src", "repeated_tgt", "leak", "leaked_source", "exchanged")  # no mistake of the pair itself

RARE_SCRIPT = 0.01  # of the letters of a side
PERCENTILES = {"least": 0, "5 %": 5, "25 %": 25, "median": 50, "75 %": 75, "95 %": 95, "99 %": 99, "most": 100}
BARS = 40
HEIGHTS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Example:
    """The number of a line, from 1, and the evidence (`seen`): a part of the line, or a description."""

    line: int
    seen: str


@dataclass(frozen=True)
class Finding:
    """Lines with the same problem. where: "pair", "src", "tgt" or "valid". first: the first lines, as examples."""

    kind: str
    where: str
    count: int
    first: list[Example]


@dataclass(frozen=True)
class SideReport:
    """The statistics of one side.

    lengths: characters per line that is not blank, by percentile. histogram: the number of lines by characters, in bars
    of `bar_characters`; the last bar also counts all longer lines.
    """

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
class CorpusReport:
    """The result of `check`. suspects: pairs with a finding that is more than a note."""

    pairs: int
    sides: tuple[SideReport, SideReport]
    findings: list[Finding]
    suspects: int
    trainable: bool


# ---- collection --------------------------------------------------------------------------------------------------


class Findings:
    """The findings so far. Each keeps the first `limit` lines as examples."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], list[Example]] = {}
        self._suspects = bytearray()  # by line: 1 if it has more than a note
        self._lines: dict[str, array[int]] = {}  # by kind: the numbers of its lines

    def add(self, kind: str, where: str, number: int, evidence: str = "") -> None:
        """Add line `number`, counted from 1, to a finding."""
        self.add_range(kind, where, number, number, evidence)

    def add_range(self, kind: str, where: str, first: int, last: int, evidence: str) -> None:
        """Add the lines `first` to `last`, counted from 1, with one example for all of them."""
        self._counts[kind, where] += last - first + 1
        self._lines.setdefault(kind, array("I")).extend(range(first, last + 1))
        examples = self._examples.setdefault((kind, where), [])
        if len(examples) < self._limit:
            examples.append(Example(first, _printable(evidence)))
        if kind not in NOTES:
            self._suspects.extend(bytes(max(0, last - len(self._suspects))))
            self._suspects[first - 1 : last] = b"\1" * (last - first + 1)

    def add_all(self, kind: str, where: str, lines: Iterable[tuple[int, str]]) -> None:
        """Add lines, given as (number, evidence)."""
        for number, evidence in lines:
            self.add(kind, where, number, evidence)

    def lines(self, kind: str) -> Sequence[int]:
        """Return the numbers of the lines with a finding of this kind."""
        return self._lines.get(kind, ())

    @property
    def has_fatal(self) -> bool:
        """True if a finding makes training impossible."""
        return any(kind in FATAL for kind, _ in self._counts)

    @property
    def suspects(self) -> int:
        """The number of lines that have more than a note."""
        return self._suspects.count(1)

    def in_order(self) -> list[Finding]:
        """Return the findings by kind, and source before target."""
        order = list(KINDS)
        keys = sorted(self._counts, key=lambda key: (order.index(key[0]), key[1]))
        return [Finding(*key, self._counts[key], self._examples[key]) for key in keys]


def _printable(evidence: str) -> str:
    """Return the text cut to 40 characters, with escapes for characters that would control a terminal."""
    part = evidence if len(evidence) <= 60 else f"{evidence[:59]}…"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in part)


class SideStatistics:
    """The statistics of one side, collected line by line. `lengths` and `hashes` have an entry for each line.

    lengths: the number of characters; 0 for a line that is blank or not UTF-8.
    """

    def __init__(self) -> None:
        self.lengths = array("I")
        self.hashes = array("q")
        self._script_indices = bytearray()  # by line: the script of most of its letters, as an index of _script_names
        self._script_names = [""]
        self._characters: Counter[str] = Counter()
        self._words = 0
        self._blank = 0

    def add(self, line: str | None) -> None:
        """Add a line. line: None if it is not UTF-8."""
        self.lengths.append(len(line or ""))
        self.hashes.append(hash(line))
        self._blank += line == ""
        script = main_script(line) if line else ""
        if script not in self._script_names:
            self._script_names.append(script)
        self._script_indices.append(self._script_names.index(script))
        if line:
            self._words += len(line.split())
            self._characters.update(line)

    def lines_in_rare_scripts(self) -> list[tuple[int, str]]:
        """Return number and script of each line whose main script has under 1 % of the letters of this side."""
        letters = self._letters()
        names = self._script_names
        rare = [index for index, name in enumerate(names) if 0 < letters[name] < RARE_SCRIPT * letters.total()]
        scripts: NDArray[np.uint8] = np.array(self._script_indices, np.uint8)
        return [(line + 1, names[scripts[line]]) for line in np.flatnonzero(np.isin(scripts, rare)).tolist()]

    def _letters(self) -> Counter[str]:
        """Return the number of letters of each script."""
        letters: Counter[str] = Counter()
        for character, count in self._characters.items():
            if script := script_of(character):
                letters[script] += count
        return letters

    def report(self, name: str) -> SideReport:
        """Return the report of this side. name: the name of its file."""
        lengths = np.asarray(self.lengths)[np.asarray(self.lengths) > 0]
        values = [0] * len(PERCENTILES)
        if len(lengths):
            values = np.percentile(lengths, list(PERCENTILES.values()), method="lower").tolist()
        percentiles = dict(zip(PERCENTILES, values, strict=True))
        width = max(1, -(-percentiles["99 %"] // BARS))
        return SideReport(
            name=name,
            words=self._words,
            characters=self._characters.total(),
            blank=self._blank,
            distinct_characters=len(self._characters),
            scripts=dict(self._letters().most_common()),
            lengths=percentiles,
            histogram=np.bincount(np.minimum((lengths - 1) // width, BARS - 1), minlength=BARS).tolist(),
            bar_characters=width,
        )


# ---- as text -----------------------------------------------------------------------------------------------------


def report_text(report: CorpusReport) -> str:
    """Return the report as text, without the verdict."""
    lines = [counted(report.pairs, "pair"), ""]
    for side in report.sides:
        lines += [*_side_lines(side), ""]
    names = {"src": report.sides[0].name, "tgt": report.sides[1].name}
    width = max((len(f"{finding.count:,}") for finding in report.findings), default=0)
    for finding in report.findings:
        where = f", in {names[finding.where]}" if finding.where in names else ""
        unit = "line " if finding.count == 1 else "lines"
        lines.append(f"{finding.count:{width},} {unit}  {KINDS[finding.kind]}{where}")
        examples = [
            f"{example.line} ({example.seen})" if example.seen else f"{example.line}" for example in finding.first
        ]
        more = ", ..." if finding.count > len(examples) else ""
        lines += [f"{'':{width}}        {', '.join(examples)}{more}"] if examples else []
    return "\n".join([*lines, ""] if report.findings else lines)


def _side_lines(side: SideReport) -> list[str]:
    blank = f", {side.blank:,} blank lines" if side.blank else ""
    letters = max(1, sum(side.scripts.values()))
    shares = [f"{name} {_percent(count / letters)}" for name, count in list(side.scripts.items())[:5]]
    highest = max(1, *side.histogram)
    bars = "".join(HEIGHTS[-(-count * (len(HEIGHTS) - 1) // highest)] for count in side.histogram)
    return [
        f"{side.name}",
        f"  {side.words:,} words, {side.characters:,} characters ({side.distinct_characters:,} different){blank}",
        f"  letters: {', '.join(shares) or 'none'}",
        "  characters a line: " + ", ".join(f"{name} {value:,}" for name, value in side.lengths.items()),
        f"  1 |{bars}| {side.bar_characters * BARS:,} and more",
    ]


def verdict(report: CorpusReport) -> str:
    """Return the result of the check as a sentence: can a model be trained on the corpus, and do pairs look wrong?"""
    if not report.trainable:
        fatal = [KINDS[finding.kind] for finding in report.findings if finding.kind in FATAL]
        reason = "; ".join(dict.fromkeys(fatal)) or "every pair is blank on one side or both"
        return f"this text cannot be trained on: {reason}; correct the lines above and check again"
    n_leaks = sum(finding.count for finding in report.findings if finding.kind == "leak")
    notes = (
        f" {n_leaks:,} validation pairs are also in training, which raises the validation scores." if n_leaks else ""
    )
    if any(finding.kind == "exchanged" for finding in report.findings):
        notes += f" --valid: {EXCHANGED}; give the two sides the other way round."
    if n_unrelated := sum(finding.count for finding in report.findings if finding.kind == "unrelated"):
        remedy = "look for a lost line or a file in other order"
        notes += f" The sides of {n_unrelated:,} pairs hardly belong together: {remedy}."
    if report.suspects:
        share = _percent(report.suspects / report.pairs)
        return f"It can be trained on; {report.suspects:,} of {report.pairs:,} pairs ({share}) look wrong.{notes}"
    return f"It can be trained on; no pair looks wrong.{notes}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else "under 0.1 %"
