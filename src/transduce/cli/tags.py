"""The warnings about lines without the tags of a model, for commands that read line by line."""

import sys
from collections.abc import Iterable, Sequence

from transduce.data.tags import TagCount, no_tag
from transduce.data.vocabulary import TokenizerLike

ENOUGH_LINES = 100  # lines without a tag, before a warning about a text that has not ended


class TagWatch:
    """Warns on standard error about lines without a tag: after `ENOUGH_LINES` of only these, and at the end.

    name: name of the text. remedy: the remedy, in words. option: the tag of --tag, with which no line should have one.
    """

    def __init__(self, name: str, tokenizer: TokenizerLike, remedy: str, option: str | None = None) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._remedy = remedy
        self._count = TagCount(tokenizer, option)
        self._option = option
        self._has_warned = False

    def see(self, lines: Sequence[str]) -> None:
        """Look at the next lines. Blank ones do not count."""
        self._count.see(lines)
        count = self._count.lines[False]
        if not (self._has_warned or self._option or self._count.lines[True]) and count >= ENOUGH_LINES:
            self._has_warned = True
            _print(no_tag(self._name, self._tokenizer, self._remedy, f"none of the first {count:,} lines has one"))

    def end(self) -> None:
        """Warn about the whole text, unless the first lines said all."""
        warning = self._count.warning(self._name, self._remedy)
        if warning and not (self._has_warned and not self._count.lines[True]):
            _print(warning)


def warn_about_tags(
    lines: Iterable[str], name: str, tokenizer: TokenizerLike, remedy: str, option: str | None = None
) -> None:
    """Warn on standard error about lines of a whole text without a tag. Arguments as of `TagWatch`."""
    count = TagCount(tokenizer, option)
    count.see(lines)
    if warning := count.warning(name, remedy):
        _print(warning)


def _print(message: str) -> None:
    print(f"transduce: {message}", file=sys.stderr, flush=True)
