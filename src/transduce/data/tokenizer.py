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
vocabulary and the merges is fixed by `_document`, and a file that differs there is refused.
"""

import hashlib
import itertools
import json
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine
from tokenizers import pre_tokenizers, trainers

from transduce.errors import UserError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
CONTROLS = ("<pad>", "<s>", "</s>", "<unk>")
KINDS = ("bpe", "wordpiece")
MAX_WORD = 64  # characters
MAX_FILE_BYTES = 64 << 20

SPACE = "▁"  # bpe: stands for a space; wordpiece: marks a piece that does not begin a word
ESCAPE = "\ue000"  # bpe: before 0 it stands for itself, before 1 for a ▁ that was in the text


class Tokenizer:
    """A vocabulary, and the rules by which text becomes ids and ids become text."""

    def __init__(self, text: str) -> None:
        """`text` is what `to_json` gives; UserError for anything else."""
        model = _model(text)
        self.kind: str = "bpe" if model["type"] == "BPE" else "wordpiece"
        self.vocab_size: int = len(model["vocab"])
        self._text = text
        self._vocabulary: dict[str, int] = model["vocab"]
        self._merges: list[list[str]] = model.get("merges", [])
        self._pieces = list(self._vocabulary)
        self._engine = _engine(_document(self.kind, self._vocabulary, self._merges))

    @classmethod
    def learn(cls, lines: Iterable[str], *, kind: str = "bpe", vocab_size: int) -> "Tokenizer":
        """Learn at most `vocab_size` pieces; a small text gives fewer.

        The lines are read once and not kept, and the same lines give the same tokenizer. UserError if they hold no
        text, or if `vocab_size` has no room for the pieces without which text would be lost.
        """
        if kind not in KINDS:
            raise UserError(f"data.tokenizer={kind!r}: expected one of {', '.join(KINDS)}.")
        fixed = _fixed_pieces(kind)
        if vocab_size <= len(fixed):
            raise UserError(
                f"data.vocab_size={vocab_size}: a {kind} tokenizer needs more than {len(fixed)}, "
                f"for so many control and byte pieces come first."
            )
        engine = _engine(_document(kind, {piece: i for i, piece in enumerate(fixed)}, []))
        engine.train_from_iterator(_training_text(lines), trainer=_trainer(kind, vocab_size, fixed))
        model = json.loads(engine.to_str())["model"]
        if (needed := len(model["vocab"])) > vocab_size:
            raise UserError(
                f"data.vocab_size={vocab_size}: the {needed - len(fixed):,} different characters of the text need "
                f"{needed:,} and more. Ask for that, or set data.tokenizer=wordpiece, which starts from bytes."
            )
        document = _document(kind, model["vocab"], model.get("merges", []))
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
        return self._dropout.encode(_checked(line), _Draws(p, key)) if p > 0 else self.encode(line)

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
    def from_json(cls, text: str, where: str | os.PathLike[str] = "the text") -> "Tokenizer":
        """The tokenizer that `to_json` described; UserError with `where` and the reason for anything else."""
        from transduce.data import sentencepiece_pair as sentencepieces

        try:
            return sentencepieces.SentencePieces(text) if sentencepieces.is_pair(text) else cls(text)
        except UserError as error:
            raise UserError(f"{os.fspath(where)} is not a tokenizer of transduce: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json`."""
        Path(path).write_bytes(self._text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
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
    def _dropout(self) -> "_Dropout":
        return _Dropout(self._vocabulary, self._merges, self._engine)


def _readable(piece: str) -> str:
    """A word piece in characters, and in bytes where it holds a part of one."""
    if piece in CONTROLS:
        return piece
    unprintable = [*range(33), *range(127, 161), 173]  # the bytes whose letters are U+0100, U+0101 and so on
    codes = [ord(letter) for letter in piece.removeprefix(SPACE)]
    raw = bytes(code if code < 256 else unprintable[code - 256] for code in codes)
    text = raw.decode(errors="surrogateescape").replace(" ", SPACE)
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if "\udc80" <= c <= "\udcff" else c for c in text)


# --- BPE-dropout (Provilkov et al. 2020), in Python because no library's can be seeded -------------------------------

MEMO_LENGTH = 32  # characters
MEMO_ENTRIES = 200_000  # about 80 MB
NEVER = 1 << 60

Segmentation = tuple[tuple[int, ...], int]  # ids, and the number of draws that were taken to find them


class _Draws:
    """Independent draws, True with probability p; `gap` is how many are False before the next that is True."""

    def __init__(self, p: float, key: str) -> None:
        self._random = random.Random(key).random
        self._log_false = math.log1p(-p) if p < 1 else -math.inf
        self.gap = self.next_gap()

    def next_gap(self) -> int:
        return int(min(math.log(1.0 - self._random()) / self._log_false, NEVER))

    def __call__(self) -> bool:
        if self.gap > 0:
            self.gap -= 1
            return False
        self.gap = self.next_gap()
        return True


class _Dropout:
    """The byte-pair encoder, with merges that may be dropped.

    The pieces of a chunk (a space and what follows it up to the next) depend only on which of its draws drop a
    merge. Chunks come again and again, mostly with no drop or one, so their segmentations are kept by (chunk, drops).
    """

    def __init__(self, vocabulary: dict[str, int], merges: list[list[str]], engine: Engine) -> None:
        assert engine.pre_tokenizer is not None
        self._split = engine.pre_tokenizer.pre_tokenize_str
        self._vocabulary = vocabulary
        self._ranks = {(vocabulary[a], vocabulary[b]): rank for rank, (a, b) in enumerate(merges)}
        self._merged = [vocabulary[a + b] for a, b in merges]
        self._memo: dict[tuple[str, tuple[int, ...]], Segmentation] = {}

    def encode(self, line: str, draws: _Draws) -> list[int]:
        ids: list[int] = []
        for chunk in _chunks(line):
            ids += self._recall(chunk, draws) if len(chunk) <= MEMO_LENGTH else self._segment(chunk, draws)
        return ids

    def _recall(self, chunk: str, draws: _Draws) -> tuple[int, ...]:
        """`_segment` by way of the memory. Takes the same draws."""
        drops: tuple[int, ...] = ()  # which of this chunk's draws are True, as far as they have been taken
        while True:
            ids, taken = self._memo.get((chunk, drops)) or self._remember(chunk, drops)
            if draws.gap >= taken:
                draws.gap -= taken
                return ids
            drops += (draws.gap,)
            draws.gap += 1 + draws.next_gap()

    def _remember(self, chunk: str, drops: tuple[int, ...]) -> Segmentation:
        draws = itertools.count()
        ids = tuple(self._segment(chunk, map(drops.__contains__, draws).__next__))
        if len(self._memo) >= MEMO_ENTRIES:
            self._memo.clear()
        self._memo[chunk, drops] = found = ids, next(draws)
        return found

    def _segment(self, chunk: str, dropped: Callable[[], bool]) -> list[int]:
        return [token for word, _ in self._split(chunk) for token in self._merge(self._symbols(word), dropped)]

    def _symbols(self, word: str) -> list[int]:
        symbols: list[int] = []
        for character in word:
            known = self._vocabulary.get(character)
            symbols += [len(CONTROLS) + byte for byte in character.encode()] if known is None else [known]
        return symbols

    def _merge(self, symbols: list[int], dropped: Callable[[], bool]) -> list[int]:
        """At each step merge the pair of lowest rank, leftmost first, that is not dropped; stop when none is left."""
        rank_of = self._ranks.get
        ranks = [rank_of(pair, NEVER) for pair in itertools.pairwise(symbols)]
        passed: list[tuple[int, int]] = []
        while ranks and (lowest := min(ranks)) < NEVER:
            i = ranks.index(lowest)
            if dropped():
                passed.append((i, lowest))
                ranks[i] = NEVER
                continue
            while passed:  # what was dropped at this step may be merged at the next
                j, rank = passed.pop()
                ranks[j] = rank
            symbols[i : i + 2] = [self._merged[lowest]]
            del ranks[i]
            if i > 0:
                ranks[i - 1] = rank_of((symbols[i - 1], symbols[i]), NEVER)
            if i < len(ranks):
                ranks[i] = rank_of((symbols[i], symbols[i + 1]), NEVER)
        return symbols


def _chunks(line: str) -> list[str]:
    """A line as the engine's normaliser writes it, cut before each space."""
    escaped = line.replace(ESCAPE, ESCAPE + "0").replace(SPACE, ESCAPE + "1")
    return [SPACE + chunk for chunk in escaped.split(" ")] if line else []


# --- learning --------------------------------------------------------------------------------------------------------


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


def _fixed_pieces(kind: str) -> list[str]:
    """The pieces that every tokenizer of a kind begins with, in the order of their ids."""
    if kind == "bpe":
        return [*CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*CONTROLS, *letters, *(SPACE + letter for letter in letters)]


def _trainer(kind: str, vocab_size: int, fixed: list[Any]) -> trainers.Trainer:
    # All fixed pieces, not the control pieces alone, are given as special tokens: this is what puts them first, and
    # in this order. Letters that the trainer finds within words by itself are numbered differently in each run.
    if kind == "bpe":
        return trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=fixed)
    return trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=fixed,
        continuing_subword_prefix=SPACE,
    )


# --- the file --------------------------------------------------------------------------------------------------------

UNBEGIN = {"type": "Strip", "content": " ", "start": 1, "stop": 0}  # the space that the normaliser put before a line


def _document(kind: str, vocabulary: dict[str, int], merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    """All of `tokenizer.json`, in the format of the Hugging Face library."""
    ordered = dict(sorted(vocabulary.items(), key=lambda piece: piece[1]))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    sentence = {"Sequence": {"id": "A", "type_id": 0}}
    end = {"SpecialToken": {"id": CONTROLS[EOS], "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": piece, **flags} for i, piece in enumerate(CONTROLS)],
        # For other programs, which expect the EOS of a source sentence; `encode` leaves it out.
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [sentence, end],
            "pair": [sentence, end, {"Sequence": {"id": "B", "type_id": 1}}, end],
            "special_tokens": {CONTROLS[EOS]: {"id": CONTROLS[EOS], "ids": [EOS], "tokens": [CONTROLS[EOS]]}},
        },
        **(_bpe_rules(ordered, merges) if kind == "bpe" else _wordpiece_rules(ordered)),
    }


def _bpe_rules(vocabulary: dict[str, int], merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    escape = [_replace(ESCAPE, ESCAPE + "0"), _replace(SPACE, ESCAPE + "1")]
    unescape = [_replace(ESCAPE + "1", SPACE), _replace(ESCAPE + "0", ESCAPE)]
    begin = {"type": "Prepend", "prepend": SPACE}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*escape, begin, _replace(" ", SPACE)]},
        "pre_tokenizer": _cut(SPACE),
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, _replace(SPACE, " "), *unescape, UNBEGIN],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": CONTROLS[UNK],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _wordpiece_rules(vocabulary: dict[str, int]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": {"type": "Prepend", "prepend": " "},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [_cut(" "), byte_level]},
        "decoder": {"type": "Sequence", "decoders": [_replace(SPACE, ""), byte_level, UNBEGIN]},
        "model": {
            "type": "WordPiece",
            "unk_token": CONTROLS[UNK],
            "continuing_subword_prefix": SPACE,
            "max_input_chars_per_word": 4 * (MAX_WORD + 1),  # byte letters: a longer word would be <unk>
            "vocab": vocabulary,
        },
    }


def _cut(space: str) -> dict[str, Any]:
    """Cut into words: letters and their marks, digits, or others, after at most one space."""
    letters = rf"\p{{L}}[\p{{L}}\p{{M}}]{{0,{MAX_WORD - 1}}}"
    digits = rf"\p{{N}}{{1,{MAX_WORD}}}"
    others = rf"[^{space}\p{{L}}\p{{N}}]{{1,{MAX_WORD}}}"
    pattern = f"{space}?{letters}|{space}?{digits}|{space}?{others}|{space}"
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _model(text: str) -> dict[str, Any]:
    """The model section of a `tokenizer.json`, if nothing in the file is foreign."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}.") from error
    if (fault := _fault(document)) is not None:
        raise UserError(f"{fault}; expected the tokenizer.json of a model or run of transduce.")
    return document["model"]


def _fault(document: Any) -> str | None:
    """What sets a document apart from all of ours."""
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict) or model.get("type") not in ("BPE", "WordPiece"):
        return "it has no model of type BPE or WordPiece"
    kind = "bpe" if model["type"] == "BPE" else "wordpiece"
    vocabulary, merges = model.get("vocab"), model.get("merges", [])
    if not isinstance(vocabulary, dict) or list(vocabulary.values()) != list(range(len(vocabulary))):
        return "its ids do not count up from 0"
    fixed = _fixed_pieces(kind)
    if list(vocabulary)[: len(fixed)] != fixed:
        return "it does not begin with the control and byte pieces"
    if not isinstance(merges, list) or not all(_is_merge(merge, vocabulary) for merge in merges):
        return "its merges do not lead from pieces to pieces"
    ours = _document(kind, vocabulary, merges)
    foreign = [key for key in {**ours, **document} if key not in document or document[key] != ours.get(key)]
    return f"its {foreign[0]} is foreign" if foreign else None


def _is_merge(merge: Any, vocabulary: dict[str, int]) -> bool:
    if not isinstance(merge, list) or len(merge) != 2 or not all(isinstance(part, str) for part in merge):
        return False
    return all(piece in vocabulary for piece in (*merge, "".join(merge)))


def _engine(document: dict[str, Any]) -> Engine:
    try:
        engine = Engine.from_str(json.dumps(document))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic inside the library is no Exception
        raise UserError(f"the tokenizers library refuses it: {error}.") from error
    engine.encode_special_tokens = True  # never saved; without it the text </s> becomes the control id
    return engine
