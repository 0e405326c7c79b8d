"""Terminology: terms of the source language, and the phrases that each requires in a translation."""

import functools
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from transduce.data.text import StrPath, is_blank, read_lines
from transduce.decoding.phrases.line_constraint import MOST_PHRASES, phrases_of
from transduce.decoding.phrases.matching import WORD, kind_of
from transduce.errors import UserError

KEY = 3  # characters of a term by which it is found


class Terms:
    """Terms, each with the alternatives of its translation.

    A term is in a line where its characters are whole words of the line. One in small letters matches any case.
    Of terms that overlap the longest one counts, or else the one in the case of the line.
    """

    def __init__(self, targets: Mapping[str, Sequence[str]]) -> None:
        """Create the terms from the alternatives of each. Raises UserError for what is no term or no target."""
        self.targets: dict[str, tuple[str, ...]] = {}
        self._by_key: dict[str, list[str]] = {}
        self._exact: frozenset[str] = frozenset()  # terms that match no other case
        for source, alternatives in targets.items():
            with _named(source):
                self._add(source, alternatives)

    def _add(self, source: str, alternatives: Sequence[str]) -> None:
        if not isinstance(source, str) or is_blank(source):
            raise UserError("expected a term of the source language; write one, or leave the term out")
        checked = phrases_of("target", [alternatives] if isinstance(alternatives, str) else alternatives)
        if not 1 <= len(checked) <= MOST_PHRASES:
            raise UserError(f"expected 1 to {MOST_PHRASES} targets of a term, not {len(checked)}; correct the term")
        source = source.strip()
        if source not in self.targets:
            self._by_key.setdefault(source[:KEY].lower(), []).append(source)
        self.targets[source] = tuple(dict.fromkeys([*self.targets.get(source, ()), *checked]))

    @classmethod
    def load(cls, path: StrPath) -> "Terms":
        """Return the terms of a file: a line has a source term, a tab, and `target` or `target|target|...`.

        The targets of a term on several lines are alternatives. Raises UserError for a line of another form.
        """
        terms = cls({})
        for number, line in enumerate(read_lines(path), start=1):
            if is_blank(line):
                continue
            source, tab, target = line.partition("\t")
            place = f"{os.fspath(path)}:{number}"
            if not tab or "\t" in target:
                raise UserError(f"{place}: expected a source term, a tab and its target; correct the line")
            try:
                terms._add(source, _alternatives(target))
            except UserError as error:
                raise UserError(f"{place}: {error}") from None
        return terms

    @classmethod
    def of(cls, value: Any) -> "Terms":
        """Return terms: None, `Terms`, or a mapping from each term to `target` or `target|target|...`."""
        if isinstance(value, Terms):
            return value
        if value is not None and not isinstance(value, Mapping):
            raise UserError("terms: expected Terms, or a dict from source terms to targets; use Terms.load(FILE)")
        terms = cls({})
        for source, target in (value or {}).items():
            with _named(source):
                if not isinstance(target, str):
                    raise UserError(f"expected a target, or target|target, not {reprlib.repr(target)}; write a string")
                terms._add(source, _alternatives(target))
        return terms

    @classmethod
    def of_names(cls, names: Iterable[str]) -> "Terms":
        """Return terms that stay as they are, each in its own case only."""
        terms = cls({name: [name] for name in names})
        terms._exact = frozenset(terms.targets)
        return terms

    def __len__(self) -> int:
        """Return the number of terms."""
        return len(self.targets)

    def updated(self, others: "Terms") -> "Terms":
        """Return these terms and `others`, which replace a term that both have."""
        return _merged(self, others) if others else self

    def merged(self, others: "Terms") -> "Terms":
        """Return what `updated` returns, and do not keep it for the next call."""
        terms = Terms({})
        terms.targets = {**self.targets, **others.targets}
        terms._by_key = {**self._by_key}
        for key, sources in others._by_key.items():
            terms._by_key[key] = [*dict.fromkeys([*self._by_key.get(key, ()), *sources])]
        terms._exact = self._exact - others.targets.keys() | others._exact
        return terms

    def targets_in(self, line: str) -> list[tuple[str, ...]]:
        """Return the alternatives of each different term in a line, in the order of the line."""
        places = range(len(line) if self.targets else 0)
        matches = [match for begin in places for match in self._at(line, begin)]
        terms, is_part = list[tuple[int, str]](), [False] * len(line)
        for begin, term in sorted(matches, key=lambda match: (-len(match[1]), not line.startswith(match[1], match[0]))):
            if not any(is_part[begin : begin + len(term)]):
                is_part[begin : begin + len(term)] = [True] * len(term)
                terms.append((begin, term))
        return [*dict.fromkeys(self.targets[term] for _, term in sorted(terms))]

    def _at(self, line: str, begin: int) -> list[tuple[int, str]]:
        """Return the terms that begin at a character of a line."""
        if begin and kind_of(line[begin - 1]) == WORD and kind_of(line[begin]) == WORD:
            return []
        matches = list[tuple[int, str]]()
        for length in range(1, KEY + 1):
            for term in self._by_key.get(line[begin : begin + length].lower(), ()):
                end = begin + len(term)
                text = line[begin:end]
                is_same = text == term or (term == term.lower() == text.lower() and term not in self._exact)
                if (length == KEY or length == len(term)) and is_same and len(text) == len(term):
                    if end == len(line) or not (kind_of(line[end - 1]) == WORD and kind_of(line[end]) == WORD):
                        matches.append((begin, term))
        return matches


NO_TERMS = Terms({})


_merged = functools.lru_cache(maxsize=8)(Terms.merged)  # each has all terms of both


@contextmanager
def _named(source: Any) -> Iterator[None]:
    """Raise a UserError of the block with the term that is wrong."""
    try:
        yield
    except UserError as error:
        raise UserError(f"terms[{reprlib.repr(source)}]: {error}") from None


def _alternatives(target: str) -> list[str]:
    """Return the alternatives of `target` or `target|target|...`. Raises UserError if one is blank."""
    alternatives = target.split("|")
    if any(map(is_blank, alternatives)):
        expected = f"expected a target, or target|target, none of them empty, not {reprlib.repr(target)}"
        raise UserError(f"{expected}; write one, or leave out the |")
    return alternatives
