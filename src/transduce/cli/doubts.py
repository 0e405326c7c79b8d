"""The count of doubtful translations, for commands that translate line by line."""

import sys
from collections.abc import Sequence

from transduce.decoding.hypothesis import Translation

MOST_NUMBERS = 10  # of lines in a message
MEANINGS = {
    "repeated": "repeated the same words; their text is of a second search without repetition, unless --loops=keep",
    "cut": "were cut at their maximum length",
    "short": "have few words for the length of their source, and a part may be missing",
    "unsplit": "are of several sentences as one, because of must or prefix, and may lack some; write a line for each",
}
UNLIKE_TRAINING = ("repeated", "cut", "short")
REMEDY = "where many are doubtful, the text is unlike the training text"


class DoubtWatch:
    """Counts the translations that repeat themselves, were cut or are short, and says so on standard error.

    name: of the text. count: the number of lines so far; at first, of lines that come before.
    """

    def __init__(self, name: str, count: int = 0) -> None:
        self._name = name
        self._first = self.count = count
        self._lines: dict[str, list[int]] = {doubt: [] for doubt in MEANINGS}

    def see(self, translations: Sequence[Translation]) -> None:
        """Look at the next translations."""
        for translation in translations:
            self.count += 1
            for doubt in translation.doubts:
                self._lines[doubt].append(self.count)

    def end(self) -> None:
        """Print how many translations of the whole text are doubtful, and the first of their lines."""
        lines = [f"{self._message(doubt)}" for doubt, numbers in self._lines.items() if numbers]
        for line in [*lines, REMEDY] if any(self._lines[doubt] for doubt in UNLIKE_TRAINING) else lines:
            print(f"transduce: {self._name}: {line}", file=sys.stderr, flush=True)

    def _message(self, doubt: str) -> str:
        numbers = self._lines[doubt]
        some = ", ".join(map(str, numbers[:MOST_NUMBERS])) + (", ..." if len(numbers) > MOST_NUMBERS else "")
        word = "line" if len(numbers) == 1 else "lines"
        return f"{len(numbers):,} of {self.count - self._first:,} translations {MEANINGS[doubt]} ({word} {some})"
