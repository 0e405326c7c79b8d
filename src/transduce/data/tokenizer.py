"""Text to token ids and back: pieces of words, learned from the training text of both languages together.

Two kinds, after section 5.1 of the paper: byte-pair encoding (its English-German) and word pieces (its
English-French). Both give back exactly the text that they were given, whatever it holds, and neither ever makes a
control id out of text:

    ids 0 to 3    <pad> <s> </s> <unk>, the control pieces; `encode` never yields them
    then bytes    bpe: <0x00> to <0xFF>, for characters that have no piece of their own
                  wordpiece: the 256 byte letters, first as the beginning of a word, then within one (with ▁)
    then words    bpe: the characters of the training text, then what was merged from them
                  wordpiece: what was merged from the byte letters

Before pieces are looked for, a line is cut into words: letters, digits or other characters, with the space before
them. Letters and punctuation never share a piece; so none can be learned that spells </s> or <0x41>, and "dog." is
the word "dog" and a full stop. A word has at most MAX_WORD characters, for the time it takes grows faster than its
length and there are words of a megabyte; what is longer goes on as a further word without a space.

On disk a tokenizer is a `tokenizer.json` that the Hugging Face library reads too. Everything in it but the
vocabulary and the merges is fixed by `document_of`, and a file that differs there is refused.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from transduce.data.bpe_dropout import BpeDropout, Draws
from transduce.data.sentencepiece_pair import SentencePieces, is_pair
from transduce.data.subwords import KINDS, document_of, engine_of, fixed_pieces, model_of, trainer_of
from transduce.data.vocabulary import CONTROLS, SPACE, TokenizerLike
from transduce.errors import UserError

MAX_FILE_BYTES = 64 << 20


class Tokenizer:
    """A vocabulary, and the rules by which text becomes ids and ids become text."""

    def __init__(self, text: str) -> None:
        """`text` is what `to_json` gives; UserError for anything else."""
        model = model_of(text)
        self.kind: str = "bpe" if model["type"] == "BPE" else "wordpiece"
        self.vocab_size: int = len(model["vocab"])
        self._text = text
        self._vocabulary: dict[str, int] = model["vocab"]
        self._merges: list[list[str]] = model.get("merges", [])
        self._pieces = list(self._vocabulary)
        self._engine = engine_of(document_of(self.kind, self._vocabulary, self._merges))

    @classmethod
    def learn(cls, lines: Iterable[str], *, kind: str = "bpe", vocab_size: int) -> "Tokenizer":
        """Learn at most `vocab_size` pieces; a small text gives fewer.

        The lines are read once and not kept, and the same lines give the same tokenizer. UserError if they hold no
        text, or if `vocab_size` has no room for the pieces without which text would be lost.
        """
        if kind not in KINDS:
            raise UserError(f"data.tokenizer={kind!r}: expected one of {', '.join(KINDS)}.")
        fixed = fixed_pieces(kind)
        if vocab_size <= len(fixed):
            raise UserError(
                f"data.vocab_size={vocab_size}: a {kind} tokenizer needs more than {len(fixed)}, "
                f"for so many control and byte pieces come first."
            )
        engine = engine_of(document_of(kind, {piece: i for i, piece in enumerate(fixed)}, []))
        engine.train_from_iterator(_training_text(lines), trainer=trainer_of(kind, vocab_size, fixed))
        model = json.loads(engine.to_str())["model"]
        if (needed := len(model["vocab"])) > vocab_size:
            raise UserError(
                f"data.vocab_size={vocab_size}: the {needed - len(fixed):,} different characters of the text need "
                f"{needed:,} and more. Ask for that, or set data.tokenizer=wordpiece, which starts from bytes."
            )
        document = document_of(kind, model["vocab"], model.get("merges", []))
        return cls(json.dumps(document, ensure_ascii=False, indent=1) + "\n")

    def encode(self, line: str) -> list[int]:
        """The ids of a line, without BOS and EOS; UserError if it holds half a character (a lone surrogate)."""
        return self._engine.encode(_checked(line), add_special_tokens=False).ids

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """`encode` of each line, faster."""
        checked = [_checked(line) for line in lines]
        return [encoding.ids for encoding in self._engine.encode_batch_fast(checked, add_special_tokens=False)]

    def encode_dropout(self, line: str, *, p: float, key: str) -> list[int]:
        """The ids of a line under BPE-dropout: at each step each merge is left out with probability `p`.

        A function of (line, p, key) alone, in any process; p = 0 gives `encode(line)`, p = 1 single characters.
        """
        if self.kind != "bpe":
            raise UserError(f"BPE-dropout needs a bpe tokenizer, and this one is {self.kind}; set data.bpe_dropout=0.")
        if not 0 <= p <= 1:
            raise UserError(f"the probability of BPE-dropout is {p}; expected 0 to 1.")
        return self._dropout.encode(_checked(line), Draws(p, key)) if p > 0 else self.encode(line)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of any ids, in which any character may come: LF, too. Control ids are left out, and a run of byte
        pieces that is not UTF-8 becomes U+FFFD."""
        return self._engine.decode(list(ids), skip_special_tokens=True)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id for people to read: ▁ for a space, <0x41> for a byte that is not a whole character."""
        pieces = [self._pieces[token] for token in ids]
        return pieces if self.kind == "bpe" else [_readable(piece) for piece in pieces]

    @property
    def target(self) -> "Tokenizer":
        """What text of the target language is encoded with: the same, but for an imported model."""
        return self

    @property
    def vocabulary(self) -> list[str]:
        """The pieces by id, as they are on disk; no two are alike."""
        return self._pieces

    @property
    def sha256(self) -> str:
        """The SHA-256 of the saved file, in hexadecimal."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    def to_json(self) -> str:
        """The text of `tokenizer.json`."""
        return self._text

    @classmethod
    def from_json(cls, text: str, where: str | os.PathLike[str] = "the text") -> TokenizerLike:
        """The tokenizer that `to_json` described; UserError with `where` and the reason for anything else."""
        try:
            return SentencePieces(text) if is_pair(text) else cls(text)
        except UserError as error:
            raise UserError(f"{os.fspath(where)} is not a tokenizer of transduce: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json`."""
        Path(path).write_bytes(self._text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TokenizerLike:
        """Read what `save` wrote; UserError with path and reason for any other file."""
        try:
            if (size := os.stat(path).st_size) > MAX_FILE_BYTES:
                raise UserError(f"{os.fspath(path)} has {size:,} bytes; a tokenizer has at most {MAX_FILE_BYTES:,}.")
            return cls.from_json(Path(path).read_bytes().decode(), path)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{os.fspath(path)} cannot be read as a tokenizer.json: {error}.") from error

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[str, ...]]:
        """Pickled as text, because a pickled engine forgets that text never holds control pieces."""
        return type(self), (self._text,)

    @cached_property
    def _dropout(self) -> BpeDropout:
        return BpeDropout(self._vocabulary, self._merges, self._engine)


def _readable(piece: str) -> str:
    """A word piece in characters, and in bytes where it holds a part of one."""
    if piece in CONTROLS:
        return piece
    unprintable = [*range(33), *range(127, 161), 173]  # the bytes whose letters are U+0100, U+0101 and so on
    codes = [ord(letter) for letter in piece.removeprefix(SPACE)]
    raw = bytes(code if code < 256 else unprintable[code - 256] for code in codes)
    text = raw.decode(errors="surrogateescape").replace(" ", SPACE)
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if "\udc80" <= c <= "\udcff" else c for c in text)


def _checked(line: str) -> str:
    """The line itself, if it can be written as UTF-8."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"character {error.start + 1} of a line is {line[error.start]!r}, one half of a surrogate pair, which no "
            f"text holds; decode the text from its right encoding, or leave the character out."
        ) from error
    return line


def _training_text(lines: Iterable[str]) -> Iterator[str]:
    empty = True
    for line in lines:
        empty = empty and not line.strip()
        yield _checked(line)
    if empty:
        raise UserError("there is no text to learn a tokenizer from; give at least one line that is not blank.")
