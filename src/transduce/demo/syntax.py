"""The sentences of `transduce demo` as trees.

A tree holds the choices that are the same in both languages: who does what to whom, when, and whether it is negated.
`english` and `german` order and inflect the words of a tree. Both produce a list of words in which "," is a word of
its own, and `spell` turns the list into a sentence.
"""

from dataclasses import dataclass
from typing import Literal

from transduce.demo.inflection import (
    RELATIVE,
    Adjective,
    Adverb,
    City,
    Column,
    Determiner,
    Modal,
    Name,
    Noun,
    NounKind,
    Person,
    Preposition,
    Pronoun,
    Verb,
)

Tense = Literal["present", "past"] | Modal
WordOrder = Literal["statement", "question", "subordinate", "infinitive"]


@dataclass(frozen=True)
class Quality:
    """An adjective, with or without "very"."""

    adjective: Adjective
    very: bool = False


@dataclass(frozen=True)
class NounGroup:
    """A noun with determiner, adjectives, owner and relative clause.

    In English an owner replaces the determiner: the doctor's old car.
    """

    noun: Noun
    plural: bool
    determiner: Determiner | None = None
    qualities: tuple[Quality, ...] = ()
    owner: "Name | NounGroup | None" = None
    relative: "Clause | None" = None

    @property
    def column(self) -> Column:
        """The column of this phrase in the tables of endings: the gender of its noun, or the plural."""
        return "plural" if self.plural else self.noun.gender


@dataclass(frozen=True)
class Coordination:
    """Two phrases joined by "and"."""

    first: "Name | NounGroup"
    second: "Name | NounGroup"


@dataclass(frozen=True)
class Fronted:
    """A relative or interrogative pronoun, which opens its clause and leaves its usual position empty."""

    pronoun: Pronoun
    kind: NounKind


NounPhrase = Pronoun | Name | NounGroup | Coordination | Fronted


@dataclass(frozen=True)
class Place:
    """A prepositional phrase. Some are no places: with a friend, for the teacher."""

    preposition: Preposition
    inside: City | NounPhrase


@dataclass(frozen=True)
class Clause:
    """A subject and its predicate."""

    subject: NounPhrase
    verb: Verb
    tense: Tense
    objects: tuple[NounPhrase, ...] = ()
    quality: Quality | None = None  # after "be"
    place: Place | None = None
    time: Adverb | None = None
    frequency: Adverb | None = None  # often, never: before the verb in English
    negated: bool = False
    opening: Literal["time", "place"] | None = None  # the first element
    question_word: Adverb | None = None  # where, when, why: the first element of a question
    complement: "Clause | None" = None  # of say that, ask whether, try to
    second: "Clause | None" = None  # a second predicate of the same subject and tense: sings and dances

    @property
    def modal(self) -> Modal | None:
        """The modal verb of the predicate; None in the present and in the past tense."""
        return self.tense if isinstance(self.tense, Modal) else None

    @property
    def fronted(self) -> tuple[int, Pronoun] | None:
        """The pronoun that opens the clause, after the number of the place that it leaves empty; 0: the subject."""
        phrases = enumerate((self.subject, *self.objects))
        return next(((place, phrase.pronoun) for place, phrase in phrases if isinstance(phrase, Fronted)), None)


@dataclass(frozen=True)
class SentenceTree:
    """One main clause or two, with an optional subordinate clause before and after."""

    clauses: tuple[Clause, ...]  # one, or two joined by `joint`
    joint: Adverb | None = None
    before: tuple[Adverb, Clause] | None = None  # a subordinate clause in front
    after: tuple[Adverb, Clause] | None = None  # and one behind
    question: bool = False


# Rules of both languages


def spell(words: list[str], end: str) -> str:
    """Join the words to a sentence.

    The first letter becomes a capital, "a" before a vowel becomes "an", two adjacent commas become one, and a comma
    before the end disappears.
    """
    text = ""
    for word, following in zip(words, [*words[1:], end], strict=True):
        if word == ",":
            text += "" if following in (",", end) else ","
        else:
            text += " " + ("an" if word == "a" and following[0] in "aeiou" else word)
    text = text.strip()
    return text[0].upper() + text[1:] + end


def person_of(phrase: NounPhrase) -> Person:
    """Return the verb form that the phrase takes as a subject."""
    match phrase:
        case Fronted(pronoun=pronoun) | (Pronoun() as pronoun):
            return pronoun.person
        case Name():
            return "he"
        case NounGroup():
            return "they" if phrase.plural else "he"
        case Coordination():
            return "they"


def is_definite(phrase: NounPhrase) -> bool:
    """Check that the phrase names something known: the old man, Anna, her."""
    match phrase:
        case Coordination(first, second):
            return is_definite(first) and is_definite(second)
        case NounGroup():
            return phrase.owner is not None or (phrase.determiner is not None and phrase.determiner.definite)
        case _:
            return True


def relative_pronoun(phrase: NounGroup) -> Pronoun:
    """Return who, whom or that, and der, die or das in the gender and number of the phrase."""
    english = ("who", "whom") if phrase.noun.kind == "person" else ("that", "that")
    return Pronoun(english, {case: RELATIVE[case][phrase.column] for case in RELATIVE}, person_of(phrase), False)
