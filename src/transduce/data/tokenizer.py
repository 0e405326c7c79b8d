"""Text to token ids and back: subwords, learned from the training text of both languages together (§5.1).

There are two kinds, as in the paper: byte-pair encoding (its English-German) and word pieces (its English-French).
Both are learned by BPE merges; word pieces are then applied by the longest match, as in GNMT.
Both are lossless for any text, and neither turns text into a control id:

    ids 0 to 3    <pad> <s> </s> <unk>, the control pieces; `encode` never returns them
    then bytes    bpe: <0x00> to <0xFF>, for characters without a piece of their own
                  wordpiece: the 256 byte letters, first as the start of a word, then within one (with ▁)
    then tags     the words of `data.tags`, such as <2de>: one token at the beginning of a source line, else text
                  or the three marks of `data.fill_middle`, which `encode` never returns
    then words    bpe: the characters of the training text, then the merged pieces
                  wordpiece: the pieces merged from byte letters

A line is first cut into words: letters, digits or other characters, with the space before them. So letters and
punctuation never share a piece. No piece can spell </s> or <0x41>, and "dog." is the word "dog" and a full stop.

A word has at most MAX_WORD characters. The time to encode it grows faster than its length, and some texts have words of
a megabyte. The rest of a longer word is another word, without a space.

On disk a tokenizer is a `tokenizer.json`, which the Hugging Face library can also read. `subwords.document_of` fixes
all of it except the vocabulary and the merges. Loading refuses a file that differs in any other part.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from transduce.data import labels, paths, sentencepiece_pair, symbols, words
from transduce.data.bpe_dropout import BpeDropout
from transduce.data.labels import TextAndLabels
from transduce.data.paths import PathsAndText
from transduce.data.sentencepiece_pair import SentencePieces
from transduce.data.subwords import KINDS, bytes_of_letters, document_of, engine_of, fixed_pieces, parts_of, trainer_of
from transduce.data.symbols import SubwordsAndSymbols
from transduce.data.text import check_text, is_blank
from transduce.data.vocabulary import (
    CONTROLS,
    MIDDLE_MARKS,
    SPACE,
    TokenizerLike,
    fields_of,
    json_of,
    split_tag,
)
from transduce.data.words import Words
from transduce.errors import UserError

MAX_FILE_BYTES = 64 << 20


class Tokenizer(TokenizerLike):
    """A vocabulary of subwords, and the rules by which text becomes ids and ids become text."""

    def __init__(self, text: str, side: str = "source") -> None:
        """Create a tokenizer from the text that `to_json` returns. Raises UserError for any other text.

        side: "source" or "target", where a tag is ordinary text.
        """
        parts = parts_of(text)
        self.tags = [tag for tag in parts.tags if tag not in MIDDLE_MARKS] if side == "source" else []
        self.kind: str = parts.kind
        self.side = side
        self.vocabulary = list(parts.vocabulary)
        self.vocab_size: int = len(self.vocabulary)
        self.normalizes = parts.normalizes
        self._text = text
        self._arguments = (text,)
        self._ids = parts.vocabulary
        self._merges = parts.merges
        self._special = {*CONTROLS, *parts.tags}
        self._engine = engine_of(parts.document)

    @classmethod
    def learn(
        cls,
        lines: Iterable[str],
        *,
        kind: str = "bpe",
        vocab_size: int,
        tags: Sequence[str] = (),
        normalizes: bool = False,
    ) -> "Tokenizer":
        """Learn at most `vocab_size` pieces from lines of text, tags included; a small text has fewer.

        tags: words that pass `config.validation.is_tag`, or MIDDLE_MARKS. No piece is learned from a tag before a line.
        normalizes: remove the differences of lines that nobody sees, here and in every line that is encoded: any white
        space is one space, and characters are composed. Encoding is lossless except for these.
        Reads the lines once and does not keep them. The same lines give the same tokenizer. Raises UserError if all
        lines are blank, or if `vocab_size` is too small for the pieces that make the tokenizer lossless.
        """
        if kind not in KINDS:
            raise UserError(f"data.tokenizer={kind!r}: expected one of {', '.join(KINDS)}; use one of these")
        fixed = [*fixed_pieces(kind), *tags]
        if vocab_size <= len(fixed):
            raise UserError(
                f"data.vocab_size={vocab_size}: expected more than {len(fixed)}, the number of control and byte pieces "
                f"and tags of a {kind} tokenizer; use a larger vocabulary"
            )
        first = {piece: i for i, piece in enumerate(fixed)}
        engine = engine_of(document_of(kind, first, [], normalizes=normalizes))
        text = (split_tag(line, tags)[1] for line in _training_text(lines))
        engine.train_from_iterator(text, trainer=trainer_of(kind, vocab_size, fixed))
        model = json.loads(engine.to_str())["model"]
        if (size := len(model["vocab"])) > vocab_size:
            raise UserError(
                f"data.vocab_size={vocab_size}: expected at least {size:,}, because the text has "
                f"{size - len(fixed):,} different characters; or set data.tokenizer=wordpiece, made of bytes"
            )
        merges = model.get("merges", [])
        return cls(json_of(document_of(kind, model["vocab"], merges, tags, normalizes=normalizes)))

    def split_tag(self, line: str) -> tuple[str, str]:
        """Return the tag that a line begins with, and the rest of the line; "" and the line if it begins with none."""
        return super().split_tag(line) if self.tags else ("", line)

    def with_tags(self, tags: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer with more tags, after its own. The ids of later pieces grow."""
        parts = parts_of(self._text)
        pieces = [*parts.vocabulary]
        end = len(fixed_pieces(parts.kind)) + len(parts.tags)
        pieces[end:end] = tags
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        return Tokenizer(json_of(parts._replace(vocabulary=vocabulary, tags=[*parts.tags, *tags]).document))

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line, without BOS and EOS. Raises UserError if it has a lone surrogate."""
        tag, text = self.split_tag(check_text(line))
        return self._with_tag(tag, self._engine.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """Return `encode(line)` for each line, faster."""
        texts = [check_text(line) for line in lines]
        if not self.tags:
            return [encoding.ids for encoding in self._engine.encode_batch_fast(texts, add_special_tokens=False)]
        parts = [self.split_tag(text) for text in texts]
        encodings = self._engine.encode_batch_fast([text for _, text in parts], add_special_tokens=False)
        return [self._with_tag(tag, encoding.ids) for (tag, _), encoding in zip(parts, encodings, strict=True)]

    def drop_merges(self, rows: Sequence[np.ndarray], *, p: float, keys: np.ndarray) -> list[np.ndarray]:
        """Return rows of ids under BPE-dropout: each step drops each merge with probability `p`.

        A row depends only on its ids, `p` and its key, in any process. p = 1 gives single characters. Raises UserError
        for word pieces.
        """
        if self.kind != "bpe":
            return super().drop_merges(rows, p=p, keys=keys)
        if not 0 <= p <= 1:
            raise UserError(f"data.bpe_dropout={p}: expected 0 to 1")
        return self._dropout.encode(rows, p, keys) if p else [*rows]

    def _with_tag(self, tag: str, ids: list[int]) -> list[int]:
        """Return the ids of a line from its tag, "" for none, and the ids of the rest."""
        return [self._ids[tag], *ids] if tag else ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of any ids. The text may hold any character, also LF.

        Control ids and tags are left out. Consecutive byte pieces that are not UTF-8 become U+FFFD.
        """
        return self._engine.decode(list(ids), skip_special_tokens=True)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id in printable form: ▁ for a space, <0x41> for a byte of a partial character."""
        pieces = [self.vocabulary[i] for i in ids]
        return pieces if self.kind == "bpe" else [p if p in self._special else _printable(p) for p in pieces]

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer of the target language: this one, which both languages share, but without tags."""
        return super().target if self.tags else self

    def to_json(self) -> str:
        """Return the text of `tokenizer.json`."""
        return self._text

    @classmethod
    def from_json(cls, text: str, where: str | os.PathLike[str] = "the text") -> TokenizerLike:
        """Return the tokenizer of a text that `to_json` returned.

        where: the origin of the text, for messages. Raises UserError for any other text.
        """
        try:
            return _read(text, FORMATS)
        except UserError as error:
            raise UserError(f"{os.fspath(where)}: expected a tokenizer of transduce, but {error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TokenizerLike:
        """Return the tokenizer of a file that `save` wrote. Raises UserError, with the path, for any other file."""
        where = os.fspath(path)
        try:
            status = os.stat(path)
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):  # a device or a pipe may never end
                raise UserError(f"{where}: expected a tokenizer.json, but it is not a file; give the path of a file")
            if status.st_size > MAX_FILE_BYTES:
                raise UserError(
                    f"{where}: expected a tokenizer of at most {MAX_FILE_BYTES:,} bytes, not {status.st_size:,} bytes"
                )
            return cls.from_json(Path(path).read_bytes().decode(), path)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{where}: expected a tokenizer.json, but it cannot be read: {error}") from error

    @cached_property
    def _dropout(self) -> BpeDropout:
        return BpeDropout(self._ids, self._merges, self._engine)


def _read(text: str, formats: Mapping[str, Callable[[str], TokenizerLike]]) -> TokenizerLike:
    """Return the tokenizer of a text that has one of some formats, or the format of the library."""
    return next((read for name, read in formats.items() if name in text[:100]), Tokenizer)(text)


def _read_symbols(text: str) -> SubwordsAndSymbols:
    source, names = symbols.parts(text)
    return SubwordsAndSymbols(_read(source, {words.FORMAT: Words.from_json}), names)


def _read_paths(text: str) -> PathsAndText:
    (of_text,) = fields_of(text, "text")
    if type(of_text) is not str:
        raise UserError("its text is of another form; use another copy")
    return PathsAndText(Tokenizer(of_text))


FORMATS: dict[str, Callable[[str], TokenizerLike]] = {
    symbols.FORMAT: _read_symbols,
    labels.FORMAT: TextAndLabels.from_json,
    paths.FORMAT: _read_paths,
    sentencepiece_pair.FORMAT: SentencePieces,
}  # a file names its format in its first 100 characters


def _printable(piece: str) -> str:
    """Return a word piece as characters, and as bytes where it holds a part of a character."""
    raw = bytes_of_letters(piece.removeprefix(SPACE))
    text = raw.decode(errors="surrogateescape").replace(" ", SPACE)
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if "\udc80" <= c <= "\udcff" else c for c in text)


def _training_text(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines. Raises UserError at the end if all lines were blank."""
    has_text = False
    for line in lines:
        has_text = has_text or not is_blank(line)
        yield check_text(line)
    if not has_text:
        raise UserError("train: expected at least 1 line that is not blank, to learn a tokenizer; give other text")
