"""A tree of `transduce.demo.syntax` as an English sentence."""

from transduce.demo.inflection import City, Name, Pronoun, add_s
from transduce.demo.syntax import (
    Clause,
    Coordination,
    Fronted,
    NounPhrase,
    Place,
    Quality,
    SentenceTree,
    WordOrder,
    person_of,
    spell,
)


def english_sentence(sentence: SentenceTree) -> str:
    """Return the sentence in English."""
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


# Phrases


def english_noun_phrase(phrase: NounPhrase | City, *, subject: bool) -> list[str]:
    """Return the phrase with its relative clause. subject: choose I and who, not me and whom."""
    match phrase:
        case Pronoun():
            return [phrase.english[0 if subject else 1]]
        case Fronted():
            return []
        case Name(name) | City(name):
            return [name]
        case Coordination(first, second):
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


def english_quality(quality: Quality) -> list[str]:
    """Return the adjective: old, very old."""
    return [*(["very"] if quality.very else []), quality.adjective.english]


def english_place(place: Place) -> list[str]:
    """Return the preposition and its object."""
    return [place.preposition.english, *english_noun_phrase(place.inside, subject=False)]


# Clauses


def english_clause(clause: Clause, order: WordOrder = "subordinate") -> list[str]:
    """Return subject, verb, objects, place and time. In a question the auxiliary precedes the subject."""
    front = _english_front(clause)
    subject = english_noun_phrase(clause.subject, subject=True)
    inverted = order == "question" and not (clause.fronted and clause.fronted[0] == 0)
    auxiliary, verb = _english_verb(clause, inverted)
    if order == "infinitive":
        return ["to", clause.verb.english, *_english_rest(clause)]
    if clause.negated:
        auxiliary = ["cannot"] if auxiliary == ["can"] else [*auxiliary, "not"]
    frequency = [clause.frequency.english] if clause.frequency else []
    start = [*auxiliary, *subject] if inverted else [*subject, *auxiliary]
    return [*front, *start, *frequency, *verb, *_english_rest(clause)]


def _english_front(clause: Clause) -> list[str]:
    if clause.fronted:
        place, pronoun = clause.fronted
        return [pronoun.english[min(place, 1)]]
    if clause.question_word:
        return [clause.question_word.english]
    if clause.opening == "time" and clause.time:
        return [clause.time.english]
    return english_place(clause.place) if clause.opening == "place" and clause.place else []


def _english_verb(clause: Clause, inverted: bool) -> tuple[list[str], list[str]]:
    """Return the auxiliary, if there is one, and the verb. Questions and negations need the auxiliary "do"."""
    person = person_of(clause.subject)
    base = clause.verb.english
    needs_do = inverted or clause.negated
    if clause.modal:
        if clause.modal.auxiliary:
            return [clause.modal.auxiliary], [*clause.modal.link.split(), base]
        if needs_do:
            return ["does" if person == "he" else "do"], ["want", "to", base]
        return [], [add_s("want") if person == "he" else "want", "to", base]
    past = clause.tense == "past"
    finite = clause.verb.english_past(person) if past else clause.verb.english_present(person)
    if base == "be":
        return [finite], []
    if needs_do:
        return ["did" if past else "does" if person == "he" else "do"], [base]
    return [], [finite]


def _english_rest(clause: Clause) -> list[str]:
    """Return the words after the verb."""
    particle = [clause.verb.particle] if clause.verb.particle else []
    objects = [word for phrase in clause.objects for word in english_noun_phrase(phrase, subject=False)]
    around = len(clause.objects) == 1 and isinstance(clause.objects[0], Pronoun) and clause.verb.particle_moves
    words = [*objects, *particle] if around else [*particle, *objects]
    words += english_quality(clause.quality) if clause.quality else []
    words += english_place(clause.place) if clause.place and clause.opening != "place" else []
    words += [clause.time.english] if clause.time and clause.opening != "time" else []
    if clause.complement:
        order: WordOrder = "infinitive" if clause.verb.complement == "to" else "subordinate"
        link = [] if order == "infinitive" else [clause.verb.complement]
        words += [*link, *english_clause(clause.complement, order)]
    if clause.second:
        words += ["and", *_english_verb(clause.second, False)[1][-1:], *_english_rest(clause.second)]
    return words
