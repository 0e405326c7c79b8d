"""The count of doubtful translations, for commands that translate line by line."""

import reprlib
import sys
from collections.abc import Sequence

from transduce.data.text import is_blank
from transduce.decoding.hypothesis import Translation
from transduce.decoding.phrases.placeholders import damaged_placeholders

MOST_NUMBERS = 10  # of lines or texts in a message
MEANINGS = {
    "repeated": "repeated the same words; their text is of a second search without repetition, unless --loops=keep",
    "cut": "were cut at their maximum length",
    "short": "have few words for the length of their source, or none, and a part may be missing",
    "damaged": "do not have each {name}, %s, tag, address or emoji as often as their source; --placeholders keeps them",
    "unsplit": "are of several sentences as one, because of must or prefix, and may lack some; write a line for each",
}
UNLIKE_TRAINING = ("repeated", "cut", "short")
REMEDY = "where many are doubtful, the text is unlike the training text"


class DoubtWatch:
    """Counts the translations that repeat themselves, were cut or are short, and says so on standard error.

    name: of the text. count: the number of lines so far; at first, of lines that come before. texts: of a file in
    another format, where the number of a text is no number of a line; empty for lines. In these it also counts damaged
    placeholders, which a program may need. A text whose translation is empty stays, so its placeholders do.
    """

    def __init__(self, name: str, count: int = 0, texts: Sequence[str] = ()) -> None:
        self._name = name
        self._texts = texts
        self._first = self.count = count
        self._lines: dict[str, list[int]] = {doubt: [] for doubt in MEANINGS}

    def see(self, translations: Sequence[Translation]) -> None:
        """Look at the next translations."""
        for translation in translations:
            self.count += 1
            for doubt in translation.doubts:
                self._lines[doubt].append(self.count)
            if self._texts and not is_blank(translation.text):
                if damaged_placeholders(self._texts[self.count - 1], translation.text):
                    self._lines["damaged"].append(self.count)

    def end(self) -> None:
        """Print how many translations of the whole text are doubtful, and the first of their lines."""
        lines = [f"{self._message(doubt)}" for doubt, numbers in self._lines.items() if numbers]
        for line in [*lines, REMEDY] if any(self._lines[doubt] for doubt in UNLIKE_TRAINING) else lines:
            print(f"transduce: {self._name}: {line}", file=sys.stderr, flush=True)

    def _message(self, doubt: str) -> str:
        numbers = self._lines[doubt]
        names = [text_name(n, self._texts[n - 1]) if self._texts else str(n) for n in numbers[:MOST_NUMBERS]]
        some = ", ".join(names) + (", ..." if len(numbers) > MOST_NUMBERS else "")
        word = "" if self._texts else "line " if len(numbers) == 1 else "lines "
        return f"{len(numbers):,} of {self.count - self._first:,} translations {MEANINGS[doubt]} ({word}{some})"


def text_name(number: int, text: str) -> str:
    """Return the name of a text of a file in messages: its number, and enough of it to look for."""
    return f"text {number} {reprlib.repr(text)}"
