"""The tokenizer: encoding is lossless, no text makes a control id, and learning is deterministic."""

import json
import random
import re
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tokenizer_texts import (
    FIXED,
    FRAGMENTS,
    HOSTILE,
    VOCAB_SIZE,
    assert_lossless,
    encode_dropout,
    in_a_new_process,
    learn,
    plain_text,
    sentences,
)

from transduce.data.subwords import KINDS, MAX_WORD
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import BOS, CONTROLS, EOS, PAD, UNK
from transduce.errors import UserError


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return learn(request.param)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return learn("bpe")


# --- losslessness ---------------------------------------------------------------------------------------------------


def test_hostile_lines_are_lossless(tokenizer: Tokenizer) -> None:
    assert_lossless(tokenizer, HOSTILE)


def test_thousands_of_random_lines_are_lossless(tokenizer: Tokenizer) -> None:
    chance = random.Random(2)
    alphabets = [FRAGMENTS, "ab \u2581\ue00001<>/sx", [chr(code) for code in range(0x3000)]]
    assert_lossless(
        tokenizer, ["".join(chance.choices(chance.choice(alphabets), k=chance.randint(0, 12))) for _ in range(6000)]
    )


@settings(deadline=None, derandomize=True, max_examples=300)
@given(line=st.text() | st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_any_line_is_lossless(tokenizer: Tokenizer, line: str) -> None:
    assert_lossless(tokenizer, [line])


def test_a_line_of_a_megabyte_is_lossless(tokenizer: Tokenizer) -> None:
    assert_lossless(tokenizer, ["x" * 300_000 + " " + "東" * 20_000 + "." * 300_000, "ab " * 100_000])


def test_one_line_is_a_batch_of_one(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_batch(HOSTILE) == [tokenizer.encode(line) for line in HOSTILE]
    assert tokenizer.encode_batch([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_control_pieces_in_the_training_text_stay_text(kind: str) -> None:
    lines = [f"{piece}x{piece}y a{piece} <0x41><0x42>b▁c" for piece in CONTROLS] * 50
    tokenizer = Tokenizer.learn(lines, kind=kind, vocab_size=VOCAB_SIZE[kind])
    assert_lossless(tokenizer, lines[:4] + HOSTILE)
    assert len(set(tokenizer.pieces(range(4, tokenizer.vocab_size))) & set(CONTROLS)) == 0


@pytest.mark.parametrize("line", ["\ud800", "a \udfff", "\udc80"])
def test_half_a_character_is_refused(tokenizer: Tokenizer, bpe: Tokenizer, line: str) -> None:
    for encode in (tokenizer.encode, lambda line: tokenizer.encode_batch(["a", line])):
        with pytest.raises(UserError, match=f"character {len(line)} of a line: .*surrogate"):
            encode(line)
    with pytest.raises(UserError, match="surrogate"):
        Tokenizer.learn(["a", line], vocab_size=600)


# --- pieces and text -------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=300)
@given(data=st.data())
def test_any_ids_give_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 300) | st.integers(0, tokenizer.vocab_size - 1)))
    line = tokenizer.decode(ids)
    line.encode()  # no surrogates
    assert line == tokenizer.decode([token for token in ids if token > UNK])
    assert len(tokenizer.pieces(ids)) == len(ids)


def test_bytes_that_are_not_utf8_become_replacement_characters(tokenizer: Tokenizer) -> None:
    byte = {piece: token for token, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
    assert tokenizer.decode([byte["<0xFF>"]]) == "\ufffd"
    assert tokenizer.decode([byte["<0xE6>"], byte["<0x9D>"]]).strip("\ufffd") == ""
    assert tokenizer.decode([*tokenizer.encode("dog"), byte["<0xC3>"]]) == "dog\ufffd"


def test_control_ids_are_left_out_of_text(tokenizer: Tokenizer) -> None:
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert tokenizer.decode([BOS, *tokenizer.encode(" two dogs"), UNK, EOS, PAD, PAD]) == " two dogs"
    assert tokenizer.decode([PAD, BOS, EOS, UNK]) == tokenizer.decode([]) == ""
    assert tokenizer.pieces([PAD, BOS, EOS, UNK]) == list(CONTROLS)


def test_pieces_are_readable(tokenizer: Tokenizer) -> None:
    assert tokenizer.pieces(tokenizer.encode("two dogs, der Hund")) == ["▁two", "▁dogs", ",", "▁der", "▁Hund"]
    assert "".join(tokenizer.pieces(tokenizer.encode("zwölf Straßen"))) in (
        "▁zwölf▁Straßen",
        "▁zw<0xC3><0xB6>lf▁Straßen",
    )
    assert tokenizer.pieces(tokenizer.encode("東"))[-3:] == ["<0xE6>", "<0x9D>", "<0xB1>"]


def test_letters_digits_and_punctuation_share_no_piece(tokenizer: Tokenizer) -> None:
    for piece in tokenizer.pieces(range(FIXED[tokenizer.kind], tokenizer.vocab_size)):
        text = re.sub("<0x..>", "", piece).lstrip("▁")
        assert len({"letter" if c.isalpha() else "digit" if c.isdigit() else "other" for c in text}) <= 1, piece


def test_words_have_a_maximum_length(tokenizer: Tokenizer) -> None:
    """The maximum bounds the time per line, because both encoders search for pieces word by word."""
    for unit in ("x", "東", "7", "!", "🎉", "\u0301", "a\u0301"):
        line = unit * 20_000
        words = tokenizer._engine.pre_tokenizer.pre_tokenize_str(tokenizer._engine.normalizer.normalize_str(line))
        bytes_per_letter = 4 if tokenizer.kind == "wordpiece" else 1
        assert max(len(word) for word, _ in words) <= (MAX_WORD + 1) * bytes_per_letter
        assert len(words) <= len(line) / MAX_WORD + 2


# --- learning --------------------------------------------------------------------------------------------------------
LEARN = """
import sys
from support.tokenizer_texts import VOCAB_SIZE, sentences
from transduce.data.tokenizer import Tokenizer
print(Tokenizer.learn(sentences(500), kind=sys.argv[1], vocab_size=VOCAB_SIZE[sys.argv[1]]).sha256)
"""


def test_the_same_lines_give_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    lines = list(sentences(500))
    assert Tokenizer.learn(lines, kind=tokenizer.kind, vocab_size=VOCAB_SIZE[tokenizer.kind]).sha256 == tokenizer.sha256
    for seed, parallel, threads in (("1", "true", "2"), ("2", "false", "1")):
        settings = {"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel, "RAYON_NUM_THREADS": threads}
        assert in_a_new_process(LEARN, tokenizer.kind, **settings) == tokenizer.sha256


def test_the_first_ids_are_fixed(tokenizer: Tokenizer) -> None:
    pieces = list(json.loads(tokenizer.to_json())["model"]["vocab"])
    assert len(pieces) == tokenizer.vocab_size == len(set(pieces))
    assert pieces[:4] == list(CONTROLS)
    if tokenizer.kind == "bpe":
        assert pieces[4:260] == [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        assert pieces[260:516] == ["▁" + letter for letter in pieces[4:260]]


def test_a_small_text_gives_fewer_pieces(tokenizer: Tokenizer) -> None:
    kind = tokenizer.kind
    assert tokenizer.vocab_size <= VOCAB_SIZE[kind]
    small = Tokenizer.learn(["ab ab ab"], kind=kind, vocab_size=5000)
    assert FIXED[kind] < small.vocab_size < FIXED[kind] + 10
    assert_lossless(small, HOSTILE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_is_filled_exactly(kind: str) -> None:
    size = FIXED[kind] + 60
    assert Tokenizer.learn(sentences(500), kind=kind, vocab_size=size).vocab_size == size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [-1, 0, 4, 260])
def test_a_vocabulary_without_room_is_refused(kind: str, vocab_size: int) -> None:
    with pytest.raises(UserError, match=rf"data.vocab_size={vocab_size}: expected more than {FIXED[kind]}"):
        Tokenizer.learn(["a"], kind=kind, vocab_size=vocab_size)


def test_more_characters_than_pieces_are_refused_with_the_number_needed() -> None:
    lines = ["".join(map(chr, range(0x4E00, 0x4E00 + 200)))]
    with pytest.raises(UserError, match=r"data.vocab_size=300: expected at least 461, because the text has 201"):
        Tokenizer.learn(lines, vocab_size=300)
    assert Tokenizer.learn(lines, vocab_size=461).vocab_size == 461


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lines", [[], [""], ["", " ", "\t\u3000"]])
def test_no_text_is_refused(kind: str, lines: list[str]) -> None:
    with pytest.raises(UserError, match="train: expected at least 1 line"):
        Tokenizer.learn(lines, kind=kind, vocab_size=1000)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UserError, match="data.tokenizer='unigram': expected one of bpe, wordpiece"):
        Tokenizer.learn(["a"], kind="unigram", vocab_size=1000)


def test_an_error_of_the_line_iterator_is_raised() -> None:
    def lines() -> Iterator[str]:
        yield "a"
        raise UserError("train.de:2: expected UTF-8")

    with pytest.raises(UserError, match=r"train\.de:2"):
        Tokenizer.learn(lines(), vocab_size=1000)


def test_learning_does_not_keep_the_lines() -> None:
    tracemalloc.start()
    try:
        Tokenizer.learn((f"line {i % 7} " * 100 for i in range(20_000)), vocab_size=300)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000  # the lines are 16 MB
    finally:
        tracemalloc.stop()


# --- normalisation --------------------------------------------------------------------------------------------------

LOOK_ALIKE = [
    "Our sick son été.",
    "  Our  sick\tson   été. ",
    "Our\xa0sick\u3000son\u202fété.",
    "Our sick\u200b so\xadn\ufeff e\u0301te\u0301.\u200e\x00",
    "\u2028Our\x0bsick\r\nson\x85été.\x1c",
]


@pytest.fixture(scope="module", params=KINDS)
def plain(request: pytest.FixtureRequest) -> Tokenizer:
    """Return a tokenizer that normalises lines."""
    return Tokenizer.learn(sentences(400), kind=request.param, vocab_size=VOCAB_SIZE[request.param], normalizes=True)


def test_lines_that_look_alike_have_the_same_ids(plain: Tokenizer) -> None:
    assert len({tuple(ids) for ids in plain.encode_batch(LOOK_ALIKE)}) == 1
    assert plain.decode(plain.encode(LOOK_ALIKE[2])) == LOOK_ALIKE[0]
    assert len({tuple(ids) for ids in learn(plain.kind).encode_batch(LOOK_ALIKE)}) == len(LOOK_ALIKE)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(line=st.text() | st.lists(st.sampled_from([*FRAGMENTS, *LOOK_ALIKE])).map("".join))
def test_any_line_is_lossless_except_for_what_nobody_sees(plain: Tokenizer, line: str) -> None:
    assert plain.decode(plain.encode(line)) == plain_text(line)


def test_a_file_says_whether_lines_are_normalised(plain: Tokenizer) -> None:
    loaded = Tokenizer.from_json(plain.to_json())
    assert loaded.normalizes and not learn(plain.kind).normalizes
    assert loaded.encode_batch(HOSTILE) == plain.encode_batch(HOSTILE)
    with pytest.raises(UserError, match="its normalizer was not written by transduce"):
        Tokenizer.from_json(plain.to_json().replace('"strip_left": true', '"strip_left": false'))


def test_dropout_normalises_lines_too() -> None:
    tokenizer = Tokenizer.learn(sentences(400), vocab_size=VOCAB_SIZE["bpe"], normalizes=True)
    for line in LOOK_ALIKE:
        assert encode_dropout(tokenizer, line, p=1e-9, key="k") == tokenizer.encode(line)
