"""The sentences of `transduce demo` as trees, and how a tree is said in English and in German.

A tree holds choices that are the same in both languages: who does what to whom, when, whether it is denied. Each
language then orders and inflects it by itself. German has the more to do: case, gender, the verb second or last,
the bracket that a separable verb, a participle or an infinitive closes, and commas around every clause.

Both languages yield lists of words, with "," as a word of its own; `spell` makes the sentence.
"""

from dataclasses import dataclass
from typing import Literal

from transduce.demo.inflection import (
    CONTRACTIONS,
    GERMAN_AUXILIARIES,
    GERMAN_PRETERITES,
    RELATIVE,
    STRONG,
    Adjective,
    Adverb,
    Case,
    City,
    Column,
    Determiner,
    Kind,
    Modal,
    Name,
    Noun,
    Person,
    Preposition,
    Pronoun,
    Verb,
    add_s,
)

Tense = Literal["present", "past"] | Modal
Order = Literal["statement", "question", "subordinate", "infinitive"]


@dataclass(frozen=True)
class Quality:
    """An adjective, perhaps with "very"."""

    adjective: Adjective
    very: bool = False


@dataclass(frozen=True)
class Phrase:
    """A noun with what belongs to it. An owner takes the determiner's place in English: the doctor's old car."""

    noun: Noun
    plural: bool
    determiner: Determiner | None = None
    qualities: tuple[Quality, ...] = ()
    owner: "Name | Phrase | None" = None
    relative: "Clause | None" = None

    @property
    def column(self) -> Column:
        """Where the tables of endings have it: its gender, or the plural."""
        return "plural" if self.plural else self.noun.gender


@dataclass(frozen=True)
class Both:
    """Two joined by "and"."""

    first: "Name | Phrase"
    second: "Name | Phrase"


@dataclass(frozen=True)
class Fronted:
    """A relative or interrogative pronoun: it opens its clause, and its place there stays empty."""

    pronoun: Pronoun
    kind: Kind


NounPhrase = Pronoun | Name | Phrase | Both | Fronted


@dataclass(frozen=True)
class Place:
    """A prepositional phrase; not always a place (with a friend, for the teacher)."""

    preposition: Preposition
    inside: City | NounPhrase


@dataclass(frozen=True)
class Clause:
    """A subject and what is said of it."""

    subject: NounPhrase
    verb: Verb
    tense: Tense
    objects: tuple[NounPhrase, ...] = ()
    quality: Quality | None = None  # after "be"
    place: Place | None = None
    time: Adverb | None = None
    frequency: Adverb | None = None  # often, never: before the verb in English
    negated: bool = False
    opening: Literal["time", "place"] | Adverb | None = None  # what stands first; an Adverb asks where, when, why
    complement: "Clause | None" = None  # of say that, ask whether, try to
    second: "Clause | None" = None  # another predicate of the same subject and tense: sings and dances


@dataclass(frozen=True)
class Sentence:
    """One clause or two, perhaps with a subordinate one before or after."""

    clauses: tuple[Clause, ...]  # one, or two joined by `joint`
    joint: Adverb | None = None
    before: tuple[Adverb, Clause] | None = None  # a subordinate clause in front
    after: tuple[Adverb, Clause] | None = None  # and one behind
    question: bool = False


def english_sentence(sentence: Sentence) -> str:
    """The sentence in English, ready to print."""
    words: list[str] = []
    if sentence.before:
        words += [sentence.before[0].english, *english_clause(sentence.before[1]), ","]
    words += english_clause(sentence.clauses[0], "question" if sentence.question else "statement")
    for clause in sentence.clauses[1:]:
        assert sentence.joint
        words += [",", sentence.joint.english, *english_clause(clause)]
    if sentence.after:
        words += [sentence.after[0].english, *english_clause(sentence.after[1])]
    return spell(words, "?" if sentence.question else ".")


def german_sentence(sentence: Sentence) -> str:
    """The sentence in German, ready to print."""
    front: list[str] = []
    if sentence.before:
        front = [sentence.before[0].german, *german_clause(sentence.before[1], "subordinate"), ","]
    words = german_clause(sentence.clauses[0], "question" if sentence.question else "statement", front=front)
    for clause in sentence.clauses[1:]:
        assert sentence.joint
        words += [*sentence.joint.german.split(), *german_clause(clause, "statement")]
    if sentence.after:
        words += [",", sentence.after[0].german, *german_clause(sentence.after[1], "subordinate")]
    return spell(words, "?" if sentence.question else ".")


def spell(words: list[str], end: str) -> str:
    """Join the words: a capital first, "an" before a vowel, one comma where two meet, none before the end."""
    text = ""
    for word, following in zip(words, [*words[1:], end], strict=True):
        if word == ",":
            text += "" if following in (",", end) else ","
        else:
            text += " " + ("an" if word == "a" and following[0] in "aeiou" else word)
    text = text.strip()
    return text[0].upper() + text[1:] + end


# Noun phrases


def person_of(phrase: NounPhrase) -> Person:
    """Which form of the verb it takes as a subject."""
    match phrase:
        case Fronted(pronoun=pronoun) | (Pronoun() as pronoun):
            return pronoun.person
        case Name():
            return "he"
        case Phrase():
            return "they" if phrase.plural else "he"
        case Both():
            return "they"


def is_definite(phrase: NounPhrase) -> bool:
    """Whether it names something known: the old man, Anna, her."""
    match phrase:
        case Both(first, second):
            return is_definite(first) and is_definite(second)
        case Phrase():
            return phrase.owner is not None or (phrase.determiner is not None and phrase.determiner.definite)
        case _:
            return True


def english_noun_phrase(phrase: NounPhrase, *, subject: bool) -> list[str]:
    """The phrase with its relative clause; subject: I and who, not me and whom."""
    match phrase:
        case Pronoun():
            return [phrase.english[0 if subject else 1]]
        case Fronted():
            return []
        case Name(name):
            return [name]
        case Both(first, second):
            return [*english_noun_phrase(first, subject=subject), "and", *english_noun_phrase(second, subject=subject)]
    words: list[str] = []
    if phrase.owner:
        *others, last = english_noun_phrase(phrase.owner, subject=True)
        words += [*others, last + "'s"]
    elif phrase.determiner:
        words += [phrase.determiner.english[phrase.plural]]
    for quality in phrase.qualities:
        words += english_quality(quality)
    words += [phrase.noun.english_form(phrase.plural)]
    return words + (english_clause(phrase.relative) if phrase.relative else [])


def german_noun_phrase(phrase: NounPhrase, case: Case) -> list[str]:
    """The phrase without its relative clause, which may have to wait for the end of the verbal bracket."""
    match phrase:
        case Pronoun():
            return [phrase.german[case]]
        case Fronted():
            return []
        case Name(name):
            return [name]
        case Both(first, second):
            return [*german_noun_phrase(first, case), "und", *german_noun_phrase(second, case)]
    words: list[str] = []
    ending = STRONG[case][phrase.column]
    if isinstance(phrase.owner, Name):
        words += [phrase.owner.name + "s"]
    elif phrase.determiner:
        words += [phrase.determiner.german_form(case, phrase.column)]
        ending = phrase.determiner.adjective_ending(case, phrase.column)
    for quality in phrase.qualities:
        words += [*(["sehr"] if quality.very else []), quality.adjective.stem + ending]
    words += [phrase.noun.german_form(case, phrase.plural)]
    return words + (german_noun_phrase(phrase.owner, "genitive") if isinstance(phrase.owner, Phrase) else [])


def german_relative(phrase: NounPhrase) -> list[str]:
    """The relative clause of a phrase between commas, if it has one."""
    if not isinstance(phrase, Phrase) or not phrase.relative:
        return []
    return [",", *german_clause(phrase.relative, "subordinate"), ","]


def relative_pronoun(phrase: Phrase) -> Pronoun:
    """who, whom or that; der, die, das in the gender and number of what it refers to."""
    english = ("who", "whom") if phrase.noun.kind == "person" else ("that", "that")
    return Pronoun(english, {case: RELATIVE[case][phrase.column] for case in RELATIVE}, person_of(phrase), False)


def english_quality(quality: Quality) -> list[str]:
    """old, very old."""
    return [*(["very"] if quality.very else []), quality.adjective.english]


def english_place(place: Place) -> list[str]:
    """The preposition and what it goes with."""
    if isinstance(place.inside, City):
        return [place.preposition.english, place.inside.english]
    return [place.preposition.english, *english_noun_phrase(place.inside, subject=False)]


def german_place(place: Place) -> list[str]:
    """The same in the case of the preposition, contracted where German does: im Garten."""
    if isinstance(place.inside, City):
        return [place.preposition.german, place.inside.german]
    words = german_noun_phrase(place.inside, place.preposition.case)
    together = f"{place.preposition.german} {words[0]}"
    return [CONTRACTIONS[together], *words[1:]] if together in CONTRACTIONS else [place.preposition.german, *words]


# English clauses


def english_clause(clause: Clause, order: Order = "subordinate") -> list[str]:
    """Subject, verb, objects, place, time; in a question the auxiliary comes before the subject."""
    front = _english_front(clause)
    subject = english_noun_phrase(clause.subject, subject=True)
    inverted = order == "question" and not isinstance(clause.subject, Fronted)
    auxiliary, verb = _english_verb(clause, inverted)
    if order == "infinitive":
        return ["to", clause.verb.english, *_english_rest(clause)]
    if clause.negated:
        auxiliary = ["cannot"] if auxiliary == ["can"] else [*auxiliary, "not"]
    frequency = [clause.frequency.english] if clause.frequency else []
    start = [*auxiliary, *subject] if inverted else [*subject, *auxiliary]
    return [*front, *start, *frequency, *verb, *_english_rest(clause)]


def _english_front(clause: Clause) -> list[str]:
    if isinstance(clause.subject, Fronted):
        return [clause.subject.pronoun.english[0]]
    for phrase in clause.objects:
        if isinstance(phrase, Fronted):
            return [phrase.pronoun.english[1]]
    if isinstance(clause.opening, Adverb):
        return [clause.opening.english]
    if clause.opening == "time" and clause.time:
        return [clause.time.english]
    return english_place(clause.place) if clause.opening == "place" and clause.place else []


def _english_verb(clause: Clause, inverted: bool) -> tuple[list[str], list[str]]:
    """The auxiliary, if any, and the verb that follows it. Questions and denials need one: do."""
    person, tense, base = person_of(clause.subject), clause.tense, clause.verb.english
    needs_do = inverted or clause.negated
    if isinstance(tense, Modal):
        if tense.auxiliary:
            return [tense.auxiliary], [*tense.link.split(), base]
        if needs_do:
            return ["does" if person == "he" else "do"], ["want", "to", base]
        return [], [add_s("want") if person == "he" else "want", "to", base]
    past = tense == "past"
    finite = clause.verb.english_past(person) if past else clause.verb.english_present(person)
    if base == "be":
        return [finite], []
    if needs_do:
        return ["did" if past else "does" if person == "he" else "do"], [base]
    return [], [finite]


def _english_rest(clause: Clause) -> list[str]:
    """What follows the verb."""
    particle = [clause.verb.particle] if clause.verb.particle else []
    objects = [word for phrase in clause.objects for word in english_noun_phrase(phrase, subject=False)]
    around = len(clause.objects) == 1 and isinstance(clause.objects[0], Pronoun) and clause.verb.particle_moves
    words = [*objects, *particle] if around else [*particle, *objects]
    words += english_quality(clause.quality) if clause.quality else []
    words += english_place(clause.place) if clause.place and clause.opening != "place" else []
    words += [clause.time.english] if clause.time and clause.opening != "time" else []
    if clause.complement:
        order: Order = "infinitive" if clause.verb.complement == "to" else "subordinate"
        link = [] if order == "infinitive" else [clause.verb.complement]
        words += [*link, *english_clause(clause.complement, order)]
    if clause.second:
        words += ["and", *_english_verb(clause.second, False)[1][-1:], *_english_rest(clause.second)]
    return words


# German clauses


def german_clause(clause: Clause, order: Order, *, front: list[str] | None = None) -> list[str]:
    """Verb second in a statement, first or second in a question, last in a subordinate clause.

    `front` is a subordinate clause that stands before the verb instead of the subject or an adverbial.
    """
    finite, closing = _german_verb(clause, order)
    middle, tail = _german_middle(clause), _german_tail(clause)
    subject = [*german_noun_phrase(clause.subject, "nominative"), *german_relative(clause.subject)]
    if order == "infinitive":
        return [*middle, *closing, *tail]
    pronoun = _german_fronted_pronoun(clause)
    if order == "subordinate":
        return [*pronoun, *subject, *middle, *closing, *finite, *tail]
    first = front or pronoun or _german_opening(clause)
    if first or order == "question":
        return [*first, *finite, *subject, *middle, *closing, *tail]
    return [*subject, *finite, *middle, *closing, *tail]


def _german_verb(clause: Clause, order: Order) -> tuple[list[str], list[str]]:
    """The finite verb, and what closes the bracket: a separated prefix, a participle or an infinitive."""
    verb, person, tense = clause.verb, person_of(clause.subject), clause.tense
    if order == "infinitive":
        return [], [verb.zu_infinitive]
    if isinstance(tense, Modal):
        return [tense.german[person]], [verb.infinitive]
    if tense == "past":
        if verb.german in GERMAN_PRETERITES:
            return [GERMAN_PRETERITES[verb.german][person]], []
        return [GERMAN_AUXILIARIES[verb.auxiliary][person]], [verb.participle]
    if order == "subordinate":
        return [verb.prefix + verb.german_present(person)], []
    return [verb.german_present(person)], [verb.prefix] if verb.prefix else []


def _german_middle(clause: Clause) -> list[str]:
    """Between the verbs: pronouns, time, what is known, "nicht" or "oft", what is new, place, quality."""
    objects = [
        (phrase, german_noun_phrase(phrase, case))
        for phrase, case in zip(clause.objects, clause.verb.cases, strict=True)
    ]
    pronouns = [words for phrase, words in objects if isinstance(phrase, Pronoun)]
    others = [(phrase, words) for phrase, words in objects if not isinstance(phrase, Pronoun)]
    known = max((i + 1 for i, (phrase, _) in enumerate(others) if is_definite(phrase)), default=0)
    words = [word for each in pronouns for word in each]
    words += [clause.time.german] if clause.time and clause.opening != "time" else []
    words += [word for _, each in others[:known] for word in each]
    words += ["nicht"] if clause.negated else []
    words += [clause.frequency.german] if clause.frequency else []
    words += [word for _, each in others[known:] for word in each]
    words += german_place(clause.place) if clause.place and clause.opening != "place" else []
    if clause.quality:
        words += [*(["sehr"] if clause.quality.very else []), clause.quality.adjective.german]
    return words


def _german_tail(clause: Clause) -> list[str]:
    """Behind the bracket: the relative clause of an object, dass, ob or zu clauses, a second predicate."""
    words = german_relative(clause.objects[-1]) if clause.objects else []
    if clause.complement:
        order: Order = "infinitive" if clause.verb.complement == "to" else "subordinate"
        link = {"that": ["dass"], "whether": ["ob"]}.get(clause.verb.complement, [])
        words += [",", *link, *german_clause(clause.complement, order)]
    if clause.second:
        finite, closing = _german_verb(clause.second, "statement")
        shared = clause.tense != "present"  # hat gesungen und getanzt; but: singt und tanzt
        words += ["und", *([] if shared else finite), *_german_middle(clause.second), *closing]
        words += _german_tail(clause.second)
    return words


def _german_fronted_pronoun(clause: Clause) -> list[str]:
    if isinstance(clause.subject, Fronted):
        return [clause.subject.pronoun.german["nominative"]]
    for phrase, case in zip(clause.objects, clause.verb.cases, strict=True):
        if isinstance(phrase, Fronted):
            return [phrase.pronoun.german[case]]
    return []


def _german_opening(clause: Clause) -> list[str]:
    if isinstance(clause.opening, Adverb):
        return [clause.opening.german]
    if clause.opening == "time" and clause.time:
        return [clause.time.german]
    return german_place(clause.place) if clause.opening == "place" and clause.place else []
