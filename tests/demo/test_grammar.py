"""The corpus of the demo: correct, rich, reproducible, and with one German sentence for each English one."""

import hashlib
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.seeds import seed_of_the_commit

from transduce.demo import grammar, lexicon, phrases
from transduce.demo.english import english_sentence
from transduce.demo.grammar import LONGER, MAX_LONGER_WORDS, MAX_WORDS, ORDINARY, corpus, sentence
from transduce.demo.inflection import PERSONS, Case, Noun
from transduce.demo.phrases import adjectives
from transduce.demo.syntax import SentenceTree

Pair = tuple[str, str]
Construction = Callable[[random.Random], SentenceTree]
CASES: tuple[Case, ...] = ("nominative", "accusative", "dative", "genitive")
NOUNS = [noun for nouns in lexicon.NOUNS.values() for noun in nouns]


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return corpus(1, 20_000)


# What a reader may check without knowing how the sentences were made


LEGAL = {  # article and adjective endings before a noun of each gender, and in the plural
    "masculine": "der-e den-en dem-en des-en ein-er einen-en einem-en",
    "feminine": "die-e der-en eine-e einer-en",
    "neuter": "das-e dem-en des-en ein-es einem-en",
    "plural": "die-en den-en der-en",
}


def test_articles_adjectives_and_nouns_agree_in_every_sentence(pairs: list[Pair]) -> None:
    counts = Counter[str]()
    for _, german in pairs:
        words = re.findall(r"\w+|,", german)
        for before, article, word, name in zip(["", *words], words, words[1:], words[2:], strict=False):
            relative = before == ","
            if re.fullmatch("d(er|ie|as|en|em|es)|eine?[mnrs]?", article.lower()) and word.islower() and not relative:
                fits = {form for noun in NOUNS for form in _columns(noun, name)}
                pattern = f"{article.lower()}-{_ending(word)}"
                if fits and _ending(word):
                    counts[pattern] += 1
                    assert any(pattern in LEGAL[column].split() for column in fits), german
    assert set(counts) == {pattern for patterns in LEGAL.values() for pattern in patterns.split()}


def _columns(noun: Noun, form: str) -> set[str]:
    singular = {noun.german_form(case, False) for case in CASES}
    plural = {noun.german_form(case, True) for case in CASES} if noun.plurals else set()
    return ({noun.gender} if form in singular else set()) | ({"plural"} if form in plural else set())


def _ending(word: str) -> str:
    stems = [word.removesuffix(ending) for ending in ("e", "en", "er", "es", "em") if word.endswith(ending)]
    stem = next((stem for stem in stems if any(stem == known.stem for known in lexicon.ADJECTIVES)), None)
    return word.removeprefix(stem) if stem else ""


def test_every_german_noun_has_a_capital_and_every_clause_a_comma(pairs: list[Pair]) -> None:
    nouns = {noun.german_form(case, plural).lower() for noun in NOUNS for case in CASES for plural in (False, True)}
    for english, german in pairs:
        assert not nouns.intersection(re.findall(r"\w+", german)) - {"junge", "jungen"}, german
        assert not re.search(r"[^,] (weil|dass|obwohl|während|wenn|ob|aber|denen) ", german), german
        for text in (english, german):
            assert re.fullmatch(r"[A-ZÄÖÜ][\w' ,]*\w[.?]", text) and "  " not in text and " ," not in text


def test_english_writes_a_or_an_by_the_sound_that_follows(pairs: list[Pair]) -> None:
    for english, _ in pairs:
        assert not re.search(r"\b([Aa] [aeiou]|[Aa]n [^aeiou])", english), english


# One English, one German


def test_no_english_word_form_belongs_to_two_words_or_two_forms_of_one() -> None:
    forms: list[str] = []
    for noun in NOUNS:
        forms += [noun.english, *([noun.plurals[0]] if noun.plurals else [])]
    for word in lexicon.VERBS:
        past = {word.past, word.english_past("they")} - {None}
        forms += sorted({f"{form} {word.particle}".strip() for form in (*map(word.english_present, PERSONS), *past)})
    forms += [word.english for word in (*lexicon.ADJECTIVES, *lexicon.TIMES, *lexicon.FREQUENCIES, lexicon.NEVER)]
    assert [form for form, times in Counter(forms).items() if times > 1] == []


def test_no_verb_has_two_constructions_and_no_past_equals_the_present() -> None:
    assert len({(word.english, word.particle) for word in lexicon.VERBS}) == len(lexicon.VERBS)
    assert all(word.past not in (word.english, word.english_present("he")) for word in lexicon.VERBS)


class Narrow(random.Random):
    """Choose the same few words every time, so that sentences of the same structure collide."""

    def __init__(self, world: int) -> None:
        super().__init__(world)
        self.world = world

    def choice(self, seq: Any) -> Any:
        return seq[(self.world * 7919 + len(seq) * 31) % len(seq)] if len(seq) > 3 else super().choice(seq)

    def sample(self, population: Any, k: int, *, counts: Any = None) -> Any:
        return [population[(self.world + i) % len(population)] for i in range(k)]


def collide(construct: Construction, world: int, n: int) -> int:
    """Count repeated English sentences, and check that each comes from one tree and so has one German sentence."""
    rng = Narrow(world)
    trees = dict[str, SentenceTree]()
    collisions = 0
    for _ in range(n):
        tree = construct(rng)
        english = english_sentence(tree)
        collisions += english in trees
        assert trees.setdefault(english, tree) == tree, english
    return collisions


HER_WORLD = 2  # a world in which the only possessive is "her" and the only pronoun is "she" and "her"


def test_an_english_sentence_has_one_reading_in_small_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases, "_qualities", lambda rng, noun, percent: ())
    assert sum(collide(construct, HER_WORLD, 1_500) for construct in (*ORDINARY, *LONGER)) > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("construct", (*ORDINARY, *LONGER))
def test_an_english_sentence_has_one_reading_after_long_search(
    construct: Construction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This many sentences expose an adverb with two readings: "thanked the boy who danced today".

    The commit selects one of two small worlds.
    """
    seed = seed_of_the_commit()
    print(f"seed {seed}")
    monkeypatch.setattr(phrases, "_qualities", lambda rng, noun, percent: ())
    assert collide(construct, random.Random(seed).choice([HER_WORLD, 7]), 40_000) > 50


@pytest.mark.slow
def test_50_000_english_sentences_have_one_german_sentence_each() -> None:
    seed = seed_of_the_commit()
    print(f"seed {seed}")
    rng = random.Random(seed)
    german: dict[str, str] = {}
    for _ in range(50_000):
        english, translation = sentence(rng)
        assert german.setdefault(english, translation) == translation


# The corpus


def test_the_corpus_is_the_same_in_every_process(pairs: list[Pair]) -> None:
    code = "import hashlib; from transduce.demo.grammar import corpus; print(hashlib.sha256(repr("
    code += "corpus(1, 500) + corpus(2, 50, longer=True)).encode()).hexdigest())"
    expected = hashlib.sha256(repr(pairs[:500] + corpus(2, 50, longer=True)).encode()).hexdigest()
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == expected


def test_the_corpus_is_distinct_and_without_excluded_sentences(pairs: list[Pair]) -> None:
    english = [source for source, _ in pairs]
    assert len(set(english)) == len(pairs) == 20_000
    others = corpus(1, 1_000, exclude=set(english[:500]))
    assert not {source for source, _ in others}.intersection(english[:500])
    assert others[:100] == pairs[500:600]


def test_longer_sentences_are_longer_than_all_ordinary_ones(pairs: list[Pair]) -> None:
    longer = corpus(1, 1_000, longer=True)
    assert all(len(text.split()) <= MAX_WORDS for pair in pairs for text in pair)
    assert all(MAX_WORDS < len(text.split()) <= MAX_LONGER_WORDS for pair in longer for text in pair)


def test_longer_sentences_use_only_words_of_ordinary_ones(pairs: list[Pair]) -> None:
    known = {word.strip(".,?").lower() for pair in pairs for text in pair for word in text.split()}
    longer = Counter(
        word.strip(".,?").lower() for pair in corpus(1, 1_000, longer=True) for text in pair for word in text.split()
    )
    assert sum(times for word, times in longer.items() if word not in known) < 0.001 * longer.total()


def test_every_word_occurs_often_enough_to_be_learned(pairs: list[Pair]) -> None:
    words = Counter(word.strip(".,?").removesuffix("'s").lower() for source, _ in pairs for word in source.split())
    for noun in NOUNS:
        assert words[noun.english] + (words[noun.plurals[0]] if noun.plurals else 0) >= 50, noun.english
    for word in lexicon.VERBS:
        past = words[word.past] if word.past else 0
        assert sum(words[form] for form in {word.english, word.english_present("he")}) + past >= 50, word.english
    for word in lexicon.ADJECTIVES:
        assert words[word.english] >= 50, word.english


def test_the_dictionary_has_enough_words_and_a_million_sentences() -> None:
    assert grammar.lexeme_count() >= 250
    assert grammar.distinct_pairs_lower_bound() > 1_000_000


def test_the_lower_bound_counts_distinct_sentences() -> None:
    """Enumerate the sentences of one verb. The sum over all verbs is the bound."""

    def phrases(kinds: Sequence[str]) -> set[str]:
        nouns = [noun for noun in NOUNS if noun.kind in kinds]
        forms = {(noun, form) for noun in nouns for form in (noun.english, noun.english_form(True))}
        return {f"the {word.english} {form}" for noun, form in forms for word in adjectives(noun.kind)}

    opening = next(word for word in lexicon.VERBS if word.english == "open")
    subjects, objects = phrases(opening.subjects), phrases(opening.objects)
    sentences = {f"{subject} open {thing}" for subject in subjects for thing in objects}
    assert len(sentences) == len(subjects) * len(objects)
    transitive = [word for word in lexicon.VERBS if word.complement == "object"]
    counts = [len(phrases(word.subjects)) * len(phrases(word.objects)) for word in transitive]
    assert sum(counts) == grammar.distinct_pairs_lower_bound()
