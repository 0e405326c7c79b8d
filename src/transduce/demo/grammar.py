"""A bilingual grammar for `transduce demo`: as many English sentences as wanted, each with its German.

A sentence begins as a tree of choices (`syntax`) over a small dictionary (`lexicon`), and both languages are
read off the tree. The choices keep to what makes some sense and to what has one reading, so that an English sentence
has exactly one German: nothing is attached where English would leave open to what. An object with a relative clause
ends its clause; an adverb at the end belongs to the last clause; "and" joins no clause to one that ends in another.
"""

import random
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import cache

from transduce.demo import lexicon
from transduce.demo.inflection import Adverb, Complement, Kind, Modal, Verb
from transduce.demo.phrases import (
    adjectives,
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
from transduce.demo.syntax import (
    Clause,
    Fronted,
    NounPhrase,
    Phrase,
    Sentence,
    Tense,
    english_sentence,
    german_sentence,
    person_of,
    relative_pronoun,
)

MAX_WORDS = 14  # of an ordinary sentence, in either language
MAX_LONGER_WORDS = 28

TENSES = {"present": 46, "past": 30, "modal": 18, "future": 6}  # and how often; modal: can, must, want to ...
COMPLEMENTS: dict[Complement, int] = {
    "nothing": 16, "object": 44, "two objects": 11, "place": 7, "direction": 7, "predicate": 18,
}  # fmt: skip


def sentence(rng: random.Random, *, longer: bool = False) -> tuple[str, str]:
    """A random English sentence and its German.

    An ordinary one has at most MAX_WORDS words in each language; a longer one has more than that in both, and at
    most MAX_LONGER_WORDS. Both are built from the same constructions.
    """
    fewest, most = (MAX_WORDS + 1, MAX_LONGER_WORDS) if longer else (1, MAX_WORDS)
    while True:
        tree = pick(rng, LONGER if longer else ORDINARY)(rng)
        pair = english_sentence(tree), german_sentence(tree)
        if all(fewest <= len(side.split()) <= most for side in pair):
            return pair


def corpus(seed: int, n: int, *, longer: bool = False, exclude: Container[str] = ()) -> list[tuple[str, str]]:
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
        lexicon.TIMES, lexicon.FREQUENCIES, [lexicon.NEVER, lexicon.VERY],
        lexicon.SUBORDINATORS, lexicon.JOINTS, lexicon.QUESTION_ADVERBS,
        lexicon.AT["building"], [lexicon.ON, lexicon.INTO, lexicon.TO], list(lexicon.COMPANY),
    )  # fmt: skip
    return sum(len(table) for table in tables)


def distinct_pairs_lower_bound() -> int:
    """How many sentences one template alone yields: The <adjective> <noun> <verb> the <adjective> <noun>.

    Present tense, singular or plural on both sides; the nouns are those the verb allows, the adjectives those the
    noun allows. No two of these sentences have the same English, since no two words have a form in common.
    """

    def phrases(kinds: tuple[Kind, ...]) -> int:
        return sum((2 if noun.plurals else 1) * len(adjectives(kind)) for kind in kinds for noun in lexicon.NOUNS[kind])

    return sum(phrases(verb.subjects) * phrases(verb.objects) for verb in verbs("object"))


# Sentences


def _plain(rng: random.Random) -> Sentence:
    return Sentence((_with_adverbials(rng, _clause(rng)),))


def _relating(rng: random.Random) -> Sentence:
    """The dog that the girl loves sleeps; I see the woman who sings."""
    clause = _clause(rng, ("nothing", "object", "object"))
    clause = _with_subject_relative(rng, clause) if chance(rng, 45) else _with_object_relative(rng, clause)
    return Sentence((_with_time(rng, clause, 15),))


def _asking(rng: random.Random) -> Sentence:
    """Yes or no; where, when, why; who or what."""
    clause = _clause(rng, denials=False)
    while person_of(clause.subject) == "I":  # who, if not I, should know?
        clause = _clause(rng, denials=False)
    verb = clause.verb
    asked = pick(rng, {"whether": 50, "adverb": 25, "subject": 12, "object": 13})
    if asked == "adverb" and verb.complement in ("nothing", "object", "two objects"):
        clause = replace(clause, opening=rng.choice(lexicon.QUESTION_ADVERBS), frequency=None)
    elif asked == "subject" and verb.complement in ("nothing", "object", "two objects"):
        who = Fronted(lexicon.WHO, "person")
        clause = replace(clause, subject=who, objects=objects(rng, verb, who))
    elif asked == "object" and verb.complement == "object":
        people = "person" in verb.objects
        what = Fronted(lexicon.WHO, "person") if people else Fronted(lexicon.WHAT, "thing")
        clause = replace(clause, objects=(what,))
    return Sentence((clause,), question=True)


def _reporting(rng: random.Random) -> Sentence:
    """The teacher believes that ...; my sister asks whether ..."""
    report = _clause(rng, ("that", "that", "whether"))
    content = _with_adverbials(rng, _clause(rng, tenses=_matching_tenses(report)), fronting=False)
    return Sentence((_with_time(rng, replace(report, complement=content), 15),))


def _intending(rng: random.Random) -> Sentence:
    """The boy tries to ... (with an object or a place: only then is the comma in German beyond dispute)."""
    main = _clause(rng, ("to",), tenses=("present", "past"))
    willed = ("modal",)  # what one can want, one can try
    aim = _clause(rng, ("object", "two objects", "place"), tenses=willed, subject=main.subject, denials=False)
    return Sentence((_with_time(rng, replace(main, complement=replace(aim, tense="present", frequency=None)), 20),))


def _subordinating(rng: random.Random) -> Sentence:
    """A main clause, and before or after it one with because, although, while or if."""
    main = _clause(rng)
    subordinate = _subordinate(rng, main)
    if chance(rng, 45):
        return Sentence((_with_time(rng, main, 15, at_end=True),), before=subordinate)
    return Sentence((_with_time(rng, main, 10),), after=subordinate)


def _two_predicates(rng: random.Random) -> Sentence:
    """The artist sings and opens the window: one subject, one auxiliary."""
    while True:
        first = _clause(rng, ("nothing", "object"), tenses=("present", "past", "modal"), denials=False)
        first = replace(first, frequency=None)
        fitting = [verb for verb in verbs("nothing", "object") if _can_share(first, verb)]
        if fitting and first.verb != lexicon.HAVE:
            break
    verb = rng.choice(fitting)
    second = Clause(first.subject, verb, first.tense, objects(rng, verb, first.subject))
    return Sentence((replace(first, second=second),))


def _can_share(first: Clause, verb: Verb) -> bool:
    """Whether `verb` can follow "and" in the clause: he sang and danced, er hat gesungen und getanzt."""
    return (
        kind_of(first.subject) in verb.subjects
        and verb not in (first.verb, lexicon.HAVE)
        and verb.auxiliary == first.verb.auxiliary
        and _allows(verb, "modal" if isinstance(first.tense, Modal) else first.tense)
    )


def _two_clauses(rng: random.Random) -> Sentence:
    first = _clause(rng)
    second = _clause(rng, tenses=_matching_tenses(first))
    return Sentence((_with_time(rng, first, 20), second), joint=rng.choice(lexicon.JOINTS))


def _long_subordinating(rng: random.Random) -> Sentence:
    main = _related(rng, _clause(rng))
    before, after = _subordinate(rng, main), _subordinate(rng, main)
    before, after = (before[0], _related(rng, before[1])), (after[0], _related(rng, after[1]))
    match pick(rng, {"before": 35, "after": 35, "both": 30}):
        case "before":
            return Sentence((main,), before=before)
        case "after":
            return Sentence((_with_time(rng, main, 40),), after=after)
        case _:
            return Sentence((main,), before=before, after=after)


def _long_two_clauses(rng: random.Random) -> Sentence:
    first = _with_subject_relative(rng, _clause(rng))
    second = _related(rng, _clause(rng, tenses=_matching_tenses(first)))
    after = _subordinate(rng, second) if chance(rng, 40) else None
    return Sentence((_with_time(rng, first, 30), second), joint=rng.choice(lexicon.JOINTS), after=after)


def _long_reporting(rng: random.Random) -> Sentence:
    report = _clause(rng, ("that", "that", "whether"))
    content = _related(rng, _clause(rng, tenses=_matching_tenses(report)))
    main = replace(report, complement=content)
    main = _with_subject_relative(rng, main) if chance(rng, 50) else main
    match pick(rng, {"alone": 30, "before": 35, "after": 35}):
        case "alone":
            return Sentence((_with_time(rng, main, 30),))
        case "before":
            return Sentence((main,), before=_subordinate(rng, main))
        case _:
            return Sentence((_with_time(rng, main, 30),), after=_subordinate(rng, content))


ORDINARY: dict[Callable[[random.Random], Sentence], int] = {  # the constructions, and how often each is chosen
    _plain: 38,
    _relating: 11,
    _asking: 12,
    _reporting: 9,
    _subordinating: 13,
    _intending: 6,
    _two_predicates: 6,
    _two_clauses: 5,
}
LONGER: dict[Callable[[random.Random], Sentence], int] = {  # the same within one another
    _long_subordinating: 40,
    _long_two_clauses: 25,
    _long_reporting: 35,
}


# Clauses


def _clause(
    rng: random.Random,
    complements: tuple[Complement, ...] | None = None,
    *,
    tenses: tuple[str, ...] = tuple(TENSES),
    subject: NounPhrase | None = None,
    denials: bool = True,
) -> Clause:
    """A clause without adverbials: a verb, and a subject and objects that make sense with it."""
    complement = rng.choice(complements) if complements else pick(rng, COMPLEMENTS)
    verb = rng.choice(_fitting_verbs(complement, kind_of(subject) if subject else None, tenses))
    tense = _tense(rng, [tense for tense in tenses if _allows(verb, tense)])
    denial = _denial(rng, tense) if denials else None
    definite = denial in ("not", "never") or complement == "predicate"
    subject = subject or noun_phrase(rng, verb.subjects, definite=definite)
    clause = Clause(subject, verb, tense, objects(rng, verb, subject, definite=definite), negated=denial == "not")
    clause = _completed(rng, _with_no(rng, clause) if denial == "no" else clause)
    return replace(clause, frequency=_frequency(rng, clause, denial))


@cache
def _fitting_verbs(complement: Complement, subject: Kind | None, tenses: tuple[str, ...]) -> tuple[Verb, ...]:
    return tuple(
        verb
        for verb in verbs(complement)
        if (subject is None or subject in verb.subjects) and any(_allows(verb, tense) for tense in tenses)
    )


def _allows(verb: Verb, tense: str) -> bool:
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


def _matching_tenses(clause: Clause) -> tuple[str, ...]:
    """The tenses of a clause beside or under this one: what is past stays with what is past."""
    return ("past",) if clause.tense == "past" else ("present", "modal")


def _denial(rng: random.Random, tense: Tense) -> str | None:
    """At most one denial to a clause, and none with "must": that would not be "nicht müssen"."""
    if isinstance(tense, Modal) and not tense.negatable:
        return None
    return pick(rng, {None: 78, "not": 13, "never": 3, "no": 6})


def _with_no(rng: random.Random, clause: Clause) -> Clause:
    """No child sleeps; the child eats no bread."""
    *others, last = clause.objects or (clause.subject,)
    if not isinstance(last, Phrase):
        return clause
    denied = replace(last, determiner=lexicon.NO, owner=None)
    return replace(clause, objects=(*others, denied)) if clause.objects else replace(clause, subject=denied)


def _frequency(rng: random.Random, clause: Clause, denial: str | None) -> Adverb | None:
    if not is_alive(clause.subject) or _lasts(clause):
        return None
    if denial == "never":
        return lexicon.NEVER
    return rng.choice(lexicon.FREQUENCIES) if denial is None and chance(rng, 9) else None


def _completed(rng: random.Random, clause: Clause) -> Clause:
    """The clause with what its verb needs besides objects."""
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


def _subordinate(rng: random.Random, main: Clause) -> tuple[Adverb, Clause]:
    """because, although, while or if with its clause; "while" and "if" are for what happens, not for what is."""
    past = main.tense == "past"
    of_reason = [word for word in lexicon.SUBORDINATORS if word.english in ("because", "although")]
    of_time = [word for word in lexicon.SUBORDINATORS if word not in of_reason and _goes_with(word, main.tense)]
    conjunction = rng.choice(of_reason if _lasts(main) else [*of_reason, *of_time])
    reason = conjunction in of_reason
    tenses = _matching_tenses(main) if reason else ("past" if past else "present",)
    subject = rng.choice(lexicon.PRONOUNS) if chance(rng, 30) else None
    while True:
        clause = _clause(rng, tenses=tenses, subject=subject, denials=reason)
        if reason or not _lasts(clause):
            return conjunction, clause


# Adverbials


def _with_adverbials(rng: random.Random, clause: Clause, *, fronting: bool = True) -> Clause:
    """Perhaps a place, perhaps a time, one of them perhaps in front."""
    if clause.verb.complement == "nothing" or (clause.verb.complement == "object" and not clause.negated):
        clause = _with_place(rng, clause, fronting=fronting)
    clause = _with_time(rng, clause, 20) if fronting else clause
    return _with_time(rng, clause, 20, at_end=True)


def _with_place(rng: random.Random, clause: Clause, *, fronting: bool) -> Clause:
    if not chance(rng, 50 if clause.verb.complement == "nothing" else 20) or _lasts(clause):
        return clause
    companion = company(rng, clause.verb, clause.subject)
    if companion and chance(rng, 50):
        return replace(clause, place=companion)
    return replace(clause, place=place(rng), opening="place" if fronting and chance(rng, 30) else None)


def _with_time(rng: random.Random, clause: Clause, percent: int, *, at_end: bool = False) -> Clause:
    """The clause, perhaps with a time in front or `at_end`, unless it has an adverb or holds at all times."""
    if clause.time or clause.frequency or clause.opening or _lasts(clause) or not chance(rng, percent):
        return clause
    times = [time for time in lexicon.TIMES if _goes_with(time, clause.tense)]
    time = rng.choice([time for time in times if not (clause.negated and time.tense == "present")])
    return replace(clause, time=time, opening=None if at_end else "time")


def _lasts(clause: Clause) -> bool:
    """The door is red, he lives in Rome: not today, and not often."""
    quality = clause.quality
    return clause.verb.english in lexicon.LASTING or (
        quality is not None and quality.adjective.english not in lexicon.PASSING
    )


def _goes_with(time: Adverb, tense: Tense) -> bool:
    match time.tense:
        case "future":
            return isinstance(tense, Modal)
        case "present":
            return tense == "present" or (isinstance(tense, Modal) and tense is not lexicon.FUTURE)
        case "past":
            return tense == "past"
        case _:
            return True


# Relative clauses


def _related(rng: random.Random, clause: Clause) -> Clause:
    """The clause with a relative clause to its subject, its object or both, where they can have one."""
    clause = _with_subject_relative(rng, clause) if chance(rng, 60) else clause
    return _with_object_relative(rng, clause) if chance(rng, 70) else clause


def _with_subject_relative(rng: random.Random, clause: Clause) -> Clause:
    subject = clause.subject
    if not isinstance(subject, Phrase) or not _takes_relative(subject):
        return clause
    return replace(clause, subject=replace(subject, relative=_relative(rng, subject)))


def _with_object_relative(rng: random.Random, clause: Clause) -> Clause:
    """Only where nothing follows the object, so that it is clear what belongs to which clause."""
    if not clause.objects or clause.place or clause.time:
        return clause
    *others, last = clause.objects
    if not isinstance(last, Phrase) or not _takes_relative(last):
        return clause
    return replace(clause, objects=(*others, replace(last, relative=_relative(rng, last))))


def _takes_relative(phrase: Phrase) -> bool:
    """Not "my dog that sleeps": what is known as mine needs no relative clause to be told apart."""
    told_apart = phrase.owner is None and phrase.determiner not in (*lexicon.DEFINITE, lexicon.NO)
    return told_apart and any(phrase.noun.kind in verb.objects for verb in verbs("object"))


def _relative(rng: random.Random, head: Phrase) -> Clause:
    """who sings, that the woman buys: the pronoun is the subject or the object of its clause."""
    pronoun = Fronted(relative_pronoun(head), head.noun.kind)
    tenses = ("present", "past", "modal")
    if is_alive(pronoun) and chance(rng, 50):
        return _clause(rng, ("nothing", "object", "object"), tenses=tenses, subject=pronoun)
    verb = rng.choice([verb for verb in verbs("object") if pronoun.kind in verb.objects])
    subject = noun_phrase(rng, verb.subjects, definite=True, beside=head)
    return Clause(subject, verb, _tense(rng, [tense for tense in tenses if _allows(verb, tense)]), (pronoun,))
