"""A bilingual grammar for `transduce demo`: any number of English sentences, each with its German translation.

A sentence starts as a tree of choices (`syntax`) over a small dictionary (`lexicon`). `english` and `german` then write
the tree. The grammar makes only sentences that have one reading, so that an English sentence has exactly one German
translation:

- An object with a relative clause ends its clause.
- An adverb at the end belongs to the last clause.
- "and" never follows a clause that ends in another clause.
"""

import random
from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from transduce.demo import lexicon
from transduce.demo.clauses import (
    allows,
    make_clause,
    matching_tenses,
    related,
    subordinate_clause,
    with_adverbials,
    with_object_relative,
    with_subject_relative,
    with_time,
)
from transduce.demo.english import english_sentence
from transduce.demo.german import german_sentence
from transduce.demo.inflection import Modal, NounKind, Verb
from transduce.demo.phrases import adjectives, chance, kind_of, objects, pick, verbs
from transduce.demo.syntax import Clause, Fronted, SentenceTree, person_of

MAX_WORDS = 14  # of an ordinary sentence, in either language
MAX_LONGER_WORDS = 28


def sentence(rng: random.Random, *, longer: bool = False) -> tuple[str, str]:
    """Return a random English sentence and its German translation.

    An ordinary sentence has at most MAX_WORDS words in each language. A longer one has more than MAX_WORDS in both,
    and at most MAX_LONGER_WORDS. Both use the same constructions.
    """
    fewest, most = (MAX_WORDS + 1, MAX_LONGER_WORDS) if longer else (1, MAX_WORDS)
    while True:
        tree = pick(rng, LONGER if longer else ORDINARY)(rng)
        pair = english_sentence(tree), german_sentence(tree)
        if all(fewest <= len(side.split()) <= most for side in pair):
            return pair


def corpus(seed: int, n: int, *, longer: bool = False, exclude: Container[str] = ()) -> list[tuple[str, str]]:
    """Return `n` pairs whose English sentences are distinct and not in `exclude`. The arguments fix the result."""
    rng = random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < n:
        english, german = sentence(rng, longer=longer)
        if english not in exclude:
            pairs[english] = german
    return list(pairs.items())


def lexeme_count() -> int:
    """Return the number of words in the dictionary. All forms of a word count once."""
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
    """Return the number of sentences of a single template: The <adjective> <noun> <verb> the <adjective> <noun>.

    The verb is in the present tense and both nouns are singular or plural. The verb allows the nouns, and each noun
    allows its adjective. No two of these sentences have the same English, because no two words share a form.
    """

    def phrases(kinds: tuple[NounKind, ...]) -> int:
        return sum((2 if noun.plurals else 1) * len(adjectives(kind)) for kind in kinds for noun in lexicon.NOUNS[kind])

    return sum(phrases(verb.subjects) * phrases(verb.objects) for verb in verbs("object"))


# Sentences


def _statement(rng: random.Random) -> SentenceTree:
    return SentenceTree((with_adverbials(rng, make_clause(rng)),))


def _with_relative(rng: random.Random) -> SentenceTree:
    """Return a clause with a relative clause: the dog that the girl loves sleeps, I see the woman who sings."""
    clause = make_clause(rng, ("nothing", "object", "object"))
    clause = with_subject_relative(rng, clause) if chance(rng, 45) else with_object_relative(rng, clause)
    return SentenceTree((with_time(rng, clause, 15),))


def _question(rng: random.Random) -> SentenceTree:
    """Return a question: yes or no, or with where, when, why, who or what."""
    clause = make_clause(rng, negations=False)
    while person_of(clause.subject) == "I":  # questions about one's own actions are rare
        clause = make_clause(rng, negations=False)
    verb = clause.verb
    question = pick(rng, {"whether": 50, "adverb": 25, "subject": 12, "object": 13})
    if question == "adverb" and verb.complement in ("nothing", "object", "two objects"):
        clause = replace(clause, question_word=rng.choice(lexicon.QUESTION_ADVERBS), frequency=None)
    elif question == "subject" and verb.complement in ("nothing", "object", "two objects"):
        who = Fronted(lexicon.WHO, "person")
        clause = replace(clause, subject=who, objects=objects(rng, verb, who))
    elif question == "object" and verb.complement == "object":
        people = "person" in verb.objects
        what = Fronted(lexicon.WHO, "person") if people else Fronted(lexicon.WHAT, "thing")
        clause = replace(clause, objects=(what,))
    return SentenceTree((clause,), question=True)


def _report(rng: random.Random) -> SentenceTree:
    """Return a clause with "that" or "whether": the teacher believes that ..., my sister asks whether ..."""
    report = make_clause(rng, ("that", "that", "whether"))
    content = with_adverbials(rng, make_clause(rng, tenses=matching_tenses(report)), fronting=False)
    return SentenceTree((with_time(rng, replace(report, complement=content), 15),))


def _with_infinitive(rng: random.Random) -> SentenceTree:
    """Return a clause with an infinitive: the boy tries to ...

    The infinitive has an object or a place, because only then does German always take a comma.
    """
    main = make_clause(rng, ("to",), tenses=("present", "past"))
    willed = ("modal",)  # a verb that goes with "want to" also goes with "try to"
    aim = make_clause(rng, ("object", "two objects", "place"), tenses=willed, subject=main.subject, negations=False)
    return SentenceTree((with_time(rng, replace(main, complement=replace(aim, tense="present", frequency=None)), 20),))


def _with_subordinate(rng: random.Random) -> SentenceTree:
    """Return a main clause with a clause of because, although, while or if before or after it."""
    main = make_clause(rng)
    subordinate = subordinate_clause(rng, main)
    if chance(rng, 45):
        return SentenceTree((with_time(rng, main, 15, at_end=True),), before=subordinate)
    return SentenceTree((with_time(rng, main, 10),), after=subordinate)


def _two_predicates(rng: random.Random) -> SentenceTree:
    """Return a clause of two predicates that share subject and auxiliary: the artist sings and opens the window."""
    while True:
        first = make_clause(rng, ("nothing", "object"), tenses=("present", "past", "modal"), negations=False)
        first = replace(first, frequency=None)
        fitting = [verb for verb in verbs("nothing", "object") if _can_share(first, verb)]
        if fitting and first.verb != lexicon.HAVE:
            break
    verb = rng.choice(fitting)
    second = Clause(first.subject, verb, first.tense, objects(rng, verb, first.subject))
    return SentenceTree((replace(first, second=second),))


def _can_share(first: Clause, verb: Verb) -> bool:
    """Check that `verb` can follow "and" in the clause: he sang and danced, er hat gesungen und getanzt."""
    return (
        kind_of(first.subject) in verb.subjects
        and verb not in (first.verb, lexicon.HAVE)
        and verb.auxiliary == first.verb.auxiliary
        and allows(verb, "modal" if isinstance(first.tense, Modal) else first.tense)
    )


def _two_clauses(rng: random.Random) -> SentenceTree:
    first = make_clause(rng)
    second = make_clause(rng, tenses=matching_tenses(first))
    return SentenceTree((with_time(rng, first, 20), second), joint=rng.choice(lexicon.JOINTS))


def _long_with_subordinate(rng: random.Random) -> SentenceTree:
    main = related(rng, make_clause(rng))
    before, after = subordinate_clause(rng, main), subordinate_clause(rng, main)
    before, after = (before[0], related(rng, before[1])), (after[0], related(rng, after[1]))
    match pick(rng, {"before": 35, "after": 35, "both": 30}):
        case "before":
            return SentenceTree((main,), before=before)
        case "after":
            return SentenceTree((with_time(rng, main, 40),), after=after)
        case _:
            return SentenceTree((main,), before=before, after=after)


def _long_two_clauses(rng: random.Random) -> SentenceTree:
    first = with_subject_relative(rng, make_clause(rng))
    second = related(rng, make_clause(rng, tenses=matching_tenses(first)))
    after = subordinate_clause(rng, second) if chance(rng, 40) else None
    return SentenceTree((with_time(rng, first, 30), second), joint=rng.choice(lexicon.JOINTS), after=after)


def _long_report(rng: random.Random) -> SentenceTree:
    report = make_clause(rng, ("that", "that", "whether"))
    content = related(rng, make_clause(rng, tenses=matching_tenses(report)))
    main = replace(report, complement=content)
    main = with_subject_relative(rng, main) if chance(rng, 50) else main
    match pick(rng, {"alone": 30, "before": 35, "after": 35}):
        case "alone":
            return SentenceTree((with_time(rng, main, 30),))
        case "before":
            return SentenceTree((main,), before=subordinate_clause(rng, main))
        case _:
            return SentenceTree((with_time(rng, main, 30),), after=subordinate_clause(rng, content))


ORDINARY: dict[Callable[[random.Random], SentenceTree], int] = {  # the constructions and their weights
    _statement: 38,
    _with_relative: 11,
    _question: 12,
    _report: 9,
    _with_subordinate: 13,
    _with_infinitive: 6,
    _two_predicates: 6,
    _two_clauses: 5,
}
LONGER: dict[Callable[[random.Random], SentenceTree], int] = {  # the same constructions, nested
    _long_with_subordinate: 40,
    _long_two_clauses: 25,
    _long_report: 35,
}
