"""A bilingual grammar for `transduce demo`: as many English sentences as wanted, each with its German.

Every sentence begins as a tree of choices (`demo_syntax`) over a small dictionary (`demo_lexicon`). The choices keep
to what makes sense, roughly, and to what has one reading: an English sentence has exactly one German. For that,
nothing is attached where English would leave it open. An object with a relative clause ends its clause; an adverb
at the end belongs to the last clause; clauses are only joined by "and" or "but" before any of them opens another one.
"""

import random
from collections.abc import Container, Sequence
from dataclasses import replace

from transduce import demo_lexicon as lexicon
from transduce.demo_inflection import PLACES, Adjective, Adverb, Complement, Determiner, Kind, Modal, Noun, Verb
from transduce.demo_syntax import (
    Both,
    Clause,
    Fronted,
    NounPhrase,
    Phrase,
    Place,
    Quality,
    Sentence,
    Tense,
    english_sentence,
    german_sentence,
    is_definite,
    relative_pronoun,
)

MAX_WORDS = 14  # of an ordinary sentence, in either language
MAX_LONGER_WORDS = 28


def sentence(rng: random.Random, *, longer: bool = False) -> tuple[str, str]:
    """A random English sentence and its German.

    An ordinary one has at most MAX_WORDS words in each language; a longer one has more than that in both, and at
    most MAX_LONGER_WORDS. Both are built from the same constructions.
    """
    low, high = (MAX_WORDS + 1, MAX_LONGER_WORDS) if longer else (1, MAX_WORDS)
    while True:
        tree = _longer_sentence(rng) if longer else _ordinary_sentence(rng)
        pair = english_sentence(tree), german_sentence(tree)
        if all(low <= len(side.split()) <= high for side in pair):
            return pair


def corpus(
    seed: int, n: int, *, longer: bool = False, exclude: Container[str] = ()
) -> list[tuple[str, str]]:
    """`n` pairs with distinct English, none of it in `exclude`; a pure function of the arguments."""
    rng = random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < n:
        english, german = sentence(rng, longer=longer)
        if english not in exclude:
            pairs[english] = german
    return list(pairs.items())


def lexeme_count() -> int:
    """How many words the dictionary has, each counted once whatever its forms."""
    tables: tuple[Sequence[object], ...] = (
        *lexicon.NOUNS.values(), lexicon.ADJECTIVES, lexicon.VERBS, lexicon.MODALS, [lexicon.FUTURE],
        lexicon.DEFINITE, lexicon.QUANTIFIERS, [lexicon.THE, lexicon.A, lexicon.NO],
        lexicon.PRONOUNS, [lexicon.WHO, lexicon.WHAT], lexicon.NAMES, lexicon.CITIES,
        lexicon.TIMES, lexicon.FREQUENCIES, [lexicon.VERY], lexicon.SUBORDINATORS, lexicon.JOINTS,
        lexicon.QUESTION_ADVERBS, lexicon.AT_BUILDINGS, [lexicon.ON, lexicon.INTO, lexicon.TO],
        [lexicon.WITH, lexicon.WITHOUT, lexicon.FOR],
    )  # fmt: skip
    return sum(len(table) for table in tables)


def distinct_pairs_lower_bound() -> int:
    """How many sentences one template alone yields: The <adjective> <noun> <verb> the <adjective> <noun>.

    Present tense, one object, singular or plural on both sides; the nouns are those the verb allows, the adjectives
    those the noun allows. No two of them have the same English, since no two words of a class do.
    """

    def phrases(kinds: tuple[Kind, ...]) -> int:
        return sum((2 if noun.plurals else 1) * len(_adjectives_for(noun)) for noun in _nouns(kinds))

    return sum(phrases(verb.subjects) * phrases(verb.objects) for verb in _verbs("object"))


# Sentences


def _ordinary_sentence(rng: random.Random) -> Sentence:
    construction = _pick(
        rng,
        {
            _plain: 40,
            _asking: 12,
            _reporting: 9,
            _subordinating: 14,
            _intending: 6,
            _two_predicates: 6,
            _two_clauses: 5,
            _with_relatives: 12,
        },
    )
    return construction(rng)
