"""The warning about lines without the tags of a model, for commands that read line by line."""

import sys
from collections.abc import Sequence

from transduce.data.tags import has_no_tag, no_tag
from transduce.data.text import is_blank
from transduce.data.vocabulary import TokenizerLike

ENOUGH_LINES = 100  # lines without a tag, before a warning about a text that has not ended


class TagWatch:
    """Warns on standard error, once, that a text has no tags: after `ENOUGH_LINES`, or at its end.

    name: name of the text. remedy: the remedy, in words.
    """

    def __init__(self, name: str, tokenizer: TokenizerLike, remedy: str) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._remedy = remedy
        self._is_over = not tokenizer.tags
        self._count = 0

    def see(self, lines: Sequence[str]) -> None:
        """Look at the next lines. Blank ones do not count."""
        if self._is_over:
            return
        first = [line for line in lines if not is_blank(line)][: ENOUGH_LINES - self._count]
        self._count += len(first)
        if not has_no_tag(first, self._tokenizer):
            self._is_over = True
        elif self._count == ENOUGH_LINES:
            self._warn(f"none of the first {ENOUGH_LINES} lines")

    def end(self) -> None:
        """Warn if the text has ended without a tag."""
        if not self._is_over and self._count:
            self._warn("no line")

    def _warn(self, lines: str) -> None:
        self._is_over = True
        message = no_tag(self._name, self._tokenizer, self._remedy, lines)
        print(f"transduce: {message}", file=sys.stderr, flush=True)
