"""The constraint of a line, in text: phrases that its translation must have or must not have, and a prefix."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeGuard, cast

from transduce.data.text import is_blank
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.phrases.matching import PhraseList
from transduce.decoding.phrases.phrase_constraint import PhraseAutomaton, PhraseTokens, pieces_of, tokens_of
from transduce.errors import UserError, nearest

MOST_PHRASES = 64  # of a line, alternatives counted
MOST_CHARACTERS = 256  # of a phrase
MOST_TOKENS = 256  # of all required phrases of a line; its maximum length grows by their number


@dataclass(frozen=True)
class LineConstraint:
    """The constraint on the translation of a line.

    must: phrases that must be in it as whole words, each as often as it is there. An entry may be a list of
    alternatives, any of which suffices. must_not: phrases that must not be in it as whole words. prefix: text that it
    begins with.

    Spaces around a phrase are left out. Raises UserError for values of a wrong type, blank phrases, too many or too
    long ones, and a phrase that is both required and forbidden.
    """

    must: Sequence[str | Sequence[str]] = ()
    must_not: Sequence[str] = ()
    prefix: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str):
            raise UserError(f"prefix={reprlib.repr(self.prefix)}: expected text; write a string")
        object.__setattr__(self, "prefix", self.prefix.strip())
        if _has_line_break(self.prefix):
            raise UserError(f"prefix={reprlib.repr(self.prefix)}: expected one line; shorten it")
        forbidden = phrases_of("must_not", self.must_not)
        required = list[tuple[str, ...]]()
        for i, entry in enumerate(_entries("must", self.must)):
            name = f"must[{i}]"
            alternatives = phrases_of(name, entry) if is_list(entry) else (_phrase(name, entry),)
            if not alternatives:
                raise UserError(f"{name}: expected a phrase, or a list of at least one; leave it out")
            required.append(alternatives)
        count = len(forbidden) + sum(map(len, required))
        if count > MOST_PHRASES:
            raise UserError(f"must and must_not: expected at most {MOST_PHRASES} phrases, not {count}; give fewer")
        object.__setattr__(self, "must_not", forbidden)
        object.__setattr__(self, "must", tuple(_possible(alternatives, forbidden) for alternatives in required))
        if excluded := PhraseList((), forbidden).forbidden_in(self.prefix):
            raise UserError(
                f"prefix={reprlib.repr(self.prefix)}: expected no {excluded[0]!r}, which must_not forbids; shorten it"
            )

    @classmethod
    def of(cls, value: object) -> "LineConstraint":
        """Return the constraint of a line: of None, a mapping of the fields, or a `LineConstraint`."""
        if value is None or isinstance(value, LineConstraint):
            return value or cls()
        if not isinstance(value, Mapping):
            raise UserError(f"{reprlib.repr(value)}: expected must, must_not and prefix by name, or None; write a dict")
        names = [field.name for field in fields(cls)]
        for name in value:
            if name not in names:
                raise UserError(f"{name}: expected one of {', '.join(names)}{nearest(str(name), names)}")
        return cls(**value)

    @property
    def has_phrases(self) -> bool:
        """True if it requires or forbids phrases."""
        return bool(self.must or self.must_not)

    @property
    def required(self) -> Sequence[Sequence[str]]:
        """The alternatives of each required phrase."""
        return cast(Sequence[Sequence[str]], self.must)  # since it was created, each entry is a list

    def with_required(self, alternatives: Sequence[str]) -> "LineConstraint":
        """Return the constraint with one required phrase more."""
        return LineConstraint([*self.must, alternatives], self.must_not, self.prefix)

    def without_prefix(self) -> "LineConstraint":
        """Return the constraint without its prefix."""
        return LineConstraint(self.must, self.must_not) if self.prefix else self

    def phrases(self) -> PhraseList:
        """Return its phrases."""
        return PhraseList(self.required, self.must_not)

    def __bool__(self) -> bool:
        return self.has_phrases or bool(self.prefix)


def is_list(values: object) -> TypeGuard[Sequence[object]]:
    """Check whether `values` are several, and not one string or mapping."""
    return isinstance(values, Sequence) and not isinstance(values, str | bytes)


def _entries(name: str, values: object) -> Sequence[object]:
    """Return a list of phrases, not checked one by one."""
    if not is_list(values):
        raise UserError(f"{_place(name, values)}: expected a list of phrases; {_remedy(values, 'write a list')}")
    return values


def _place(name: str, value: object) -> str:
    """Return the beginning of a message: NAME=VALUE, and only NAME for None, which is null in JSON."""
    return name if value is None else f"{name}={reprlib.repr(value)}"


def _remedy(value: object, remedy: str) -> str:
    return "leave it out" if value is None else remedy


def phrases_of(name: str, values: object) -> tuple[str, ...]:
    """Return the phrases of a list, without the spaces around them."""
    return tuple(_phrase(f"{name}[{i}]", value) for i, value in enumerate(_entries(name, values)))


def _phrase(name: str, phrase: object) -> str:
    """Return a phrase without the spaces around it."""
    place = _place(name, phrase)
    if not isinstance(phrase, str):
        raise UserError(f"{place}: expected a phrase; {_remedy(phrase, 'write a string')}")
    if is_blank(phrase):
        raise UserError(f"{place}: expected a phrase, not a blank one; leave it out")
    if len(phrase) > MOST_CHARACTERS:
        raise UserError(f"{place}: expected at most {MOST_CHARACTERS} characters, not {len(phrase):,}; shorten it")
    if _has_line_break(phrase):
        raise UserError(f"{place}: expected a phrase of one line; split it")
    return phrase.strip()


def _has_line_break(text: str) -> bool:
    return "\n" in text or "\r" in text


def _possible(alternatives: Sequence[str], forbidden: Sequence[str]) -> tuple[str, ...]:
    """Return the alternatives that contain no forbidden phrase. Raises UserError if all do."""
    phrases = PhraseList((), forbidden)
    possible = tuple(phrase for phrase in alternatives if not phrases.unmet(phrase))
    if not possible:
        first = alternatives[0]
        raise UserError(
            f"must={first!r}: expected a phrase without {phrases.unmet(first)[0]!r}, which must_not forbids; "
            "leave one of the two out"
        )
    return possible


def phrase_automaton(constraint: LineConstraint, tokenizer: TokenizerLike) -> PhraseAutomaton:
    """Return the automaton of the phrases of a line. tokenizer: of the source language.

    Raises UserError for a phrase that the tokenizer cannot write, and for too many tokens.
    """
    phrases, pieces = constraint.phrases(), pieces_of(tokenizer)
    required = list[PhraseTokens]()
    for text in phrases.texts[: len(phrases.texts) - len(phrases.forbidden)]:
        tokens = tokens_of(text, pieces)
        if tokens is None:
            raise UserError(f"must={text!r}: expected text that the vocabulary of the model can write; leave it out")
        required.append(tokens)
    automaton = PhraseAutomaton(phrases, required, pieces)
    if automaton.n_tokens > MOST_TOKENS:
        raise UserError(
            f"must={reprlib.repr(phrases.texts[0])} and the others: expected at most {MOST_TOKENS} tokens, "
            f"not {automaton.n_tokens:,}; require fewer phrases"
        )
    return automaton
