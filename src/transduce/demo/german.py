"""A tree of `transduce.demo.syntax` as a German sentence.

German needs more rules than English: case, gender, the verb in second or last position, and a comma around every
clause. A separable prefix, a participle or an infinitive closes the verbal bracket at the end of a clause.
"""

from transduce.demo.inflection import (
    CONTRACTIONS,
    GERMAN_AUXILIARIES,
    GERMAN_PRETERITES,
    STRONG,
    Case,
    City,
    Name,
    Pronoun,
)
from transduce.demo.syntax import (
    Clause,
    Coordination,
    Fronted,
    NounGroup,
    NounPhrase,
    Place,
    SentenceTree,
    WordOrder,
    is_definite,
    person_of,
    spell,
)


def german_sentence(sentence: SentenceTree) -> str:
    """Return the sentence in German."""
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


# Phrases


def german_noun_phrase(phrase: NounPhrase | City, case: Case) -> list[str]:
    """Return the phrase without its relative clause, which may come after the end of the verbal bracket."""
    match phrase:
        case Pronoun():
            return [phrase.german[case]]
        case Fronted():
            return []
        case Name(name) | City(german=name):
            return [name]
        case Coordination(first, second):
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
    return words + (german_noun_phrase(phrase.owner, "genitive") if isinstance(phrase.owner, NounGroup) else [])


def german_relative(phrase: NounPhrase) -> list[str]:
    """Return the relative clause of a phrase between commas, or nothing."""
    if not isinstance(phrase, NounGroup) or not phrase.relative:
        return []
    return [",", *german_clause(phrase.relative, "subordinate"), ","]


def german_place(place: Place) -> list[str]:
    """Return the preposition and its object in the right case, contracted where German contracts: im Garten."""
    words = german_noun_phrase(place.inside, place.preposition.case)
    together = f"{place.preposition.german} {words[0]}"
    return [CONTRACTIONS[together], *words[1:]] if together in CONTRACTIONS else [place.preposition.german, *words]


# Clauses


def german_clause(clause: Clause, order: WordOrder, *, front: list[str] | None = None) -> list[str]:
    """Return the clause: verb second in a statement, first or second in a question, last in a subordinate clause.

    front: a subordinate clause that precedes the verb instead of the subject or an adverbial.
    """
    finite, closing = _german_verb(clause, order)
    middle = _german_middle(clause)
    tail = _german_tail(clause)
    subject = [*german_noun_phrase(clause.subject, "nominative"), *german_relative(clause.subject)]
    if order == "infinitive":
        return [*middle, *closing, *tail]
    pronoun: list[str] = []
    if clause.fronted:
        place, fronted = clause.fronted
        pronoun = [fronted.german[("nominative", *clause.verb.cases)[place]]]
    if order == "subordinate":
        return [*pronoun, *subject, *middle, *closing, *finite, *tail]
    first = front or pronoun or _german_opening(clause)
    if first or order == "question":
        return [*first, *finite, *subject, *middle, *closing, *tail]
    return [*subject, *finite, *middle, *closing, *tail]


def _german_verb(clause: Clause, order: WordOrder) -> tuple[list[str], list[str]]:
    """Return the finite verb, and the end of the bracket: a separable prefix, a participle or an infinitive."""
    verb = clause.verb
    person = person_of(clause.subject)
    if order == "infinitive":
        return [], [verb.zu_infinitive]
    if clause.modal:
        return [clause.modal.german[person]], [verb.infinitive]
    if clause.tense == "past":
        if verb.german in GERMAN_PRETERITES:
            return [GERMAN_PRETERITES[verb.german][person]], []
        return [GERMAN_AUXILIARIES[verb.auxiliary][person]], [verb.participle]
    if order == "subordinate":
        return [verb.prefix + verb.german_present(person)], []
    return [verb.german_present(person)], [verb.prefix] if verb.prefix else []


def _german_middle(clause: Clause) -> list[str]:
    """Return the words between the verbs.

    Their order: pronouns, time, definite objects, "nicht" or "oft", indefinite objects, place, quality.
    """
    words, others = list[str](), list[tuple[NounPhrase, list[str]]]()
    for phrase, case in zip(clause.objects, clause.verb.cases, strict=True):
        if isinstance(phrase, Pronoun):
            words.append(phrase.german[case])
        else:
            others.append((phrase, german_noun_phrase(phrase, case)))
    known = max((i + 1 for i, (phrase, _) in enumerate(others) if is_definite(phrase)), default=0)
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
    """Return the words after the bracket: a relative clause, a dass, ob or zu clause, a second predicate."""
    words = german_relative(clause.objects[-1]) if clause.objects else []
    if clause.complement:
        order: WordOrder = "infinitive" if clause.verb.complement == "to" else "subordinate"
        link = {"that": ["dass"], "whether": ["ob"]}.get(clause.verb.complement, [])
        words += [",", *link, *german_clause(clause.complement, order)]
    if clause.second:
        finite, closing = _german_verb(clause.second, "statement")
        shared = clause.tense != "present"  # hat gesungen und getanzt; but: singt und tanzt
        words += ["und", *([] if shared else finite), *_german_middle(clause.second), *closing]
        words += _german_tail(clause.second)
    return words


def _german_opening(clause: Clause) -> list[str]:
    if clause.question_word:
        return [clause.question_word.german]
    if clause.opening == "time" and clause.time:
        return [clause.time.german]
    return german_place(clause.place) if clause.opening == "place" and clause.place else []
