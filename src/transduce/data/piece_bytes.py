"""The bytes that each id of the target language adds to the decoded text, for every kind of tokenizer."""

import re

from transduce.data.sentencepiece_pair import UNKNOWN
from transduce.data.subwords import ESCAPE, bytes_of_letters
from transduce.data.vocabulary import CONTROLS, SPACE, UNK, TokenizerLike

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def piece_bytes(tokenizer: TokenizerLike) -> list[bytes]:
    """Return the bytes of each id: together they are the text that `decode` returns, except for a space before it.

    tokenizer: a tokenizer of any kind. The control pieces have no bytes. The ids that no output contains have none
    either.
    """
    pieces = tokenizer.vocabulary
    if tokenizer.symbols:
        n_others = len(pieces) - len(CONTROLS) - len(tokenizer.symbols)
        return [b"" for _ in CONTROLS] + [b" " + symbol.encode() for symbol in tokenizer.symbols] + [b""] * n_others
    if tokenizer.kind == "wordpiece":
        contents = [bytes_of_letters(piece.removeprefix(SPACE)) for piece in pieces[len(CONTROLS) :]]
    else:
        has_bytes = {f"<0x{byte:02X}>" for byte in range(256)} <= {*pieces}
        contents = [_of_piece(piece, has_bytes, tokenizer.kind) for piece in pieces[len(CONTROLS) :]]
    return [b"" for _ in CONTROLS] + contents


def parts_of_characters(tokenizer: TokenizerLike) -> list[int]:
    """Return the ids that stand for a part of a character, or for one that the tokenizer does not know."""
    unknown = [UNK, *(i for i, piece in enumerate(tokenizer.vocabulary) if piece == UNKNOWN)]
    return [*unknown, *(i for i, content in enumerate(piece_bytes(tokenizer)) if not _is_text(content))]


def content_of_piece(piece: str) -> bytes:
    """Return the bytes of a piece that is a part of a character: `<0x9E>`, or letters of which each is a byte."""
    byte = _BYTE.fullmatch(piece)
    return bytes.fromhex(byte[1]) if byte else bytes_of_letters(piece.removeprefix(SPACE))


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _of_piece(piece: str, has_bytes: bool, kind: str) -> bytes:
    if has_bytes and (byte := _BYTE.fullmatch(piece)):
        return bytes.fromhex(byte[1])
    text = piece.replace(SPACE, " ")
    if kind == "bpe":
        text = text.replace(ESCAPE + "1", SPACE).replace(ESCAPE + "0", ESCAPE)
    return text.encode(errors="replace")
