"""The maximum number of texts in a file."""

from collections.abc import Iterable, Iterator

from transduce.decoding.phrases.placeholders import is_placeholder
from transduce.errors import UserError
from transduce.serve.documents import Part

MOST_TEXTS = 100_000  # of a file; each takes about a kilobyte


def limited(document: Iterable[str | Part], n_before: int = 0) -> Iterator[str | Part]:
    """Yield the members of a document. A text that is only a placeholder becomes a string: it is not translated.

    n_before: the number of members that came before.

    Raises:
        UserError: for too many members.
    """
    for number, member in enumerate(document, start=n_before):
        if number > 3 * MOST_TEXTS:  # with what is between the texts
            raise UserError(f"expected at most {MOST_TEXTS:,} texts; split the file")
        if isinstance(member, str) or not is_placeholder(member.line):
            yield member
        else:
            yield member.write(member.line, None)
