"""The library tokenizers with a tokenizer.json that others wrote: what it cannot do is a UserError.

The library has no separate exception. It raises plain Exceptions, and its panics, of which it also prints a line to
stderr, are no Exceptions.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tokenizers import Encoding
from tokenizers import Tokenizer as LibraryTokenizer

from transduce.errors import UserError


@contextmanager
def library_errors(message: str, remedy: str = "use another copy") -> Iterator[None]:
    """Raise UserError, `MESSAGE (PROBLEM); REMEDY`, for a problem of the library in the block."""
    try:
        yield
    except BaseException as problem:
        if type(problem) is not Exception and type(problem).__name__ != "PanicException":
            raise
        raise UserError(f"{message} ({problem}); {remedy}") from None


def encode_texts(
    engine: LibraryTokenizer, texts: Sequence[str], n_rows: int, where: str, *, add_special_tokens: bool = True
) -> list[Encoding]:
    """Return the tokens of each text. where: the tokenizer.json, for messages.

    Raises UserError if the library cannot encode a text, or for an id without a row of the embedding: the vocabulary
    does not show all ids that a file can give.
    """
    with library_errors(f"{where}: expected a tokenizer that encodes any text"):
        encodings = engine.encode_batch_fast([*texts], add_special_tokens=add_special_tokens)
    most = max((i for encoding in encodings for i in encoding.ids), default=-1)
    if most >= n_rows:
        raise UserError(f"{where}: expected ids below vocab_size={n_rows:,}, not {most:,}; use a whole folder")
    return encodings
