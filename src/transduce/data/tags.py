"""The tags of source lines (`data.tags`): a count of the lines that lack one, or have one besides --tag.

Without a tag, a model does not know the target language of a line.
"""

from collections.abc import Iterable

from transduce.data.text import is_blank
from transduce.data.vocabulary import TokenizerLike

LISTED_TAGS = 5


class TagCount:
    """Counts the lines of a text with and without a tag. Blank lines are neither.

    tokenizer: has the tags; without any, nothing is counted. option: the tag of the option --tag, which goes before
    each line; None: the lines have their own.
    """

    def __init__(self, tokenizer: TokenizerLike, option: str | None = None) -> None:
        self.lines = {True: 0, False: 0}  # with a tag, and without
        self._first: dict[bool, int] = {}  # the number of the first of them, from 1
        self._number = 0
        self._tokenizer = tokenizer
        self._option = option

    def see(self, lines: Iterable[str]) -> None:
        """Count the next lines."""
        if not self._tokenizer.tags:
            return
        for line in lines:
            self._number += 1
            if not is_blank(line):
                has_tag = self._tokenizer.split_tag(line)[0] in self._tokenizer.tags
                self.lines[has_tag] += 1
                self._first.setdefault(has_tag, self._number)

    def warning(self, name: str, remedy: str) -> str | None:
        """Return the warning about the lines so far; None if each has one tag. name: name of the text."""
        is_wrong = self._option is not None
        count = self.lines[is_wrong]
        if not count:
            return None
        total = sum(self.lines.values())
        first = f"{count:,} of {total:,} lines, from line {self._first[is_wrong]} on,"
        if is_wrong:
            return (
                f"{name}: expected lines without a tag with --tag {self._option}, but {first} begin with one, which is "
                "text after the other; leave --tag out, or remove the tags"
            )
        return no_tag(name, self._tokenizer, remedy, f"{first} have none" if count < total else "no line has one")


def no_tag(name: str, tokenizer: TokenizerLike, remedy: str, lines: str) -> str:
    """Return the warning about lines without tags. name: name of the text. lines: which lines have none, in words."""
    tags = ", ".join(tokenizer.tags[:LISTED_TAGS]) + (", ..." if len(tokenizer.tags) > LISTED_TAGS else "")
    return f"{name}: expected a tag at the beginning of each source line, but {lines} of {tags}; {remedy}"
