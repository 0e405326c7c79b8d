"""Subword tokenizers: the rules of byte-pair encoding and of word pieces, as the Hugging Face library executes them."""

import json
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import pre_tokenizers, trainers

from transduce.config.validation import is_tag
from transduce.data.engine import library_errors
from transduce.data.vocabulary import CONTROLS, EOS, MIDDLE_MARKS, SPACE, UNK
from transduce.errors import UserError

T = TypeVar("T")

KINDS = ("bpe", "wordpiece")
MAX_WORD = 64  # characters
ESCAPE = "\ue000"  # bpe: before 0 it means itself, before 1 a ▁ of the text
USE_ANOTHER = "use the tokenizer.json of a model or run of transduce"  # the remedy for a wrong file


def fixed_pieces(kind: str) -> list[str]:
    """Return the first pieces of every tokenizer of a kind, in the order of their ids."""
    if kind == "bpe":
        return [*CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*CONTROLS, *letters, *(SPACE + letter for letter in letters)]


def trainer_of(kind: str, vocab_size: int, fixed: Sequence[str]) -> trainers.Trainer:
    """Return the library's trainer of a kind. fixed: the pieces that come first."""
    # The trainer puts special tokens first, in this order, so all fixed pieces are special tokens, not only the control
    # pieces. It numbers other letters within words in a different order in each run.
    if kind == "bpe":
        return trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=[*fixed])
    return trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[*fixed],
        continuing_subword_prefix=SPACE,
    )


def bytes_of_letters(letters: str) -> bytes:
    """Return the bytes of byte letters, of which word pieces consist."""
    codes = [ord(letter) for letter in letters]
    return bytes(code if code < 256 else _UNPRINTABLE[code - 256] for code in codes)


_UNPRINTABLE = [*range(33), *range(127, 161), 173]  # the bytes whose letters are U+0100, U+0101 and so on


# --- the file --------------------------------------------------------------------------------------------------------

# What looks the same becomes the same: composed characters, one space for any white space, nothing invisible.
INVISIBLE = "[\0-\x08\x0e-\x1b\x7f\xad\u200b\u200e\u200f\u2060\ufeff]"
WHITE_SPACE = "[\\s\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
REMOVE_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}  # the space that the normaliser added


def document_of(
    kind: str,
    vocabulary: dict[str, int],
    merges: Sequence[Sequence[str]],
    tags: Sequence[str] = (),
    *,
    normalizes: bool = False,
) -> dict[str, object]:
    """Return all of `tokenizer.json`, in the format of the Hugging Face library."""
    pieces = dict(sorted(vocabulary.items(), key=lambda piece: piece[1]))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": piece, **flags} for i, piece in enumerate(CONTROLS)]
    added += [{"id": vocabulary[tag], "content": tag, **flags, "rstrip": True} for tag in tags]
    sentence = {"Sequence": {"id": "A", "type_id": 0}}
    end = {"SpecialToken": {"id": CONTROLS[EOS], "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        # Other programs expect EOS after a source sentence; `Tokenizer.encode` leaves it out.
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [sentence, end],
            "pair": [sentence, end, {"Sequence": {"id": "B", "type_id": 1}}, end],
            "special_tokens": {CONTROLS[EOS]: {"id": CONTROLS[EOS], "ids": [EOS], "tokens": [CONTROLS[EOS]]}},
        },
        "normalizer": normalizer_of(kind, normalizes=normalizes),
        **(_bpe_rules(pieces, merges) if kind == "bpe" else _wordpiece_rules(pieces)),
    }


def normalizer_of(kind: str, *, normalizes: bool) -> dict[str, object]:
    """Return what happens to a line before it is cut into words.

    normalizes: remove the differences that nobody sees (`data.normalization`).
    """
    rules: list[dict[str, object]] = [_replace(ESCAPE, ESCAPE + "0"), _replace(SPACE, ESCAPE + "1")]
    rules += [{"type": "Prepend", "prepend": SPACE}, _replace(" ", SPACE)]
    if kind == "wordpiece":
        rules = [dict[str, object](type="Prepend", prepend=" ")]
    if normalizes:
        ends = dict[str, object](type="Strip", strip_left=True, strip_right=True)
        rules = [{"type": "NFC"}, _replace_all(INVISIBLE, ""), _replace_all(WHITE_SPACE, " "), ends, *rules]
    return {"type": "Sequence", "normalizers": rules} if len(rules) > 1 else rules[0]


def _bpe_rules(vocabulary: dict[str, int], merges: Sequence[Sequence[str]]) -> dict[str, object]:
    unescape = [_replace(ESCAPE + "1", SPACE), _replace(ESCAPE + "0", ESCAPE)]
    return {
        "pre_tokenizer": _cut(SPACE),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                _replace(SPACE, " "),
                *unescape,
                REMOVE_SPACE,
            ],
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


def _wordpiece_rules(vocabulary: dict[str, int]) -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [_cut(" "), byte_level]},
        "decoder": {"type": "Sequence", "decoders": [_replace(SPACE, ""), byte_level, REMOVE_SPACE]},
        "model": {
            "type": "WordPiece",
            "unk_token": CONTROLS[UNK],
            "continuing_subword_prefix": SPACE,
            "max_input_chars_per_word": 4 * (MAX_WORD + 1),  # byte letters: a longer word would be <unk>
            "vocab": vocabulary,
        },
    }


def _cut(space: str) -> dict[str, object]:
    """Return the rule that cuts a line into words: letters and marks, digits, or others, after at most one space."""
    letters = rf"\p{{L}}[\p{{L}}\p{{M}}]{{0,{MAX_WORD - 1}}}"
    digits = rf"\p{{N}}{{1,{MAX_WORD}}}"
    symbols = rf"[^{space}\p{{L}}\p{{N}}]{{1,{MAX_WORD}}}"
    pattern = f"{space}?{letters}|{space}?{digits}|{space}?{symbols}|{space}"
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _replace(old: str, new: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _replace_all(pattern: str, new: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": new}


class Parts(NamedTuple):
    """The parts of a `tokenizer.json` that are not fixed."""

    kind: str
    vocabulary: dict[str, int]
    merges: list[list[str]]
    tags: list[str]
    normalizes: bool

    @property
    def document(self) -> dict[str, object]:
        """All of the file."""
        kind, vocabulary, merges, tags, normalizes = self
        return document_of(kind, vocabulary, merges, tags, normalizes=normalizes)


class _Model(msgspec.Struct):
    type: Literal["BPE", "WordPiece"]
    vocab: object = None
    merges: object = ()


class _AddedToken(msgspec.Struct):
    content: str


def parts_of(text: str) -> Parts:
    """Return the parts of a `tokenizer.json`. Raises UserError if transduce did not write the text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"it is not JSON ({error}); {USE_ANOTHER}") from error
    fields = _convert(document, dict[str, object], {})
    model = _convert(fields.get("model"), _Model, None)
    if model is None:
        raise UserError(f"it has no model of type BPE or WordPiece; {USE_ANOTHER}")
    added = _convert(fields.get("added_tokens"), list[_AddedToken], [])
    kind = "bpe" if model.type == "BPE" else "wordpiece"
    parts = Parts(
        kind=kind,
        vocabulary=_convert(model.vocab, dict[str, int], {}),
        merges=_convert(model.merges, list[list[str]], [[]]),
        tags=[token.content for token in added[len(CONTROLS) :]],
        normalizes=fields.get("normalizer") == normalizer_of(kind, normalizes=True),
    )
    if (problem := _problem(fields, parts)) is not None:
        raise UserError(f"{problem}; {USE_ANOTHER}")
    return parts


def _convert(value: object, kind: type[T], default: T) -> T:
    """Return a value as one of a type; the default for a value of another type, or with half of a character."""
    try:
        return msgspec.convert(value, kind)
    except ValueError:
        return default


def _problem(document: dict[str, object], parts: Parts) -> str | None:
    """Return the first difference from every document that transduce writes, or None."""
    kind, vocabulary, merges, tags, _ = parts
    if not vocabulary or list(vocabulary.values()) != list(range(len(vocabulary))):
        return "its ids do not count up from 0"
    fixed = fixed_pieces(kind)
    if list(vocabulary)[: len(fixed)] != fixed:
        return "it does not begin with the control and byte pieces"
    if list(vocabulary)[len(fixed) :][: len(tags)] != tags or not all(
        is_tag(tag) or tag in MIDDLE_MARKS for tag in tags
    ):
        return "its added tokens are neither control pieces nor tags"
    if not all(len(merge) == 2 and {*merge, "".join(merge)} <= vocabulary.keys() for merge in merges):
        return "its merges do not join two pieces to a third one"
    if len({tuple(merge) for merge in merges}) < len(merges):
        return "its merges repeat"
    expected = parts.document
    foreign = [key for key in {**expected, **document} if key not in document or document[key] != expected.get(key)]
    return f"its {foreign[0]} was not written by transduce" if foreign else None


def engine_of(document: dict[str, object]) -> LibraryTokenizer:
    """Return the library's tokenizer of a document. Raises UserError if the library refuses it."""
    with library_errors("the package tokenizers refuses it", USE_ANOTHER):
        engine = LibraryTokenizer.from_str(json.dumps(document))
    engine.encode_special_tokens = True  # not saved; without it the text </s> becomes the control id
    return engine
