"""A BPE tokenizer as a SentencePiece model that gives the same pieces.

SentencePiece joins the pair of neighbours whose text is the piece with the highest score, the first one of equals. BPE
joins the pair of the earliest merge. So the score of a piece is minus the number of the merge that completes it in BPE.
A piece that BPE never completes is left out.

SentencePiece does not cut a line into words before. No piece has two words, so the cuts matter in two places only:
within a word of more than MAX_WORD characters, and between a mark that follows no letter and the next letter.

Its normalisation replaces strings, from left to right. That is exact for the two characters that a tokenizer escapes,
and for white space and invisible characters, except NUL. It composes letters and marks as NFC does if the marks of a
letter are in the usual order, or are two that both compose with the letter.
"""

import re
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from itertools import permutations, product
from pathlib import Path

from tokenizers.normalizers import NFC

from transduce.data.sentencepiece_pair import processor
from transduce.data.subwords import ESCAPE, INVISIBLE, WHITE_SPACE, fixed_pieces, parts_of
from transduce.data.vocabulary import BOS, CONTROLS, EOS, PAD, SPACE, UNK, TokenizerLike
from transduce.errors import UserError
from transduce.interop.protobuf import field

# The fields of SentencePiece's ModelProto.
PIECES = 1
TRAINER = 2
NORMALIZER = 3
DENORMALIZER = 5
# The types of pieces.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
BYTE = 6
# The fields of the trainer, and their values.
MODEL_TYPE = 3
BYTE_FALLBACK = 35
BPE = 2  # value of MODEL_TYPE
IDS = {40: UNK, 41: BOS, 42: EOS, 43: PAD}  # field: value
# The fields of a normaliser.
ADD_DUMMY_PREFIX = 3
REMOVE_EXTRA_WHITESPACES = 4
ESCAPE_WHITESPACES = 5

ESCAPES = {ESCAPE: ESCAPE + "0", SPACE: ESCAPE + "1"}


def sentencepiece_model(tokenizer: TokenizerLike) -> bytes:
    """Return the SentencePiece model of a tokenizer without tags, of kind "bpe" or "sentencepiece".

    The second kind has one for each language. The result is the one of the source, which also decodes pieces that it
    does not have: their text is the piece. Raises UserError if the package sentencepiece is not installed.
    """
    if models := tokenizer.sentencepiece_models():
        return models[0]
    parts = parts_of(tokenizer.to_json())
    ranks = {(left, right): rank for rank, (left, right) in enumerate(parts.merges)}
    content = [field(PIECES, _piece(piece, *kind)) for piece, kind in _kinds(parts.vocabulary, ranks).items()]
    trainer = field(MODEL_TYPE, BPE) + field(BYTE_FALLBACK, True)
    content.append(field(TRAINER, trainer + b"".join(field(number, token) for number, token in IDS.items())))
    rules = {**ESCAPES, **(_plain_text() if parts.normalizes else {})}
    spaces = field(ADD_DUMMY_PREFIX, True) + field(ESCAPE_WHITESPACES, True)
    spaces += field(REMOVE_EXTRA_WHITESPACES, parts.normalizes)
    content.append(field(NORMALIZER, _character_map(rules) + spaces))
    no_spaces = b"".join(field(number, False) for number in range(ADD_DUMMY_PREFIX, ESCAPE_WHITESPACES + 1))
    unescape = {escape: character for character, escape in ESCAPES.items()}
    content.append(field(DENORMALIZER, _character_map(unescape) + no_spaces))
    return b"".join(content)


def has_other_bytes(source: bytes, target: bytes) -> bool:
    """Return True if the SentencePiece model `target` has pieces of bytes and is not `source`, which decodes."""
    model = processor(target)
    return source != target and any(map(model.is_byte, range(model.vocab_size())))


# ---- the pieces --------------------------------------------------------------------------------------------------


def _kinds(vocabulary: Mapping[str, int], ranks: Mapping[tuple[str, str], int]) -> dict[str, tuple[float, int]]:
    """Return the score and the type of each piece that SentencePiece can have: it takes no piece with NUL."""
    kinds = {piece: (0.0, CONTROL if piece in CONTROLS else BYTE) for piece in fixed_pieces("bpe")}
    kinds[CONTROLS[UNK]] = (0.0, UNKNOWN)
    for piece in vocabulary:
        if piece not in kinds and "\0" not in piece:
            rank = _last_merge(piece, ranks)
            if rank is not None:
                kinds[piece] = (-float(rank), NORMAL)
    return kinds


def _last_merge(piece: str, ranks: Mapping[tuple[str, str], int]) -> int | None:
    """Return the rank of the merge that completes a piece; -1 for a character, None if BPE does not complete it."""
    symbols = [*piece]
    rank = -1
    while len(symbols) > 1:
        pairs = [(ranks[pair], i) for i, pair in enumerate(zip(symbols, symbols[1:], strict=False)) if pair in ranks]
        if not pairs:
            return None
        rank, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    return rank


def _piece(piece: str, score: float, kind: int) -> bytes:
    return field(1, piece) + field(2, score) + field(3, kind)


# ---- the normalisation -------------------------------------------------------------------------------------------


def _character_map(rules: Mapping[str, str]) -> bytes:
    """Return the fields of a normaliser that has SentencePiece's form of some replacements."""
    try:
        import sentencepiece
    except ImportError as problem:
        raise UserError(
            f"the pieces: expected the package sentencepiece ({problem}); pip install 'transduce[export]'"
        ) from None
    sentencepiece.SetMinLogLevel(2)  # it reports each map
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.tsv"
        lines = (f"{_codes(old)}\t{_codes(new)}\n" for old, new in rules.items())
        path.write_text("".join(lines), encoding="utf-8")
        model = sentencepiece.SentencePieceNormalizer(rule_tsv=str(path)).serialized_model_proto()
    return model[_length_of_head(model) :]


def _length_of_head(model: bytes) -> int:
    """Return the bytes before the content of the only field of a model: its number, and its length in groups."""
    return 2 + next(i for i, group in enumerate(model[1:]) if group < 128)


def _codes(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


def _plain_text() -> dict[str, str]:
    """Return the replacements that a tokenizer with `normalizes` makes. Sequences of spaces are SentencePiece's own."""
    rules = {old: new for text in _sequences() for old, new in _rules_of(text)}
    for character in map(chr, range(1, 0x10000)):
        if re.fullmatch(INVISIBLE, character):
            rules[character] = ""
        elif character != " " and re.fullmatch(WHITE_SPACE, character):
            rules[character] = " "
    return rules


def _sequences() -> Iterator[str]:
    """Yield the texts that NFC may change: characters, and letters with one or two of their marks."""
    marks = dict[str, set[str]]()  # by letter
    for character in map(chr, [*range(0xAC00), *range(0xD7A4, 0x30000)]):
        decomposition = unicodedata.decomposition(character)
        if decomposition and not decomposition.startswith("<"):  # a canonical one
            yield character
            letter, *rest = unicodedata.normalize("NFD", character)
            marks.setdefault(letter, set()).update(rest)
            yield from (letter + "".join(order) for order in permutations(rest))
    for letter, of_letter in marks.items():
        for count in (1, 2):
            yield from (letter + "".join(order) for order in product(sorted(of_letter), repeat=count))
    for syllable in map(chr, range(0xAC00, 0xD7A4)):  # Korean: two or three letters
        yield unicodedata.normalize("NFD", syllable)


def _rules_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the replacements of a text, and of the same text whose first characters are composed.

    A rule that a shorter one makes needless is left out.
    """
    for composed in range(len(text)):
        old = _nfc(text[:composed]) + text[composed:]
        if len(old) == 1 and _nfc(old) != old or len(old) > 1 and _nfc(old) != _nfc(old[:-1]) + old[-1]:
            yield old, _nfc(old)


_nfc = NFC().normalize_str  # of the library that encodes: Python may have another edition of Unicode
