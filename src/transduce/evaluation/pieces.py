"""The pieces of a sentence as labels, and the words that they form. They are data: nothing in them is obeyed."""

import re
from collections.abc import Sequence

from transduce.console import printable
from transduce.data.vocabulary import CONTROLS, SPACE

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def marked(pieces: Sequence[str]) -> list[str]:
    """Return the pieces of one sentence with marks for the eye: `▁Ha us ▁groß .` as `Ha ·us groß .`

    A piece that continues a word starts with `·`, and the mark of a new word (▁) is omitted. `␣` is any other space.
    In a sentence without spaces no piece has a mark.
    """
    has_spaces = _has_spaces(pieces)
    labels = []
    for i, piece in enumerate(pieces):
        is_continuation = has_spaces and i > 0 and piece[:1].isalnum()
        text = "·" + piece if is_continuation else piece.removeprefix(SPACE) or "␣"
        labels.append(text.replace(SPACE, "␣").replace(" ", "␣"))
    return labels


def labels(pieces: Sequence[str]) -> list[str]:
    """Return `marked(pieces)` as text for a page, with escapes such as \\u202e for what would be obeyed or unseen."""
    return [printable(label) for label in marked(pieces)]


def words(pieces: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the words of a sentence: the first piece, the end of the pieces, and the text, printable as in `labels`.

    The text begins with the space before the word. A word begins at a space and at a punctuation mark. In a sentence
    without spaces each piece is a word, but the bytes of a character stay together.
    """
    has_spaces = _has_spaces(pieces)
    starts = [i for i in range(len(pieces)) if i == 0 or not _continues(pieces[i - 1], pieces[i], has_spaces)]
    ends = [*starts[1:], len(pieces)]
    return [(start, end, _text(pieces[start:end])) for start, end in zip(starts, ends, strict=True)]


def _has_spaces(pieces: Sequence[str]) -> bool:
    return any(SPACE in piece for piece in pieces[1:])


def _continues(previous: str, piece: str, has_spaces: bool) -> bool:
    if SPACE in piece or piece in CONTROLS:
        return False
    return previous == SPACE or bool(_BYTE.fullmatch(piece)) or (has_spaces and piece[:1].isalnum())


def _text(pieces: Sequence[str]) -> str:
    """Return the text of a word, with characters where its pieces are their bytes."""
    matches = [_BYTE.fullmatch(piece) for piece in pieces]
    content = [
        bytes([int(match[1], 16)]) if match else piece.replace(SPACE, " ").encode()
        for match, piece in zip(matches, pieces, strict=True)
    ]
    text = printable(b"".join(content).decode(errors="replace"))
    return text if text.strip() else "␣"
