"""The tokenizer whose tokens are words: one id for each word, and classes for rare ones."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tokenizer_texts import encode_dropout

from transduce.data.symbols import SubwordsAndSymbols
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import CONTROLS, UNK
from transduce.data.words import Words, classes_of
from transduce.errors import UserError

LINES = ["the cat sees the dog ."] * 3 + [f"the {word}ing dog" for word in ("go", "see", "hear", "feel") * 5]
RARE = [f"the {chr(97 + i)}{chr(97 + i)}ing X{i}-y" for i in range(12)]
WORDS = Words.learn([*LINES, *RARE], vocab_size=100)


def test_each_word_is_one_token_and_rare_words_share_classes() -> None:
    ids = WORDS.encode("the  cat aaing zzzing X99-y")
    assert WORDS.pieces(ids) == ["the", "cat", " a -ing", " a -ing", " Aa0- --y"]
    assert WORDS.decode([0, *ids[:2], 2]) == "the cat"
    assert WORDS.encode("@") == [UNK]  # a word of no class
    assert WORDS.words[:2] == ["the", "dog"]  # the most frequent first
    assert "aaing" not in WORDS.words


def test_dropout_gives_words_the_ids_of_their_classes() -> None:
    line = " ".join(["the hearing cat aaing"] * 500)
    plain, dropped = WORDS.encode(line), encode_dropout(WORDS, line, p=0.2, key="1:0:7")
    changed = [(old, new) for old, new in zip(plain, dropped, strict=True) if old != new]
    hearing, class_of_hearing = WORDS.encode("hearing zzzing")
    assert {new for old, new in changed if old == hearing} == {class_of_hearing}
    assert WORDS.encode("aaing")[0] not in {old for old, _ in changed}  # it has no separate id
    assert sum(old == hearing for old, _ in changed) == pytest.approx(100, abs=40)  # of 500, four standard deviations
    assert encode_dropout(WORDS, line, p=0.2, key="1:0:7") == dropped != encode_dropout(WORDS, line, p=0.2, key="1:1:7")
    assert encode_dropout(WORDS, line, p=0, key="1:0:7") == plain


@given(st.text())
def test_any_text_has_an_id_for_each_word(text: str) -> None:
    ids = WORDS.encode(text)
    assert len(ids) == len([word for word in text.split(" ") if word])
    assert all(UNK <= i < WORDS.vocab_size for i in ids)  # never PAD, BOS or EOS


def test_a_control_piece_in_the_text_is_no_control_id() -> None:
    text = Words.learn(["</s> <pad> a a </s>"] * 3, vocab_size=100)
    assert text.encode("</s> <pad>") == [UNK, UNK]
    assert all(" " in name for name in classes_of("</s>"))  # a class cannot be a word


def test_the_vocabulary_has_at_most_the_asked_size() -> None:
    small = Words.learn([*LINES, *RARE], vocab_size=8)
    assert small.vocab_size == len(small.vocabulary) <= 8
    assert small.words[0] == "the"


def test_a_tokenizer_of_words_and_symbols_returns_from_its_text() -> None:
    both = SubwordsAndSymbols(WORDS, ["NN", "-"])
    again = Tokenizer.from_json(both.to_json())
    assert again.sha256 == both.sha256
    line = "the cat zzzing"
    assert again.encode(line) == both.encode(line) == [i + 2 for i in WORDS.encode(line)]
    assert again.vocabulary[: len(CONTROLS) + 2] == [*CONTROLS, "NN", "-"]


@pytest.mark.parametrize(
    "changes", [{"words": ["a", "a"]}, {"words": ["<pad>"]}, {"classes": [3]}, {"classes": "x"}, {"words": [""]}]
)
def test_a_damaged_text_is_refused(changes: dict[str, object]) -> None:
    text = json.dumps({"format": "transduce words", "words": ["a"], "classes": [" a"], **changes})
    with pytest.raises(UserError, match="its words and classes are not different texts; use another copy"):
        Words.from_json(text)
    with pytest.raises(UserError, match="it has no words and classes"):
        Words.from_json('{"format": "transduce words"}')
