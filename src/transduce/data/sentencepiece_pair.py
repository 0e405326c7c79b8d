"""The tokenizer of Marian models: a sentencepiece model for each language, and one vocabulary.

The control ids are the same as in the other tokenizers, so no other module depends on those of Marian:

    <pad> 0     an unused row
    <s>   1     Marian's <pad>, the first token of its outputs
    </s>  2     Marian's </s>
    <unk> 3     an unused row
    from 4 on   all other pieces in Marian's order, also its <unk>, which is encoded and decoded like any piece

sentencepiece is an extra (`transduce[sentencepiece]`). It is not lossless: it normalises its input.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from transduce.data.vocabulary import CONTROLS, SPACE
from transduce.errors import UserError

FORMAT = "transduce sentencepiece pair"
UNKNOWN = "<unknown>"  # Marian's <unk>
IMPORT_AGAIN = "import the model again: transduce import marian"  # the remedy for a damaged file


def document(source: bytes, target: bytes, pieces: Sequence[str]) -> str:
    """Return the `tokenizer.json` of two sentencepiece models and a vocabulary in the order of the ids."""
    models = {"source": base64.b64encode(source).decode(), "target": base64.b64encode(target).decode()}
    content = {"format": FORMAT, **models, "pieces": list(pieces)}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def is_pair(text: str) -> bool:
    """Return True if a `tokenizer.json` holds a pair of sentencepiece models."""
    return FORMAT in text[:100]


class SentencePieces:
    """A pair of sentencepiece models. The model of `side` encodes, and the model of the target decodes."""

    def __init__(self, text: str, side: str = "source") -> None:
        content = _content(text)
        self.kind: str = "sentencepiece"
        self.vocab_size: int = len(content["pieces"])
        self._text = text
        self._side = side
        self._pieces: list[str] = content["pieces"]
        self._vocabulary = {piece: i for i, piece in enumerate(self._pieces)}
        self.tags = [piece for piece in self._pieces if _language_code(piece)[0]] if side == "source" else []
        self._encoder = _model(content[side], side)
        self._decoder = _model(content["target"], "target")

    @property
    def target(self) -> "SentencePieces":
        """The tokenizer of the target language. It has the same vocabulary."""
        return self if self._side == "target" else SentencePieces(self._text, "target")

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line. A language code before it, such as >>fra<<, is one piece."""
        code, rest = _language_code(line)
        unknown = self._vocabulary[UNKNOWN]
        pieces = [*([code] if code else []), *self._encoder.encode(rest, out_type=str)]
        ids = [self._vocabulary.get(piece, unknown) for piece in pieces]
        return [unknown if token < len(CONTROLS) else token for token in ids]

    def split_tag(self, line: str) -> tuple[str, str]:
        """Return the language code before a line, known or not, and the rest of the line."""
        return _language_code(line)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return `encode(line)` for each line."""
        return [self.encode(line) for line in lines]

    def encode_dropout(self, line: str, *, p: float, key: str) -> list[int]:
        """Raise UserError: sentencepiece models have no merges to drop."""
        raise UserError(f"data.bpe_dropout={p}: expected 0, because the tokenizer is sentencepiece and not bpe")

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of any ids. Control ids and Marian's <unk> are left out."""
        skipped = {*range(len(CONTROLS)), self._vocabulary[UNKNOWN]}
        pieces = [self._pieces[token] for token in ids if token not in skipped]
        return self._decoder.decode_pieces(pieces).replace(SPACE, " ").strip()

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id."""
        return [self._pieces[token] for token in ids]

    @property
    def vocabulary(self) -> list[str]:
        """The pieces by id, as they are on disk, without duplicates."""
        return self._pieces

    @property
    def sha256(self) -> str:
        """The SHA-256 of `tokenizer.json`, in hexadecimal."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the text of `tokenizer.json`."""
        return self._text

    def save(self, path: str | PathLike[str]) -> None:
        """Write `tokenizer.json` to `path`."""
        Path(path).write_bytes(self._text.encode())

    def __reduce__(self) -> tuple[type["SentencePieces"], tuple[str, str]]:
        return type(self), (self._text, self._side)


def _language_code(line: str) -> tuple[str, str]:
    """Split off the language code of a model of several target languages: (">>fra<<", rest) or ("", line)."""
    end = line.find("<<")
    if line.startswith(">>") and end != -1:
        return line[: end + 2], line[end + 2 :]
    return "", line


def _content(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
        pieces = content["pieces"]
        checks = [content["format"] == FORMAT, isinstance(pieces, list), all(isinstance(p, str) for p in pieces)]
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise UserError(f"it is not a pair of sentencepiece models ({problem}); {IMPORT_AGAIN}") from None
    if not all(checks) or len({*pieces}) < len(pieces) or pieces[:4] != [*CONTROLS] or UNKNOWN not in pieces:
        raise UserError(f"its vocabulary was not written by transduce; {IMPORT_AGAIN}")
    return content


def _model(encoded: Any, side: str) -> Any:
    try:
        return processor(base64.b64decode(encoded, validate=True))
    except (ValueError, TypeError) as problem:
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
