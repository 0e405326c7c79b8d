"""The maximum number of texts in a file, and the texts that stay."""

from collections.abc import Iterable, Iterator

from transduce.data.text import is_blank
from transduce.decoding.hypothesis import Alignment
from transduce.decoding.phrases.placeholders import is_placeholder
from transduce.errors import UserError
from transduce.serve.documents import Part, Wrapper

MOST_TEXTS = 100_000  # of a file; each takes about a kilobyte


class _Kept(Wrapper):
    """A text of a file, which stays where its translation is empty."""

    def write(self, text: str, alignment: Alignment | None) -> str:
        return self.part.write(self.line if is_blank(text) else text, alignment)


def limited(document: Iterable[str | Part], n_before: int = 0) -> Iterator[str | Part]:
    """Yield the members of a document. A text that is only a placeholder becomes a string: it is not translated.

    n_before: the number of members that came before.

    Raises:
        UserError: for too many members.
    """
    for number, member in enumerate(document, start=n_before):
        if number > 3 * MOST_TEXTS:  # with what is between the texts
            raise UserError(f"expected at most {MOST_TEXTS:,} texts; split the file")
        if isinstance(member, str):
            yield member
        elif is_placeholder(member.line):
            yield member.write(member.line, None)
        else:
            yield _Kept(member)
