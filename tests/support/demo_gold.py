"""Gold word links of the demo's sentences: its own lexicon says which German form belongs to which English word."""

import functools
import re
from collections import Counter
from collections.abc import Iterator

from transduce.decoding.hypothesis import Alignment
from transduce.demo import lexicon
from transduce.demo.inflection import PERSONS, STRONG, Case, Verb

CASES: tuple[Case, ...] = ("nominative", "accusative", "dative", "genitive")


def links_of(source: str, target: str) -> dict[int, set[int]]:
    """Return the place of each content word of the target, and the place of its English word.

    Each of the two must be the only form of its lexeme in its sentence. A verb with a particle has two English words:
    "came" and "back" of "zurückgekommen".
    """
    places, own = _places(source), _places(target)
    links = {}
    for english, german, particle in _lexemes():
        sources = [start for start, word in places if word in english]
        targets = [start for start, word in own if word in german]
        if len(sources) == len(targets) == 1:
            links[targets[0]] = {*sources, *(start for start, word in places if word == particle)}
    return links


def right_links(source: str, target: str, alignment: Alignment | None) -> tuple[int, int]:
    """Return the number of gold links that the alignment has, and the number of gold links."""
    links = links_of(source, target)
    words = {word.start: word.source_start for word in alignment or ()}
    return sum(words.get(target) in sources for target, sources in links.items()), len(links)


def _places(text: str) -> list[tuple[int, str]]:
    return [(match.start(), match.group().lower()) for match in re.finditer(r"\w+", text)]


@functools.cache
def _lexemes() -> list[tuple[frozenset[str], frozenset[str], str]]:
    """Return the English forms, German forms and particle of each content word, without forms that two words share."""
    entries = [({e.lower() for e in english}, {g.lower() for g in german}, p) for english, german, p in _entries()]
    counts = Counter(form for _, german, _ in entries for form in german)
    counts.update(word for time in lexicon.TIMES if " " in time.german for word in time.german.lower().split())
    return [(frozenset(english), frozenset(g for g in german if counts[g] == 1), p) for english, german, p in entries]


def _entries() -> Iterator[tuple[set[str], set[str], str]]:
    for noun in (noun for nouns in lexicon.NOUNS.values() for noun in nouns):
        numbers = (False, True)
        yield (
            {noun.english_form(plural) for plural in numbers},
            {noun.german_form(case, plural) for case in CASES for plural in numbers},
            "",
        )
    endings = {ending for column in STRONG.values() for ending in column.values()}
    for adjective in lexicon.ADJECTIVES:
        yield {adjective.english}, {adjective.german, *(adjective.stem + ending for ending in endings)}, ""
    for verb in lexicon.VERBS:
        if verb.english not in ("be", "have"):
            yield _english_forms(verb), _german_forms(verb), verb.particle
    for adverb in (*lexicon.TIMES, *lexicon.FREQUENCIES, lexicon.NEVER):
        if " " not in adverb.english + adverb.german:
            yield {adverb.english}, {adverb.german}, ""
    for name in lexicon.NAMES:
        yield {name.name}, {name.name, name.name + "s"}, ""
    for city in lexicon.CITIES:
        yield {city.english}, {city.german}, ""


def _english_forms(verb: Verb) -> set[str]:
    return {form(person) for person in PERSONS for form in (verb.english_present, verb.english_past)} | {verb.english}


def _german_forms(verb: Verb) -> set[str]:
    present = {verb.german_present(person) for person in PERSONS}
    joined = {verb.prefix + form for form in present}  # at the end of a subordinate clause
    return {*present, *joined, verb.participle, verb.infinitive, verb.zu_infinitive.removeprefix("zu ")}
