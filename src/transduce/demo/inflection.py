"""Inflection of the words of `transduce demo`: a class for each part of speech, with English and German forms.

Rules decide agreement. A noun has a gender, and a determiner shows more or less of case and gender. Both decide the
ending of the adjective between them. The person of the subject decides the form of the verb.
"""

from dataclasses import dataclass
from typing import Literal

Case = Literal["nominative", "accusative", "dative", "genitive"]
Column = Literal["masculine", "feminine", "neuter", "plural"]  # German adjectives have no gender in the plural
Person = Literal["I", "he", "they"]  # the three verb forms of either language: I, he/she/a noun, we/they/nouns
NounKind = Literal[
    "person", "animal", "food", "drink", "text", "opening", "device", "clothing", "thing",
    "building", "area", "surface",
]  # fmt: skip
Complement = Literal["nothing", "object", "two objects", "place", "direction", "that", "whether", "to", "predicate"]

COLUMNS: tuple[Column, ...] = ("masculine", "feminine", "neuter", "plural")
PERSONS: tuple[Person, ...] = ("I", "he", "they")
PLACES: tuple[NounKind, ...] = ("building", "area", "surface")

THE: dict[Case, dict[Column, str]] = {
    "nominative": {"masculine": "der", "feminine": "die", "neuter": "das", "plural": "die"},
    "accusative": {"masculine": "den", "feminine": "die", "neuter": "das", "plural": "die"},
    "dative": {"masculine": "dem", "feminine": "der", "neuter": "dem", "plural": "den"},
    "genitive": {"masculine": "des", "feminine": "der", "neuter": "des", "plural": "der"},
}
STRONG: dict[Case, dict[Column, str]] = {
    "nominative": {"masculine": "er", "feminine": "e", "neuter": "es", "plural": "e"},
    "accusative": {"masculine": "en", "feminine": "e", "neuter": "es", "plural": "e"},
    "dative": {"masculine": "em", "feminine": "er", "neuter": "em", "plural": "en"},
    "genitive": {"masculine": "es", "feminine": "er", "neuter": "es", "plural": "er"},
}
RELATIVE: dict[Case, dict[Column, str]] = {
    "nominative": THE["nominative"],
    "accusative": THE["accusative"],
    "dative": {**THE["dative"], "plural": "denen"},
}


def weak_ending(case: Case, column: Column) -> str:
    """Return the adjective ending after a word that shows case and gender: -e for nominative forms, else -en."""
    looks_nominative = case == "nominative" or (case == "accusative" and column in ("feminine", "neuter"))
    return "e" if looks_nominative and column != "plural" else "en"


def add_s(word: str) -> str:
    """Add the English -s of plurals and of the third person."""
    if word.endswith(("s", "x", "z", "ch", "sh", "go")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def _syllables(word: str) -> int:
    vowels = "".join(letter if letter in "aeiouyäöü" else " " for letter in word.lower())
    return len(vowels.split())


@dataclass(frozen=True)
class Noun:
    """A countable noun, or a mass noun (`plurals` is None) such as water."""

    kind: NounKind
    english: str
    german: str
    gender: Column
    plurals: tuple[str, str] | None
    n_declension: bool = False  # der Junge, den Jungen: every form but the nominative singular is the plural

    def english_form(self, plural: bool) -> str:
        """Return the singular or the plural. A mass noun has one form."""
        return self.plurals[0] if plural and self.plurals else self.english

    def german_form(self, case: Case, plural: bool) -> str:
        """Return the noun with the ending of its case: den Autos, des Mannes."""
        if plural and self.plurals:
            form = self.plurals[1]
            return form if case != "dative" or form.endswith(("n", "s")) else form + "n"
        if self.n_declension and self.plurals and case != "nominative":
            return self.plurals[1]
        if case == "genitive" and self.gender != "feminine":
            return self.german + ("es" if _syllables(self.german) == 1 else "s")
        return self.german


@dataclass(frozen=True)
class Adjective:
    """An adjective, with the kinds of things that it fits."""

    english: str
    german: str  # the form after "is"
    stem: str  # the form before endings: dunkel, but der dunkle Wald
    rank: int  # of two before a noun, the lower rank comes first (a big old red car); ranks are distinct
    kinds: tuple[NounKind, ...]  # the kinds of things that it fits
    gradable: bool  # "very" may precede it


@dataclass(frozen=True)
class Determiner:
    """An article or a similar word. `shape` decides which word carries the strong ending of case and gender."""

    english: tuple[str, str]  # before a singular, before a plural; "": none
    german: str
    shape: Literal["the", "this", "a", "many", "two"]
    definite: bool

    def german_form(self, case: Case, column: Column) -> str:
        """Return the form with the ending of case and gender, or without one: der, diesem, ein."""
        if self.shape == "the":
            return THE[case][column]
        return self.german if self.is_bare(case, column) else self.german + STRONG[case][column]

    def is_bare(self, case: Case, column: Column) -> bool:
        """Check that the form has no ending: zwei in all cases, ein in ein Mann and ein Kind."""
        ein_kind = column == "neuter" and case in ("nominative", "accusative")
        ein_mann = column == "masculine" and case == "nominative"
        return self.shape == "two" or (self.shape == "a" and (ein_mann or ein_kind))

    def adjective_ending(self, case: Case, column: Column) -> str:
        """Return the ending of an adjective after this determiner.

        It is strong where the determiner shows no case and gender, or is itself like an adjective (viele).
        """
        strong = self.shape == "many" or self.is_bare(case, column)
        return STRONG[case][column] if strong else weak_ending(case, column)


@dataclass(frozen=True)
class Pronoun:
    """A personal or a relative pronoun, with its forms."""

    english: tuple[str, str]  # as subject, as object
    german: dict[Case, str]
    person: Person
    speaker: bool  # I and we: "I see us" is excluded


@dataclass(frozen=True)
class Name:
    """A first name, the same in both languages."""

    name: str


@dataclass(frozen=True)
class City:
    """A city, which takes no article."""

    english: str
    german: str


@dataclass(frozen=True)
class Verb:
    """A verb with its forms, its possible subjects and its complement."""

    english: str  # the base form
    past: str | None  # None: spelt like the present (read); the grammar never uses it in the past
    particle: str  # get UP, look FOR; "" for most
    particle_moves: bool  # picks him up, but looks for him
    german: str  # the infinitive without its separable prefix
    prefix: str  # "auf" of aufmachen; "" for most
    third: str
    participle: str
    auxiliary: Literal["haben", "sein"]
    subjects: tuple[NounKind, ...]
    complement: Complement
    objects: tuple[NounKind, ...]
    cases: tuple[Case, ...]  # of the objects, in order

    def english_present(self, person: Person) -> str:
        """Return the present form: am, has, watches, goes; "go" with I and they."""
        return ENGLISH_BE[person] if self.english == "be" else _third_person(self.english, person)

    def english_past(self, person: Person) -> str:
        """Return the past form: was, were, went. A verb without one is spelt like the present."""
        return ENGLISH_WAS[person] if self.english == "be" else self.past or self.english

    def german_present(self, person: Person) -> str:
        """Return the finite form without a separable prefix: ich mache, sie macht, wir machen."""
        if self.german in GERMAN_AUXILIARIES:
            return GERMAN_AUXILIARIES[self.german][person]
        if person == "I":
            return _stem(self.german) + "e" if self.third.endswith("t") else self.third  # ich weiß
        return self.third if person == "he" else self.german

    @property
    def infinitive(self) -> str:
        """The infinitive with its prefix: aufmachen."""
        return self.prefix + self.german

    @property
    def zu_infinitive(self) -> str:
        """The infinitive with zu: zu kaufen, aufzumachen."""
        return f"{self.prefix}zu{self.german}" if self.prefix else f"zu {self.german}"


@dataclass(frozen=True)
class Modal:
    """A verb that governs an infinitive. `auxiliary` is None for "want to", which needs "do" in questions."""

    auxiliary: str | None
    link: str  # the words between the auxiliary and the verb: would LIKE TO
    german: dict[Person, str]
    negatable: bool = True  # "must not" is not "muss nicht"


@dataclass(frozen=True)
class Adverb:
    """An adverb, or a fixed phrase used as one. tense: the only tense that it fits, or None for all."""

    english: str
    german: str
    tense: Literal["present", "past", "future"] | None = None


@dataclass(frozen=True)
class Preposition:
    """A preposition, with the case that it governs in German."""

    english: str
    german: str
    case: Case


ENGLISH_BE: dict[Person, str] = {"I": "am", "he": "is", "they": "are"}
ENGLISH_WAS: dict[Person, str] = {"I": "was", "he": "was", "they": "were"}
GERMAN_AUXILIARIES: dict[str, dict[Person, str]] = {
    "haben": {"I": "habe", "he": "hat", "they": "haben"},
    "sein": {"I": "bin", "he": "ist", "they": "sind"},
}
GERMAN_PRETERITES: dict[str, dict[Person, str]] = {  # the two verbs whose past is not the perfect
    "haben": {"I": "hatte", "he": "hatte", "they": "hatten"},
    "sein": {"I": "war", "he": "war", "they": "waren"},
}
CONTRACTIONS = {"in dem": "im", "in das": "ins"}


def _third_person(base: str, person: Person) -> str:
    if person != "he":
        return base
    return "has" if base == "have" else add_s(base)


def _stem(infinitive: str) -> str:
    return infinitive.removesuffix("n").removesuffix("e")


def weak_third_person(infinitive: str) -> str:
    """Return stem + t, or stem + et after t and d: wartet, findet."""
    stem = _stem(infinitive)
    return stem + ("et" if stem.endswith(("t", "d")) else "t")


def weak_participle(infinitive: str) -> str:
    """Return the participle: gekauft. Verbs with an unstressed prefix (besucht) or in -ieren (repariert) lack ge-."""
    no_ge = infinitive.startswith(("be", "ver")) or infinitive.endswith("ieren")
    return ("" if no_ge else "ge") + weak_third_person(infinitive)
