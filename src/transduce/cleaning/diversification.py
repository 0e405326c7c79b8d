"""Data diversification (Nguyen et al., 2020): a training text, and its translations by models trained on it.

Each pair (x, y) of the text gives new pairs: (x, y') with a forward model's translation of x, and (x', y) with a
backward model's translation of y. No new pair has a sentence of the text for validation or tests.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from transduce.data.compression import StrPath
from transduce.data.text import LinePair, empty, is_blank, read_lines, read_pairs, unequal

OUTCOMES = ("kept", "blank", "held out", "repeated", "copied")


@dataclass(frozen=True)
class HeldOutSentences:
    """The sources and the targets of the text for validation and tests. White space around lines does not count."""

    sources: frozenset[str]
    targets: frozenset[str]

    @classmethod
    def read(cls, files: Iterable[tuple[StrPath, StrPath]]) -> "HeldOutSentences":
        """Read pairs of line-aligned files."""
        pairs = [pair for names in files for pair in read_pairs(*names)]
        return cls(frozenset(src.strip() for src, _ in pairs), frozenset(tgt.strip() for _, tgt in pairs))

    def __contains__(self, pair: LinePair) -> bool:
        """Return True if a side of a pair is held out."""
        return pair[0].strip() in self.sources or pair[1].strip() in self.targets


@dataclass
class Diversification:
    """The text `src`, `tgt` with its translations. All files correspond line by line.

    forward: files with translations of `src`. backward: files with translations of `tgt`.
    counts: the number of new pairs of each file, forward before backward, by outcome. It is complete after `pairs` has
    ended.
    """

    src: StrPath
    tgt: StrPath
    forward: Sequence[StrPath]
    backward: Sequence[StrPath]
    held_out: HeldOutSentences
    counts: list[dict[str, int]] = field(init=False)

    def pairs(self) -> Iterator[LinePair]:
        """Yield each pair of the text as it is, and after it its new pairs.

        Raises UserError, after the last pair that is in all files, for files with different numbers of lines.
        """
        self.counts = [dict.fromkeys(OUTCOMES, 0) for _ in (*self.forward, *self.backward)]
        for src, tgt, *translations in self._lines():
            yield src, tgt
            different = [(src.strip(), tgt.strip())]
            for number, line in enumerate(translations):
                new = (src, line) if number < len(self.forward) else (line, tgt)
                reason = outcome(new, different, self.held_out)
                self.counts[number][reason] += 1
                if reason == "kept":
                    different.append((new[0].strip(), new[1].strip()))
                    yield new

    def check(self) -> None:
        """Raise UserError for files that are missing, are not UTF-8, or have different numbers of lines."""
        deque(self._lines(), maxlen=0)

    def _lines(self) -> Iterator[tuple[str, ...]]:
        """Yield the lines of all files with the same number, first the lines of the text."""
        names = [str(name) for name in (self.src, self.tgt, *self.forward, *self.backward)]
        files = [read_lines(name) for name in names]
        number = 0
        for number, lines in enumerate(zip_longest(*files), start=1):
            is_at_end = [line is None for line in lines]
            if any(is_at_end):
                shorter, longer = is_at_end.index(True), is_at_end.index(False)
                total = number + sum(1 for _ in files[longer])
                raise unequal((names[shorter], names[longer]), (number - 1, total))
            yield lines
        if number == 0:
            raise empty(names[0], names[1])


def outcome(new: LinePair, earlier: Sequence[LinePair], held_out: HeldOutSentences) -> str:
    """Return what happens to a new pair: one of OUTCOMES. earlier: the pairs of the same line, without space around."""
    src, tgt = new[0].strip(), new[1].strip()
    if is_blank(src) or is_blank(tgt):
        return "blank"
    if new in held_out:
        return "held out"
    if (src, tgt) in earlier:
        return "repeated"
    return "copied" if src == tgt else "kept"
