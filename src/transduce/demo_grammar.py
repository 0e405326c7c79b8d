"""A bilingual grammar for `transduce demo`: as many English sentences as wanted, each with its German.

Every sentence begins as a tree of choices (`demo_syntax`) over a small dictionary (`demo_lexicon`). The choices keep
to what makes sense, roughly, and to what has one reading: an English sentence has exactly one German. For that,
nothing is attached where English would leave it open. An object with a relative clause ends its clause; an adverb
at the end belongs to the last clause; clauses are only joined by "and" or "but" before any of them opens another one.
"""

import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from transduce import demo_lexicon as lexicon
from transduce.demo_inflection import (
    Adjective,
    Adverb,
    Complement,
    Determiner,
    Kind,
    Modal,
    Name,
    Noun,
    Pronoun,
    Verb,
)  # fmt: skip
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
    relative_pronoun,
)

T = TypeVar("T")

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
        return sum((2 if noun.plurals else 1) * len(_adjectives(noun.kind)) for noun in _nouns(kinds))

    return sum(phrases(verb.subjects) * phrases(verb.objects) for verb in _verbs("object"))


# Sentences


def _ordinary_sentence(rng: random.Random) -> Sentence:
    weights = {
        _plain: 38,
        _asking: 12,
        _reporting: 9,
        _subordinating: 13,
        _intending: 6,
        _two_predicates: 6,
        _two_clauses: 5,
        _relating: 11,
    }
    return _pick(rng, weights)(rng)


def _longer_sentence(rng: random.Random) -> Sentence:
    """The same constructions within one another."""
    weights = {_long_subordinating: 40, _long_two_clauses: 25, _long_reporting: 35}
    return _pick(rng, weights)(rng)


def _plain(rng: random.Random) -> Sentence:
    return Sentence((_with_adverbials(rng, _clause(rng)),))


def _relating(rng: random.Random) -> Sentence:
    """The dog that the girl loves sleeps; I see the woman who sings."""
    if rng.random() < 0.45:
        clause = _with_subject_relative(rng, _clause(rng, ("nothing", "object")))
    else:
        clause = _with_object_relative(rng, _clause(rng, ("object",)))
    return Sentence((_with_time(rng, clause, 0.15, at_end=False),))


def _asking(rng: random.Random) -> Sentence:
    """Yes or no; where, when, why; who or what."""
    clause = _clause(rng, denials=False)
    verb = clause.verb
    kind = _pick(rng, {"whether": 50, "adverb": 25, "subject": 12, "object": 13})
    if kind == "adverb" and verb.complement in ("nothing", "object", "two objects"):
        clause = replace(clause, opening=rng.choice(lexicon.QUESTION_ADVERBS))
    elif kind == "subject" and verb.complement in ("nothing", "object", "two objects"):
        who = Fronted(lexicon.WHO, "person")
        clause = replace(clause, subject=who, objects=_objects(rng, verb, who))
    elif kind == "object" and verb.complement == "object":
        what = _interrogative(verb.objects)
        clause = replace(clause, objects=(what,))
    return Sentence((clause,), question=True)


def _reporting(rng: random.Random) -> Sentence:
    """The teacher believes that ...; my sister asks whether ..."""
    content = _with_adverbials(rng, _clause(rng), fronting=False)
    return Sentence((_with_time(rng, _report(rng, content), 0.15, at_end=False),))


def _intending(rng: random.Random) -> Sentence:
    """The boy tries to ... (always with an object or a place: only then is the German comma beyond dispute)."""
    main = _clause(rng, ("to",), tenses=("present", "past"))
    aim = _clause(rng, ("object", "two objects", "place"), tenses=("present",), subject=main.subject, denials=False)
    main = replace(main, complement=replace(aim, frequency=None))
    return Sentence((_with_time(rng, main, 0.2, at_end=False),))


def _subordinating(rng: random.Random) -> Sentence:
    """A main clause, and before or after it one with because, although, while or if."""
    main = _clause(rng)
    subordinate = _subordinate(rng, main)
    if rng.random() < 0.45:
        return Sentence((_with_time(rng, main, 0.15, at_end=True),), before=subordinate)
    return Sentence((_with_time(rng, main, 0.1, at_end=False),), after=subordinate)


def _two_predicates(rng: random.Random) -> Sentence:
    """The artist sings and opens the window: one subject, one auxiliary."""
    first = _clause(rng, ("nothing", "object"), tenses=("present", "past", "modal"), denials=False)
    candidates = [verb for verb in _verbs("nothing", "object") if _can_share(first, verb)]
    if not candidates or first.frequency or first.verb.english == "have":
        return _two_predicates(rng)
    verb = rng.choice(candidates)
    second = Clause(first.subject, verb, first.tense, _objects(rng, verb, first.subject))
    return Sentence((replace(first, second=second),))


def _two_clauses(rng: random.Random) -> Sentence:
    first = _clause(rng)
    second = _clause(rng, tenses=_matching_tenses(first))
    return Sentence((_with_time(rng, first, 0.2, at_end=False), second), joint=rng.choice(lexicon.JOINTS))


def _long_subordinating(rng: random.Random) -> Sentence:
    main = _related(rng, _clause(rng))
    before, after = _subordinate(rng, main), _subordinate(rng, main)
    before, after = (before[0], _related(rng, before[1])), (after[0], _related(rng, after[1]))
    shape = _pick(rng, {"before": 35, "after": 35, "both": 30})
    if shape == "after":
        return Sentence((_with_time(rng, main, 0.4, at_end=False),), after=after)
    return Sentence((main,), before=before, after=after if shape == "both" else None)


def _long_two_clauses(rng: random.Random) -> Sentence:
    first = _with_subject_relative(rng, _clause(rng))
    second = _related(rng, _clause(rng, tenses=_matching_tenses(first)))
    after = _subordinate(rng, second) if rng.random() < 0.4 else None
    first = _with_time(rng, first, 0.3, at_end=False)
    return Sentence((first, second), joint=rng.choice(lexicon.JOINTS), after=after)


def _long_reporting(rng: random.Random) -> Sentence:
    main = _report(rng, _related(rng, _clause(rng)))
    main = _with_subject_relative(rng, main) if rng.random() < 0.5 else main
    subordinate = _subordinate(rng, main)
    shape = _pick(rng, {"alone": 30, "before": 35, "after": 35})
    if shape == "before":
        return Sentence((main,), before=subordinate)
    return Sentence((_with_time(rng, main, 0.3, at_end=False),), after=subordinate if shape == "after" else None)


# Clauses

ANY_TENSE = {"present": 46, "past": 30, "modal": 18, "future": 6}
SIMPLE: tuple[Complement, ...] = (
    *("nothing",) * 4, *("object",) * 12, *("two objects",) * 3, *("place",) * 2, *("into",) * 2, *("predicate",) * 4,
)  # fmt: skip


def _clause(
    rng: random.Random,
    complements: tuple[Complement, ...] = SIMPLE,
    *,
    tenses: tuple[str, ...] = tuple(ANY_TENSE),
    subject: NounPhrase | None = None,
    denials: bool = True,
) -> Clause:
    """A clause without adverbials: a verb, and a subject and objects that make sense with it."""
    complement = rng.choice(complements)
    kind = _kind(subject) if subject else None
    verb = rng.choice([verb for verb in _verbs(complement) if kind is None or kind in verb.subjects])
    tense = _tense(rng, verb, tenses)
    denial = _denial(rng, tense) if denials else None
    subject = subject or _noun_phrase(rng, verb.subjects, definite=denial in ("not", "never"))
    clause = Clause(
        subject, verb, tense, _objects(rng, verb, subject, definite=denial in ("not", "never")),
        negated=denial == "not",
        frequency=_frequency(rng, denial, subject),
    )  # fmt: skip
    if denial == "no":
        clause = _with_no(rng, clause)
    return _completed(rng, clause)


def _denial(rng: random.Random, tense: Tense) -> str | None:
    """At most one denial to a clause, and none with "must": that would be "nicht dürfen"."""
    if isinstance(tense, Modal) and not tense.negatable:
        return None
    return _pick(rng, {None: 78, "not": 13, "never": 3, "no": 6})


def _frequency(rng: random.Random, denial: str | None, subject: NounPhrase) -> Adverb | None:
    if denial == "never":
        return lexicon.NEVER
    return rng.choice(lexicon.FREQUENCIES) if denial is None and _is_alive(subject) and rng.random() < 0.09 else None


def _with_no(rng: random.Random, clause: Clause) -> Clause:
    """No child sleeps; the child eats no bread."""
    if clause.objects and rng.random() < 0.7:
        *others, last = clause.objects
        return replace(clause, objects=(*others, _denied(last)))
    return replace(clause, subject=_denied(clause.subject))


def _denied(phrase: NounPhrase) -> NounPhrase:
    return replace(phrase, determiner=lexicon.NO, owner=None) if isinstance(phrase, Phrase) else phrase


def _completed(rng: random.Random, clause: Clause) -> Clause:
    """The clause with what its verb needs besides objects."""
    match clause.verb.complement:
        case "place":
            return replace(clause, place=_city(rng) if rng.random() < 0.25 else _place(rng))
        case "into":
            return replace(clause, place=_direction(rng, clause.verb))
        case "predicate" if _kind(clause.subject) in (*lexicon.ALIVE, *lexicon.PORTABLE) and rng.random() < 0.3:
            return replace(clause, place=_place(rng))
        case "predicate":
            return replace(clause, quality=_quality(rng, _adjectives(_kind(clause.subject)), very=0.25))
    return clause


def _tense(rng: random.Random, verb: Verb, tenses: tuple[str, ...]) -> Tense:
    """"modal" and "future" stand for a verb such as can, or will."""
    if verb.complement in ("predicate", "that", "whether"):
        tenses = tuple(tense for tense in tenses if tense != "modal") or ("present",)
    if verb.past is None:
        tenses = tuple(tense for tense in tenses if tense != "past") or ("present",)
    match _pick(rng, {tense: ANY_TENSE[tense] for tense in tenses}):
        case "modal":
            return rng.choice(lexicon.MODALS)
        case "future":
            return lexicon.FUTURE
        case "past":
            return "past"
        case _:
            return "present"


def _matching_tenses(clause: Clause) -> tuple[str, ...]:
    """The tenses of a clause beside this one: what is past stays with what is past."""
    return ("past",) if clause.tense == "past" else ("present", "modal")


def _subordinate(rng: random.Random, main: Clause) -> tuple[Adverb, Clause]:
    """because, although, while or if, and its clause; "if" and "while" keep the tense."""
    present = main.tense != "past"
    conjunction = rng.choice([word for word in lexicon.SUBORDINATORS if present or word.tense != "present"])
    free = conjunction.english in ("because", "although")
    tenses = _matching_tenses(main) if free else ("present" if present else "past",)
    pronoun = rng.choice(lexicon.PRONOUNS) if rng.random() < 0.3 else None
    complements = SIMPLE if free else ("nothing", "object")
    return conjunction, _clause(rng, complements, tenses=tenses, subject=pronoun, denials=free)


def _report(rng: random.Random, content: Clause) -> Clause:
    """A clause of saying, believing, asking around another one."""
    return replace(_clause(rng, ("that", "that", "whether")), complement=content, frequency=None)


def _can_share(first: Clause, verb: Verb) -> bool:
    """Whether `verb` can follow "and" in the clause: he sang and danced, er hat gesungen und getanzt."""
    return (
        _kind(first.subject) in verb.subjects
        and verb.auxiliary == first.verb.auxiliary
        and verb not in (first.verb, lexicon.HAVE)
        and (verb.past is not None or first.tense != "past")
    )


# Adverbials


def _with_adverbials(rng: random.Random, clause: Clause, *, fronting: bool = True) -> Clause:
    """Perhaps a place, perhaps a time, one of them perhaps in front."""
    if clause.verb.complement == "nothing" or (clause.verb.complement == "object" and not clause.negated):
        clause = _with_place(rng, clause, fronting=fronting)
    if clause.opening:
        return clause
    clause = _with_time(rng, clause, 0.2 if fronting else 0.0, at_end=False)
    return clause if clause.time else _with_time(rng, clause, 0.2, at_end=True)


def _with_place(rng: random.Random, clause: Clause, *, fronting: bool) -> Clause:
    chance = rng.random()
    if chance > (0.5 if clause.verb.complement == "nothing" else 0.2):
        return clause
    companion = _companion(rng, clause)
    if companion and rng.random() < 0.5:
        return replace(clause, place=companion)
    opening = "place" if fronting and rng.random() < 0.3 else None
    return replace(clause, place=_place(rng), opening=opening)


def _companion(rng: random.Random, clause: Clause) -> Place | None:
    """with or without somebody, for somebody; None where the verb does not ask for it."""
    prepositions = [
        preposition
        for preposition, verbs in lexicon.COMPANIONS.items()
        if clause.verb.english in verbs and _kind(clause.subject) == "person"
    ]
    if not prepositions:
        return None
    return Place(rng.choice(prepositions), _noun_phrase(rng, ("person",), definite=True, beside=clause.subject))


def _with_time(rng: random.Random, clause: Clause, chance: float, *, at_end: bool) -> Clause:
    if clause.time or clause.frequency or clause.opening or rng.random() > chance or not _is_alive(clause.subject):
        return clause
    time = rng.choice([time for time in lexicon.TIMES if _goes_with(time, clause.tense)])
    return replace(clause, time=time, opening=None if at_end else "time")


def _goes_with(time: Adverb, tense: Tense) -> bool:
    match time.tense:
        case None:
            return True
        case "future":
            return isinstance(tense, Modal)
        case "present":
            return tense == "present" or (isinstance(tense, Modal) and tense is not lexicon.FUTURE)
        case "past":
            return tense == "past"


def _place(rng: random.Random) -> Place:
    kind: Kind = rng.choice(("building", "building", "area", "area", "surface"))
    match kind:
        case "building":
            preposition = rng.choice(lexicon.AT_BUILDINGS)
        case "surface":
            preposition = lexicon.ON
        case _:
            preposition = lexicon.IN
    return Place(preposition, _location(rng, (kind,)))


def _city(rng: random.Random) -> Place:
    return Place(lexicon.IN, rng.choice(lexicon.CITIES))


def _direction(rng: random.Random, verb: Verb) -> Place:
    if verb.english == "go" and rng.random() < 0.3:
        return Place(lexicon.TO, rng.choice(lexicon.CITIES))
    return Place(lexicon.INTO, _location(rng, ("building", "area")))


def _location(rng: random.Random, kinds: tuple[Kind, ...]) -> Phrase:
    noun = rng.choice(_nouns(kinds))
    determiner = _pick(rng, {lexicon.THE: 70, lexicon.THIS: 10, lexicon.OUR: 8, lexicon.A: 12})
    return Phrase(noun, False, determiner, _qualities(rng, noun, 0.35))


# Relative clauses


def _related(rng: random.Random, clause: Clause) -> Clause:
    """The clause with a relative clause to its subject, its object or both, where they can have one."""
    if rng.random() < 0.6:
        clause = _with_subject_relative(rng, clause)
    return _with_object_relative(rng, clause) if rng.random() < 0.7 else clause


def _with_subject_relative(rng: random.Random, clause: Clause) -> Clause:
    if clause.second or not isinstance(clause.subject, Phrase) or not _takes_relative(clause.subject):
        return clause
    return replace(clause, subject=replace(clause.subject, relative=_relative(rng, clause.subject)))


def _interrogative(kinds: tuple[Kind, ...]) -> Fronted:
    return Fronted(lexicon.WHO, "person") if "person" in kinds else Fronted(lexicon.WHAT, "thing")


def _with_object_relative(rng: random.Random, clause: Clause) -> Clause:
    """Only where nothing follows the object, so that it is clear what belongs to which clause."""
    if not clause.objects or clause.second or clause.place or clause.time:
        return clause
    *others, last = clause.objects
    if not isinstance(last, Phrase) or not _takes_relative(last):
        return clause
    return replace(clause, objects=(*others, replace(last, relative=_relative(rng, last))))


def _takes_relative(phrase: Phrase) -> bool:
    """Not "my dog that sleeps": what is already known as mine is not told apart by a relative clause."""
    told_apart = phrase.owner is None and phrase.determiner not in (*lexicon.DEFINITE, lexicon.NO)
    return told_apart and any(phrase.noun.kind in verb.objects for verb in _verbs("object"))


def _relative(rng: random.Random, head: Phrase) -> Clause:
    """who sings, that the woman buys: the pronoun is the subject or the object of its clause."""
    pronoun = Fronted(relative_pronoun(head), head.noun.kind)
    tenses = ("present", "past", "modal")
    if pronoun.kind in lexicon.ALIVE and rng.random() < 0.5:
        return _clause(rng, ("nothing", "object", "object"), tenses=tenses, subject=pronoun)
    verb = rng.choice([verb for verb in _verbs("object") if pronoun.kind in verb.objects])
    subject = _noun_phrase(rng, verb.subjects, definite=True)
    return Clause(subject, verb, _tense(rng, verb, tenses), (pronoun,))


# Noun phrases


def _noun_phrase(
    rng: random.Random, kinds: tuple[Kind, ...], *, definite: bool = False, beside: NounPhrase | None = None
) -> NounPhrase:
    """A pronoun, a name, two things or one, of the kinds; other than what stands `beside` it."""
    people = "person" in kinds
    shape = _pick(rng, {"pronoun": 14 * people, "name": 8 * people, "both": 5, "phrase": 73})
    if shape == "pronoun":
        return rng.choice([word for word in lexicon.PRONOUNS if not (word.speaker and _speaks(beside))])
    if shape == "name":
        return rng.choice([name for name in lexicon.NAMES if name != beside])
    if shape == "both":
        return _both(rng, kinds)
    return _phrase(rng, kinds, definite=definite)


def _both(rng: random.Random, kinds: tuple[Kind, ...]) -> Both:
    first, second = rng.sample(_nouns(kinds), 2)
    determiner = _pick(rng, {lexicon.THE: 75, rng.choice(lexicon.DEFINITE): 25})
    return Both(_bare(rng, first, determiner), _bare(rng, second, determiner))


def _phrase(rng: random.Random, kinds: tuple[Kind, ...], *, definite: bool = False) -> Phrase:
    noun = rng.choice(_nouns(kinds))
    plural = noun.plurals is not None and rng.random() < 0.35
    qualities = _qualities(rng, noun, 0.5)
    if noun.english not in lexicon.NOT_OWNED and rng.random() < 0.07:
        return Phrase(noun, plural, lexicon.THE, qualities, owner=_owner(rng, noun))
    return Phrase(noun, plural, _determiner(rng, noun, plural, definite), qualities)


def _objects(
    rng: random.Random, verb: Verb, subject: NounPhrase, *, definite: bool = False
) -> tuple[NounPhrase, ...]:
    if verb.complement == "object":
        return (_noun_phrase(rng, verb.objects, definite=definite, beside=subject),)
    if verb.complement == "two objects":
        receiver = _noun_phrase(rng, ("person",), definite=True, beside=subject)
        return receiver, _with_article(rng, _phrase(rng, verb.objects, definite=definite))
    return ()


def _with_article(rng: random.Random, phrase: Phrase) -> Phrase:
    """Never bare: "shows her books" is not to be taken for "shows her" and "books"."""
    return phrase if phrase.determiner else replace(phrase, determiner=lexicon.THE)


def _bare(rng: random.Random, noun: Noun, determiner: Determiner) -> Phrase:
    owned = determiner is lexicon.THE or noun.english not in lexicon.NOT_OWNED
    return Phrase(noun, False, determiner if owned else lexicon.THE, _qualities(rng, noun, 0.2))


def _owner(rng: random.Random, noun: Noun) -> Name | Phrase:
    if rng.random() < 0.5:
        return rng.choice(lexicon.NAMES)
    owner = rng.choice([person for person in lexicon.NOUNS["person"] if person is not noun])
    return Phrase(owner, False, lexicon.THE, _qualities(rng, owner, 0.2))


def _determiner(rng: random.Random, noun: Noun, plural: bool, definite: bool) -> Determiner | None:
    """The determiner of a noun phrase; None leaves a plural or a mass noun bare."""
    kind = _pick(rng, {"the": 48, "own": 24, "indefinite": 0 if definite else 20, "quantity": 0 if definite else 8})
    if kind == "own" and (noun.english not in lexicon.NOT_OWNED):
        return rng.choice(lexicon.DEFINITE)
    if kind == "indefinite":
        return lexicon.A if noun.plurals and not plural else None
    if kind == "quantity" and noun.plurals:
        return rng.choice([word for word in lexicon.QUANTIFIERS if word.english[plural]])
    return lexicon.THE


def _qualities(rng: random.Random, noun: Noun, chance: float) -> tuple[Quality, ...]:
    """One adjective with the given probability; now and then two."""
    if rng.random() > chance:
        return ()
    adjectives = _adjectives(noun.kind)
    if rng.random() < 0.1:
        first, second = rng.sample(adjectives, 2)
        return Quality(first), Quality(second)
    return (_quality(rng, adjectives, very=0.1),)


def _quality(rng: random.Random, adjectives: Sequence[Adjective], *, very: float) -> Quality:
    adjective = rng.choice(adjectives)
    return Quality(adjective, adjective.gradable and rng.random() < very)


# The dictionary, asked


def _nouns(kinds: tuple[Kind, ...]) -> list[Noun]:
    return [noun for kind in kinds for noun in lexicon.NOUNS[kind]]


def _adjectives(kind: Kind) -> list[Adjective]:
    return [adjective for adjective in lexicon.ADJECTIVES if kind in adjective.kinds]


def _verbs(*complements: Complement) -> list[Verb]:
    return [verb for verb in lexicon.VERBS if verb.complement in complements]


def _kind(phrase: NounPhrase) -> Kind:
    """What a phrase stands for; of two things, the first."""
    match phrase:
        case Phrase():
            return phrase.noun.kind
        case Both():
            return _kind(phrase.first)
        case Fronted():
            return phrase.kind
        case _:
            return "person"


def _is_alive(phrase: NounPhrase) -> bool:
    return _kind(phrase) in ("person", "animal")


def _speaks(phrase: NounPhrase | None) -> bool:
    return isinstance(phrase, Pronoun) and phrase.speaker


def _pick(rng: random.Random, weights: Mapping[T, int]) -> T:
    return rng.choices(list(weights), list(weights.values()))[0]
