"""Read the tables of the dictionary of `transduce demo`: nouns, adjectives and verbs, one entry between two commas."""

from transduce.demo.inflection import (
    Adjective,
    Case,
    Column,
    Complement,
    Noun,
    NounKind,
    Verb,
    add_s,
    weak_participle,
    weak_third_person,
)

ACCUSATIVE: tuple[Case, ...] = ("accusative",)
PEOPLE: tuple[NounKind, ...] = ("person",)


def _entries(table: str) -> list[list[str]]:
    return [entry.split() for entry in table.split(",")]


def nouns_of(kind: NounKind, table: str) -> tuple[Noun, ...]:
    """Return the nouns of a table of entries such as `man/men der Mann/Männer`.

    Without an English plural, it is the singular with -s. A noun without a German plural is a mass noun. `*` marks
    the n-declension.
    """
    genders: dict[str, Column] = {"der": "masculine", "die": "feminine", "das": "neuter"}
    nouns = []
    for english, article, german in _entries(table):
        singular, _, plural = english.partition("/")
        lemma, _, lemmas = german.rstrip("*").partition("/")
        plurals = (plural or add_s(singular), lemmas) if lemmas else None
        nouns.append(Noun(kind, singular, lemma, genders[article], plurals, german.endswith("*")))
    return tuple(nouns)


def adjectives_of(
    rank: int, kinds: tuple[NounKind, ...], table: str, *, gradable: bool = True
) -> tuple[Adjective, ...]:
    """Return the adjectives of a table of entries such as `dark dunkel/dunkl`.

    The stem is given where it is not the adjective itself.
    """
    adjectives = []
    for english, german in _entries(table):
        whole, _, stem = german.partition("/")
        adjectives.append(Adjective(english, whole, stem or whole, rank, kinds, gradable))
    return tuple(adjectives)


def verbs_of(
    table: str,
    *,
    complement: Complement = "object",
    subjects: tuple[NounKind, ...] = PEOPLE,
    objects: tuple[NounKind, ...] = (),
    cases: tuple[Case, ...] = ACCUSATIVE,
) -> tuple[Verb, ...]:
    """Return the verbs of a table of entries such as `get|up got auf|stehen - gestanden sein`.

    They are base, past, infinitive, third person, participle and auxiliary.

    `|` splits off a particle that moves (picks him up; macht auf), `+` a preposition that stays (looks for him).
    A third person missing or `-`, and a missing participle, are weak. A past of `-` is spelt like the base.
    """
    verbs = []
    for english, past, german, *forms in _entries(table):
        base, _, particle = english.replace("+", "|").partition("|")
        prefix, _, infinitive = german.rpartition("|")
        third, participle, auxiliary = (*forms, "-", "-", "-")[:3]
        verbs.append(
            Verb(
                english=base,
                past=None if past == "-" else past,
                particle=particle,
                particle_moves="|" in english,
                german=infinitive,
                prefix=prefix,
                third=weak_third_person(infinitive) if third == "-" else third,
                participle=prefix + (weak_participle(infinitive) if participle == "-" else participle),
                auxiliary="sein" if auxiliary == "sein" else "haben",
                subjects=subjects,
                complement=complement,
                objects=objects,
                cases=cases,
            )
        )
    return tuple(verbs)
