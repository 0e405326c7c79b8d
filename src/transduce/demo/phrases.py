"""Random noun phrases and places of `transduce demo`, of words that go together."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from transduce.demo import lexicon
from transduce.demo.inflection import (
    Adjective,
    Complement,
    Determiner,
    Name,
    Noun,
    NounKind,
    Preposition,
    Pronoun,
    Verb,
)
from transduce.demo.syntax import Coordination, Fronted, NounGroup, NounPhrase, Place, Quality

T = TypeVar("T")


def pick(rng: random.Random, weights: Mapping[T, int]) -> T:
    """Return one of the keys, with a probability in proportion to its weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def chance(rng: random.Random, percent: int) -> bool:
    """Return True with a probability of `percent` / 100."""
    return rng.random() * 100 < percent


# Noun phrases


def noun_phrase(
    rng: random.Random, kinds: tuple[NounKind, ...], *, definite: bool = False, beside: NounPhrase | None = None
) -> NounPhrase:
    """Return a pronoun, a name, one thing or two, of these kinds, that can share a clause with `beside`."""
    people = "person" in kinds
    shape = pick(rng, {"pronoun": 20 * people, "name": 8 * people, "both": 5, "phrase": 67})
    if shape == "pronoun":
        return rng.choice([pronoun for pronoun in lexicon.PRONOUNS if not (pronoun.speaker and _speaks(beside))])
    if shape == "name":
        return rng.choice([name for name in lexicon.NAMES if name != beside])
    if shape == "both":
        return _both(rng, rng.choice(kinds))
    return phrase(rng, kinds, definite=definite)


def phrase(rng: random.Random, kinds: tuple[NounKind, ...], *, definite: bool = False) -> NounGroup:
    """Return a noun of one of the kinds with determiner and adjectives. definite: never with "a", "many" etc."""
    noun = rng.choice(lexicon.NOUNS[rng.choice(kinds)])
    plural = noun.plurals is not None and chance(rng, 35)
    qualities = _qualities(rng, noun, 50)
    if _can_be_owned(noun, plural) and chance(rng, 7):
        return NounGroup(noun, plural, lexicon.THE, qualities, owner=_owner(rng, noun))
    return NounGroup(noun, plural, _determiner(rng, noun, plural, definite), qualities)


def objects(rng: random.Random, verb: Verb, subject: NounPhrase, *, definite: bool = False) -> tuple[NounPhrase, ...]:
    """Return the objects of the verb. The second of two has a determiner: "shows her books" would be ambiguous."""
    match verb.complement:
        case "object":
            return (noun_phrase(rng, verb.objects, definite=definite, beside=subject),)
        case "two objects":
            receiver = noun_phrase(rng, lexicon.PEOPLE, definite=True, beside=subject)
            thing = phrase(rng, verb.objects, definite=definite)
            return receiver, thing if thing.determiner else replace(thing, determiner=lexicon.THE)
    return ()


def quality_of(rng: random.Random, subject: NounPhrase, *, very: int) -> Quality:
    """Return an adjective for the subject that its phrase does not have yet. very: the chance of "very" in percent."""
    ranks = [quality.adjective.rank for quality in subject.qualities] if isinstance(subject, NounGroup) else []
    return _quality(rng, [word for word in adjectives(kind_of(subject)) if word.rank not in ranks], very=very)


def _both(rng: random.Random, kind: NounKind) -> Coordination:
    determiner = lexicon.THE if chance(rng, 70) else rng.choice(lexicon.DEFINITE)
    first, second = (_single(rng, noun, determiner) for noun in rng.sample(lexicon.NOUNS[kind], 2))
    return Coordination(first, second)


def _single(rng: random.Random, noun: Noun, determiner: Determiner) -> NounGroup:
    return NounGroup(noun, False, determiner if _can_be_owned(noun, False) else lexicon.THE, _qualities(rng, noun, 20))


def _owner(rng: random.Random, noun: Noun) -> Name | NounGroup:
    if chance(rng, 50):
        return rng.choice(lexicon.NAMES)
    return _single(rng, rng.choice([person for person in lexicon.NOUNS["person"] if person != noun]), lexicon.THE)


def _determiner(rng: random.Random, noun: Noun, plural: bool, definite: bool) -> Determiner | None:
    """Return the determiner of a noun phrase, or None for a plural or a mass noun without one."""
    if noun.english in lexicon.KIN and not plural:
        return lexicon.THE if chance(rng, 30) else rng.choice(lexicon.DEFINITE)
    sort = pick(rng, {"the": 48, "this or my": 22, "a": 0 if definite else 20, "many": 0 if definite else 10})
    if sort == "this or my":
        return rng.choice(lexicon.DEFINITE) if _can_be_owned(noun, plural) else lexicon.THIS
    if sort == "a":
        return lexicon.A if noun.plurals and not plural else None
    if sort == "many" and noun.plurals and (plural or chance(rng, 40)):
        return rng.choice([word for word in lexicon.QUANTIFIERS if word.english[plural]])
    return lexicon.THE


def _can_be_owned(noun: Noun, plural: bool) -> bool:
    return noun.english not in lexicon.NOT_OWNED and not (plural and noun.english in lexicon.ONLY_ONE)


def _qualities(rng: random.Random, noun: Noun, percent: int) -> tuple[Quality, ...]:
    """Return one adjective, or two in a tenth of the cases, with a probability of `percent` / 100."""
    if not chance(rng, percent):
        return ()
    fitting = [word for word in adjectives(noun.kind) if not noun.german.lower().startswith(word.stem)]
    if chance(rng, 90):
        return (_quality(rng, fitting, very=10),)
    first = rng.choice(fitting)
    second = rng.choice([word for word in fitting if word.rank != first.rank])
    return tuple(Quality(word) for word in sorted((first, second), key=lambda word: word.rank))


def _quality(rng: random.Random, fitting: Sequence[Adjective], *, very: int) -> Quality:
    adjective = rng.choice(fitting)
    return Quality(adjective, adjective.gradable and chance(rng, very))


def _speaks(other: NounPhrase | None) -> bool:
    return isinstance(other, Pronoun) and other.speaker


# Places


def place(rng: random.Random) -> Place:
    """Return the place of an action: in a building, in an area, on a surface."""
    kind: NounKind = rng.choice(("building", "building", "area", "area", "surface"))
    return Place(rng.choice(lexicon.AT[kind]), _location(rng, (kind,)))


def city(rng: random.Random, preposition: Preposition) -> Place:
    """Return a city with its preposition: in Rome, to Rome."""
    return Place(preposition, rng.choice(lexicon.CITIES))


def inside(rng: random.Random) -> Place:
    """Return a building or an area as a direction: into the house."""
    return Place(lexicon.INTO, _location(rng, ("building", "area")))


def company(rng: random.Random, verb: Verb, subject: NounPhrase) -> Place | None:
    """Return a person with "with", "without" or "for", or None if the verb takes none of them."""
    fitting = [preposition for preposition, verbs in lexicon.COMPANY.items() if verb.english in verbs]
    if not fitting or kind_of(subject) != "person":
        return None
    return Place(rng.choice(fitting), noun_phrase(rng, lexicon.PEOPLE, definite=True, beside=subject))


def _location(rng: random.Random, kinds: tuple[NounKind, ...]) -> NounGroup:
    noun = rng.choice(lexicon.NOUNS[rng.choice(kinds)])
    determiner = pick(rng, {lexicon.THE: 70, lexicon.THIS: 10, lexicon.OUR: 8, lexicon.A: 12})
    plural = determiner is not lexicon.A and chance(rng, 12)
    return NounGroup(noun, plural, determiner, _qualities(rng, noun, 35))


# The dictionary


@cache
def adjectives(kind: NounKind) -> tuple[Adjective, ...]:
    """Return the adjectives that fit things of this kind."""
    return tuple(adjective for adjective in lexicon.ADJECTIVES if kind in adjective.kinds)


@cache
def verbs(*complements: Complement) -> tuple[Verb, ...]:
    """Return the verbs that take one of these complements."""
    return tuple(verb for verb in lexicon.VERBS if verb.complement in complements)


def kind_of(phrase: NounPhrase) -> NounKind:
    """Return the kind of thing that a noun phrase names. Of two things, the first counts."""
    match phrase:
        case NounGroup():
            return phrase.noun.kind
        case Coordination():
            return kind_of(phrase.first)
        case Fronted():
            return phrase.kind
        case _:
            return "person"


def is_alive(phrase: NounPhrase) -> bool:
    """Check that the noun phrase names a person or an animal."""
    return kind_of(phrase) in lexicon.ALIVE
