"""Near copies of test texts: lines of a corpus that are nearly a line of them, which raises the scores of a test."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from transduce.cleaning.misfits import WORD

N = 3  # words in a row
LEAST_WORDS = 5  # a shorter line is a copy only if it is the same
SIMILAR = 0.7  # of the sequences of both lines together, in both


class NearCopies:
    """The lines of test texts, without regard to case and punctuation. Each side is compared separately."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._sizes = list[int]()  # the number of sequences of each line
        self._lines_with: dict[int, list[int]] = defaultdict(list)  # by the hash of a sequence
        self._short = set[tuple[str, ...]]()
        for line in lines:
            words = _words(line)
            if len(words) < LEAST_WORDS:
                self._short.add(words)
                continue
            sequences = _sequences(words)
            for sequence in sequences:
                self._lines_with[sequence].append(len(self._sizes))
            self._sizes.append(len(sequences))
        self._short.discard(())

    def is_short_copy(self, line: str) -> bool:
        """Return True if the line is a short one of the test texts. Many such lines are copies by chance."""
        return _words(line) in self._short

    def is_copy(self, line: str) -> bool:
        """Return True if the line is nearly a line of the test texts that is not short."""
        words = _words(line)
        if len(words) < LEAST_WORDS:
            return False
        sequences = _sequences(words)
        common = Counter(test for sequence in sequences for test in self._lines_with.get(sequence, ()))
        return any(n >= SIMILAR * (len(sequences) + self._sizes[test] - n) for test, n in common.most_common(3))


def _words(line: str) -> tuple[str, ...]:
    return (*WORD.findall(line.casefold()),)


def _sequences(words: Sequence[str]) -> set[int]:
    return {hash((*words[i : i + N],)) for i in range(len(words) - N + 1)}
