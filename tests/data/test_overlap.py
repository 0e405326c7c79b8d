"""Overlap of the validation text with the training text: against a direct implementation, and its cache."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.small_texts import open_one, sentences, write_corpus

from transduce.data import overlap
from transduce.data.overlap import SAME_LANGUAGE, Overlap, cached_overlap, find_overlap, frequent_words
from transduce.data.tokenizer import Tokenizer

line = st.sampled_from(["", " ", "a", " a", "a ", "b", "c\t"])
pairs = st.lists(st.tuples(line, line), max_size=8)


@given(pairs, pairs)
def test_the_overlap_equals_a_direct_implementation(
    training: list[tuple[str, str]], valid: list[tuple[str, str]]
) -> None:
    expected = Overlap([], [])
    for number, (src, tgt) in enumerate(valid, start=1):
        same_source = [t for s, t in training if src.strip() and s.strip() == src.strip()]
        if same_source:
            expected.sources.append(number)
        if tgt.strip() in [t.strip() for t in same_source]:
            expected.pairs.append(number)
    assert find_overlap(iter(training), valid) == expected


def test_the_overlap_is_cached_until_a_text_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = sentences(60)
    tokenizer = Tokenizer.learn((side for pair in known for side in pair), vocab_size=320)
    store = open_one(tmp_path / "data", write_corpus(tmp_path, known), tokenizer)
    valid, path = [known[3], (known[4][0], "other"), ("new", "neu")], tmp_path / "leaks.json"
    first = cached_overlap(valid, store, path)
    assert first.pairs == [1] and first.sources == [1, 2]
    with monkeypatch.context() as patch:
        patch.setattr(overlap, "find_overlap", lambda *_: pytest.fail("the cache was not used"))
        assert cached_overlap(valid, store, path) == first
    assert cached_overlap(valid[1:], store, path) == Overlap([], [1])
    more = open_one(tmp_path / "data", write_corpus(tmp_path, [*known, ("new", "neu")]), tokenizer)
    assert cached_overlap(valid, more, path) == Overlap([1, 3], [1, 2, 3])
    for damaged in (b"", b"{}", path.read_bytes()[:-3]):
        path.write_bytes(damaged)
        assert cached_overlap(valid, more, path) == Overlap([1, 3], [1, 2, 3])


def text(seed: int, count: int) -> list[tuple[str, str]]:
    """Return pairs of a made-up language and its translation. The sides share the names, which have capitals."""
    rng = random.Random(seed)
    words = [[*rng.choices("abcd", k=6), rng.choice(["Anna", "Berta"])] for _ in range(count)]
    return [(" ".join(line), " ".join(word if word[0].isupper() else f"{word}en" for word in line)) for line in words]


def swapped(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(tgt, src) for src, tgt in pairs]


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        (lambda pairs: pairs, True),
        (lambda pairs: pairs[:100], False),  # too few words
        (lambda pairs: pairs + swapped(pairs), False),  # a model of both directions
        (lambda pairs: [(src, src) for src, _ in pairs], False),
        (lambda pairs: [(tgt, tgt) for _, tgt in pairs], False),
        (lambda pairs: [(src, " ".join(reversed(src.split()))) for src, _ in pairs], False),
        (lambda pairs: [(src.replace(" ", ""), tgt.replace(" ", "")) for src, tgt in pairs], False),
        (lambda pairs: [(src.replace(" ", ""), tgt) for src, tgt in pairs], True),  # as from Japanese
    ],
)
def test_exchanged_sides_of_the_validation_text_are_found(
    change: Callable[[list[tuple[str, str]]], list[tuple[str, str]]], is_found: bool
) -> None:
    training, valid = change(text(1, 2_000)), change(text(2, 50))
    assert not find_overlap(training, valid).is_exchanged
    assert find_overlap(training, swapped(valid)).is_exchanged == is_found


def test_texts_of_one_language_share_their_frequent_words() -> None:
    french = ["Il est né dans la ville.", "La vie est belle et la mer est bleue.", "Elle est dans la maison."]
    other = ["La la est est est.", "Où est la gare ?", "Le chat est dans la rue."]
    english = ["He was born in the town.", "Life is good and the sea is blue.", "She is in the house."]
    assert frequent_words(other, french) > SAME_LANGUAGE
    assert frequent_words(english, french) < SAME_LANGUAGE > frequent_words(french, english)
    assert frequent_words([], french) == frequent_words(french, []) == 0
