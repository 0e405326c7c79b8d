"""Phrases in a text as whole words: against a slow search in the text, and case by case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.decoding.phrases.matching import WORD, PhraseList, kind_of

TEXT = st.text(alphabet="ab1 .-北京ü\u0301", max_size=14)
PHRASE = st.text(alphabet="ab .北", min_size=1, max_size=4).map(str.strip).filter(bool)


def occurrences(text: str, alternatives: list[str]) -> int:
    """Count occurrences that do not overlap: of those that remain always the one that ends first."""
    count, begin = 0, 0
    for end in range(1, len(text) + 1):
        for phrase in alternatives:
            first = end - len(phrase)
            if first < begin or text[first:end] != phrase:
                continue
            is_cut_before = first > 0 and kind_of(text[first - 1]) == kind_of(phrase[0]) == WORD
            is_cut_after = end < len(text) and kind_of(phrase[-1]) == kind_of(text[end]) == WORD
            if not is_cut_before and not is_cut_after:
                count, begin = count + 1, end
                break
    return count


@given(
    TEXT, st.lists(st.lists(PHRASE, min_size=1, max_size=2), max_size=3), st.lists(PHRASE, max_size=2), st.booleans()
)
def test_unmet_names_what_a_slow_search_misses(
    text: str, required: list[list[str]], forbidden: list[str], is_repeated: bool
) -> None:
    required = required + required[:1] * is_repeated
    expected = list[str]()
    for one in dict.fromkeys(map(tuple, required)):
        expected += ["|".join(one)] * max(0, required.count([*one]) - occurrences(text, [*one]))
    expected += [phrase for phrase in dict.fromkeys(forbidden) if occurrences(text, [phrase])]
    assert PhraseList(required, forbidden).unmet(text) == tuple(expected)


@pytest.mark.parametrize(
    ("phrase", "text", "is_in"),
    [
        ("rot", "Das ist rot.", True),
        ("rot", "Das ist roten Wein", False),
        ("rot", "Brot", False),
        ("rot", "Rot", False),
        ("rot", "(rot)", True),
        ("rot", "rot-weiß", True),
        ("rot", "rot2", False),
        ("New York", "in New York, today", True),
        ("New York", "in New  York", False),
        ("U.S.", "the U.S.A.", True),  # a full stop is no word character
        ("is", "naïs", False),
        ("nai", "nai\u0308s", False),  # a combining mark continues a word
        ("北京", "我在北京。", True),
        ("กิน", "ฉันกินข้าว", True),
        ("서울", "서울에서", False),  # Korean has spaces between words
        ("犬", "Hund犬Katze", True),
        ("Hund", "犬Hund犬", True),
    ],
)
def test_a_phrase_is_whole_words(phrase: str, text: str, is_in: bool) -> None:
    assert (PhraseList([[phrase]]).unmet(text) == ()) == is_in
    assert (PhraseList([], [phrase]).unmet(text) == ()) != is_in


@pytest.mark.parametrize(
    ("required", "text", "unmet"),
    [
        ([["a"], ["a"]], "a b", ("a",)),
        ([["a"], ["a"]], "a b a", ()),
        ([["a a"], ["a a"]], "a a a", ("a a",)),  # occurrences of one phrase do not overlap
        ([["New York"], ["York"]], "New York", ()),  # those of two required may
        ([["York City"], ["New York"]], "New York City", ()),
        ([["Hund", "Köter"]], "ein Köter", ()),
        ([["Hund", "Köter"]], "eine Katze", ("Hund|Köter",)),
        ([["Hund", "Köter"], ["Hund", "Köter"]], "Hund und Köter", ()),
    ],
)
def test_required_phrases_count(required: list[list[str]], text: str, unmet: tuple[str, ...]) -> None:
    assert PhraseList(required).unmet(text) == unmet


def test_a_beginning_is_forbidden_only_where_a_word_has_ended() -> None:
    phrases = PhraseList([], ["Hund", "!"])
    assert phrases.forbidden_in("Ein Hund") == []
    assert phrases.forbidden_in("Ein Hund ") == ["Hund"]
    assert phrases.forbidden_in("Ein Hunde!") == ["!"]
