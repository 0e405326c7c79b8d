"""The tokenizer of Marian models: a sentencepiece model for each language, and one vocabulary.

The control ids are the same as in the other tokenizers, so no other module depends on the ids of Marian:

    <pad> 0     an unused row
    <s>   1     Marian's <pad>, the first token of its outputs
    </s>  2     Marian's </s>
    <unk> 3     an unused row
    from 4 on   all other pieces in Marian's order, also its <unk>, which is encoded and decoded like any piece

sentencepiece is an extra (`transduce[sentencepiece]`). It is not lossless: it normalises its input.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from transduce.data.vocabulary import CONTROLS, SPACE, TokenizerLike, json_of
from transduce.errors import UserError

FORMAT = "transduce sentencepiece pair"
UNKNOWN = "<unknown>"  # Marian's <unk>
IMPORT_AGAIN = "import the model again: transduce import marian"  # the remedy for a damaged file


def document(source: bytes, target: bytes, pieces: Sequence[str]) -> str:
    """Return the `tokenizer.json` of two sentencepiece models and a vocabulary in the order of the ids."""
    models = {"source": base64.b64encode(source).decode(), "target": base64.b64encode(target).decode()}
    return json_of({"format": FORMAT, **models, "pieces": list(pieces)})


class SentencePieces(TokenizerLike):
    """A pair of sentencepiece models. The model of `side` encodes, and the model of the target decodes."""

    kind = "sentencepiece"

    def __init__(self, text: str, side: str = "source") -> None:
        file = _file(text)
        self.side = side
        self.vocabulary = file.pieces
        self.vocab_size: int = len(file.pieces)
        self.tags = [piece for piece in file.pieces if _language_code(piece)[0]] if side == "source" else []
        self._text = text
        self._arguments = (text,)
        self._ids = {piece: i for i, piece in enumerate(file.pieces)}
        self._decoder = _model(file.target, "target")
        self._encoder = _model(file.source, "source") if side == "source" else self._decoder

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line. A language code before a line, such as >>fra<<, is one piece."""
        return [self._encode(line) for line in lines]

    def _encode(self, line: str) -> list[int]:
        code, rest = _language_code(line)
        unknown = self._ids[UNKNOWN]
        pieces = [*([code] if code else []), *self._encoder.encode(rest, out_type=str)]
        ids = [self._ids.get(piece, unknown) for piece in pieces]
        return [unknown if token < len(CONTROLS) else token for token in ids]

    def with_tags(self, tags: Sequence[str]) -> "SentencePieces":
        """Return a tokenizer with more language codes, after all other pieces."""
        if wrong := [tag for tag in tags if _language_code(tag) != (tag, "")]:
            raise UserError(f"--tags={wrong[0]}: expected a language code of a Marian model, such as >>fra<<")
        return SentencePieces(document(*self.sentencepiece_models(), [*self.vocabulary, *tags]))

    def split_tag(self, line: str) -> tuple[str, str]:
        """Return the language code before a line, known or not, and the rest of the line, without a space between."""
        code, rest = _language_code(line)
        return code, rest.removeprefix(" ") if code else rest

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of any ids. Control ids and Marian's <unk> are left out."""
        skipped = {*range(len(CONTROLS)), self._ids[UNKNOWN]}
        pieces = [self.vocabulary[token] for token in ids if token not in skipped]
        return self._decoder.decode_pieces(pieces).replace(SPACE, " ").strip()

    def to_json(self) -> str:
        """Return the text of `tokenizer.json`."""
        return self._text

    def sentencepiece_models(self) -> tuple[bytes, bytes]:
        """Return the sentencepiece models of the source and of the target."""
        file = _file(self._text)
        return base64.b64decode(file.source), base64.b64decode(file.target)


def _language_code(line: str) -> tuple[str, str]:
    """Split off the language code of a model of several target languages: (">>fra<<", rest) or ("", line)."""
    end = line.find("<<")
    if line.startswith(">>") and end != -1:
        return line[: end + 2], line[end + 2 :]
    return "", line


class _File(msgspec.Struct):
    format: str
    source: str  # a model, in base 64
    target: str
    pieces: list[str]  # by id


def _file(text: str) -> _File:
    try:
        file = msgspec.json.decode(text, type=_File)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"it is not a pair of sentencepiece models ({problem}); {IMPORT_AGAIN}") from None
    is_ours = file.format == FORMAT and file.pieces[:4] == [*CONTROLS] and UNKNOWN in file.pieces
    if not is_ours or len({*file.pieces}) < len(file.pieces):
        raise UserError(f"its vocabulary was not written by transduce; {IMPORT_AGAIN}")
    return file


def _model(encoded: str, side: str) -> Any:
    try:
        return processor(base64.b64decode(encoded, validate=True))
    except ValueError as problem:
        raise UserError(f"its sentencepiece model of the {side} is unreadable ({problem}); {IMPORT_AGAIN}") from None


def processor(model: bytes) -> Any:
    """Return sentencepiece's object for a model. Raises UserError without sentencepiece, ValueError for other bytes."""
    try:
        import sentencepiece
    except ImportError as problem:
        raise UserError(f"it needs sentencepiece ({problem}); pip install 'transduce[sentencepiece]'") from None
    try:
        loaded = sentencepiece.SentencePieceProcessor(model_proto=model)
        size = loaded.vocab_size()
    except (RuntimeError, ValueError) as problem:
        raise ValueError(str(problem)) from None
    if not size:  # sentencepiece accepts an empty file, and fails when it encodes
        raise ValueError("it has no pieces")
    return loaded
