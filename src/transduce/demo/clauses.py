"""Random clauses of `transduce demo`: a verb with a subject, objects, adverbials and relative clauses that fit it."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TypeGuard

from transduce.demo import lexicon
from transduce.demo.inflection import Adverb, Complement, Modal, NounKind, Verb
from transduce.demo.phrases import (
    chance,
    city,
    company,
    inside,
    is_alive,
    kind_of,
    noun_phrase,
    objects,
    pick,
    place,
    quality_of,
    verbs,
)
from transduce.demo.syntax import Clause, Fronted, NounGroup, NounPhrase, Tense, relative_pronoun

TENSES = {"present": 46, "past": 30, "modal": 18, "future": 6}  # the weight of each; modal: can, must, want to ...
COMPLEMENTS: dict[Complement, int] = {
    "nothing": 16, "object": 44, "two objects": 11, "place": 7, "direction": 7, "predicate": 18,
}  # fmt: skip


def make_clause(
    rng: random.Random,
    complements: tuple[Complement, ...] | None = None,
    *,
    tenses: tuple[str, ...] = tuple(TENSES),
    subject: NounPhrase | None = None,
    negations: bool = True,
) -> Clause:
    """Return a clause without adverbials: a verb with a subject and objects that make sense with it."""
    complement = rng.choice(complements) if complements else pick(rng, COMPLEMENTS)
    verb = rng.choice(_fitting_verbs(complement, kind_of(subject) if subject else None, tenses))
    tense = _tense(rng, [tense for tense in tenses if allows(verb, tense)])
    negation = _negation(rng, tense) if negations else None
    definite = negation in ("not", "never") or complement == "predicate"
    subject = subject or noun_phrase(rng, verb.subjects, definite=definite)
    clause = Clause(subject, verb, tense, objects(rng, verb, subject, definite=definite), negated=negation == "not")
    clause = _completed(rng, _with_no(rng, clause) if negation == "no" else clause)
    return replace(clause, frequency=_frequency(rng, clause, negation))


@cache
def _fitting_verbs(complement: Complement, subject: NounKind | None, tenses: tuple[str, ...]) -> tuple[Verb, ...]:
    return tuple(
        verb
        for verb in verbs(complement)
        if (subject is None or subject in verb.subjects) and any(allows(verb, tense) for tense in tenses)
    )


def allows(verb: Verb, tense: str) -> bool:
    return not (tense == "past" and verb.past is None) and not (tense == "modal" and verb.english in lexicon.NOT_WILLED)


def _tense(rng: random.Random, tenses: Sequence[str]) -> Tense:
    match pick(rng, {tense: TENSES[tense] for tense in tenses}):
        case "modal":
            return rng.choice(lexicon.MODALS)
        case "future":
            return lexicon.FUTURE
        case "past":
            return "past"
        case _:
            return "present"


def matching_tenses(clause: Clause) -> tuple[str, ...]:
    """Return the tenses that a clause next to or under this one may have. A past clause joins only past clauses."""
    return ("past",) if clause.tense == "past" else ("present", "modal")


def _negation(rng: random.Random, tense: Tense) -> str | None:
    """Return at most one negation, and none with "must": "must not" does not mean "nicht müssen"."""
    if isinstance(tense, Modal) and not tense.negatable:
        return None
    return pick(rng, {None: 78, "not": 13, "never": 3, "no": 6})


def _with_no(rng: random.Random, clause: Clause) -> Clause:
    """Put "no" before the last object, or else before the subject: the child eats no bread, no child sleeps."""
    *others, last = clause.objects or (clause.subject,)
    if not isinstance(last, NounGroup):
        return clause
    negated_phrase = replace(last, determiner=lexicon.NO, owner=None)
    return (
        replace(clause, objects=(*others, negated_phrase))
        if clause.objects
        else replace(clause, subject=negated_phrase)
    )


def _frequency(rng: random.Random, clause: Clause, negation: str | None) -> Adverb | None:
    if not is_alive(clause.subject) or _lasts(clause):
        return None
    if negation == "never":
        return lexicon.NEVER
    return rng.choice(lexicon.FREQUENCIES) if negation is None and chance(rng, 9) else None


def _completed(rng: random.Random, clause: Clause) -> Clause:
    """Return the clause with the place, direction or quality that its verb needs."""
    match clause.verb.complement:
        case "place":
            at_home = clause.verb.english == "live"
            return replace(clause, place=city(rng, lexicon.IN) if at_home and chance(rng, 60) else place(rng))
        case "direction":
            abroad = clause.verb.english == "travel"
            return replace(clause, place=city(rng, lexicon.TO) if abroad else inside(rng))
        case "predicate" if kind_of(clause.subject) in (*lexicon.ALIVE, *lexicon.PORTABLE) and chance(rng, 25):
            return replace(clause, place=place(rng))
        case "predicate":
            return replace(clause, quality=quality_of(rng, clause.subject, very=25))
    return clause


def subordinate_clause(rng: random.Random, main: Clause) -> tuple[Adverb, Clause]:
    """Return because, although, while or if, with its clause. "while" and "if" take events, not lasting states."""
    past = main.tense == "past"
    of_reason = [word for word in lexicon.SUBORDINATORS if word.english in ("because", "although")]
    of_time = [word for word in lexicon.SUBORDINATORS if word not in of_reason and _goes_with(word, main)]
    conjunction = rng.choice(of_reason if _lasts(main) else [*of_reason, *of_time])
    reason = conjunction in of_reason
    tenses = matching_tenses(main) if reason else ("past" if past else "present",)
    subject = rng.choice(lexicon.PRONOUNS) if chance(rng, 30) else None
    while True:
        clause = make_clause(rng, tenses=tenses, subject=subject, negations=reason)
        if reason or not _lasts(clause):
            return conjunction, clause


# Adverbials


def with_adverbials(rng: random.Random, clause: Clause, *, fronting: bool = True) -> Clause:
    """Return the clause with or without a place and a time. One of them may open the clause."""
    if clause.verb.complement == "nothing" or (clause.verb.complement == "object" and not clause.negated):
        clause = _with_place(rng, clause, fronting=fronting)
    clause = with_time(rng, clause, 20) if fronting else clause
    return with_time(rng, clause, 20, at_end=True)


def _with_place(rng: random.Random, clause: Clause, *, fronting: bool) -> Clause:
    if not chance(rng, 50 if clause.verb.complement == "nothing" else 20) or _lasts(clause):
        return clause
    companion = company(rng, clause.verb, clause.subject)
    if companion and chance(rng, 50):
        return replace(clause, place=companion)
    return replace(clause, place=place(rng), opening="place" if fronting and chance(rng, 30) else None)


def with_time(rng: random.Random, clause: Clause, percent: int, *, at_end: bool = False) -> Clause:
    """Return the clause with or without a time, in front or `at_end`.

    A clause that has an adverb, or that describes a lasting state, gets none.
    """
    if clause.time or clause.frequency or clause.opening or _lasts(clause) or not chance(rng, percent):
        return clause
    times = [time for time in lexicon.TIMES if _goes_with(time, clause)]
    time = rng.choice([time for time in times if not (clause.negated and time.tense == "present")])
    return replace(clause, time=time, opening=None if at_end else "time")


def _lasts(clause: Clause) -> bool:
    """Check for a lasting state, which takes no time and no frequency: the door is red, he lives in Rome."""
    quality = clause.quality
    return clause.verb.english in lexicon.LASTING or (
        quality is not None and quality.adjective.english not in lexicon.PASSING
    )


def _goes_with(time: Adverb, clause: Clause) -> bool:
    match time.tense:
        case "future":
            return clause.modal is not None
        case "present":
            return clause.tense not in ("past", lexicon.FUTURE)
        case "past":
            return clause.tense == "past"
        case _:
            return True


# Relative clauses


def related(rng: random.Random, clause: Clause) -> Clause:
    """Return the clause with a relative clause on its subject, its object or both, where one is possible."""
    clause = with_subject_relative(rng, clause) if chance(rng, 60) else clause
    return with_object_relative(rng, clause) if chance(rng, 70) else clause


def with_subject_relative(rng: random.Random, clause: Clause) -> Clause:
    subject = clause.subject
    if not _takes_relative(subject):
        return clause
    return replace(clause, subject=replace(subject, relative=_relative(rng, subject)))


def with_object_relative(rng: random.Random, clause: Clause) -> Clause:
    """Add the relative clause only where nothing follows the object, so that the reading is unambiguous."""
    if not clause.objects or clause.place or clause.time:
        return clause
    *others, last = clause.objects
    if not _takes_relative(last):
        return clause
    return replace(clause, objects=(*others, replace(last, relative=_relative(rng, last))))


def _takes_relative(phrase: NounPhrase) -> TypeGuard[NounGroup]:
    """Check for a phrase that a relative clause can identify. "my dog that sleeps" is excluded: "my" identifies it."""
    if not isinstance(phrase, NounGroup):
        return False
    is_unidentified = phrase.owner is None and phrase.determiner not in (*lexicon.DEFINITE, lexicon.NO)
    return is_unidentified and any(phrase.noun.kind in verb.objects for verb in verbs("object"))


def _relative(rng: random.Random, head: NounGroup) -> Clause:
    """Return a relative clause, whose pronoun is its subject or its object: who sings, that the woman buys."""
    pronoun = Fronted(relative_pronoun(head), head.noun.kind)
    tenses = ("present", "past", "modal")
    if is_alive(pronoun) and chance(rng, 50):
        return make_clause(rng, ("nothing", "object", "object"), tenses=tenses, subject=pronoun)
    verb = rng.choice([verb for verb in verbs("object") if pronoun.kind in verb.objects])
    subject = noun_phrase(rng, verb.subjects, definite=True, beside=head)
    return Clause(subject, verb, _tense(rng, [tense for tense in tenses if allows(verb, tense)]), (pronoun,))
