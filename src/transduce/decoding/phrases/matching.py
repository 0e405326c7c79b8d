"""Phrases in a text, as whole words: what occurs, how often, and what has begun at its end. It knows no tokens.

A phrase occurs where the text has its characters, case and all, as whole words: neither at its begin nor at its end are
two word characters side by side, one in the phrase and one outside. Letters, marks and digits are word characters. But
those of scripts without spaces, such as Chinese, Japanese and Thai, are not, so there a phrase is any substring.

A text is read character by character. An end of a word shows in the next character: a phrase that has just been read
is pending until then.
"""

import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

START, SPACE, OPENING, OTHER, WORD, UNSPACED = range(6)  # kinds of a character; START: before the first one

# First and last characters of the blocks of scripts that do not write spaces between words.
_UNSPACED = (
    ("\u0e00", "\u0fff"),  # Thai, Lao, Tibetan
    ("\u1000", "\u109f"),  # Myanmar
    ("\u1780", "\u17ff"),  # Khmer
    ("\u1950", "\u19ff"),  # Tai Le, New Tai Lue
    ("\u1a20", "\u1aaf"),  # Tai Tham
    ("\u2e80", "\u2fdf"),  # radicals
    ("\u3005", "\u3007"),
    ("\u3021", "\u3029"),
    ("\u3040", "\u312f"),  # Hiragana, Katakana, Bopomofo
    ("\u31a0", "\u31bf"),
    ("\u31f0", "\u31ff"),
    ("\u3400", "\u4dbf"),  # Chinese characters
    ("\u4e00", "\ua4cf"),  # Chinese characters, Yi
    ("\ua9e0", "\ua9ff"),
    ("\uaa60", "\uaa7f"),
    ("\uf900", "\ufaff"),
    ("\uff66", "\uff9f"),
    ("\U0001b000", "\U0001b16f"),
    ("\U00020000", "\U0003ffff"),
)


@lru_cache(maxsize=1 << 16)
def kind_of(character: str) -> int:
    """Return the kind of a character."""
    category = unicodedata.category(character)
    if category[0] in "LMN":
        return UNSPACED if any(first <= character <= last for first, last in _UNSPACED) else WORD
    if character.isspace():
        return SPACE
    return OPENING if category in ("Ps", "Pi", "Pd") or character in "\"'/" else OTHER


class Reading(NamedTuple):
    """The state after a part of a text. Phrases are numbered as in `PhraseList.texts`.

    last: the kind of the last character. counts: of each demand how often it occurs so far, at most as often as it
    must. begun: phrases of which the first characters are the last ones of the text, and how many characters. pending:
    phrases that end here if a word does. forbidden: forbidden phrases that occur.
    """

    last: int
    counts: tuple[int, ...]
    begun: tuple[tuple[int, int], ...] = ()
    pending: tuple[int, ...] = ()
    forbidden: frozenset[int] = frozenset()


class PhraseList:
    """The phrases that a text must have, and those that it must not have.

    demands: of each demand its alternatives, any of which suffices. A demand that is there n times must be met n times,
    by occurrences that do not overlap. Those of different demands may.
    """

    def __init__(self, demands: Sequence[Sequence[str]], forbidden: Sequence[str] = ()) -> None:
        self.demands = [*dict.fromkeys(tuple(alternatives) for alternatives in demands)]
        self.times = tuple([tuple(one) for one in demands].count(one) for one in self.demands)
        self.forbidden = [*dict.fromkeys(forbidden)]
        self.texts = [text for alternatives in self.demands for text in alternatives] + self.forbidden
        owners = [owner for owner, alternatives in enumerate(self.demands) for _ in alternatives]
        self.owners = owners + [-1] * len(self.forbidden)  # the demand of each phrase; -1: it is forbidden
        self.start = Reading(START, (0,) * len(self.demands))

    @cached_property
    def starting(self) -> dict[str, list[int]]:
        """The phrases that begin with a character."""
        starting = dict[str, list[int]]()
        for phrase, text in enumerate(self.texts):
            starting.setdefault(text[0], []).append(phrase)
        return starting

    def is_open(self, reading: Reading, phrase: int) -> bool:
        """Return True for a forbidden phrase, and for one of a demand that is not met as often as it must."""
        owner = self.owners[phrase]
        return owner < 0 or reading.counts[owner] < self.times[owner]

    def read(self, reading: Reading, character: str) -> Reading:
        """Return the state after one more character."""
        kind = kind_of(character)
        is_within_word = kind == WORD and reading.last == WORD
        if not (reading.begun or reading.pending) and (is_within_word or character not in self.starting):
            return Reading(kind, reading.counts, (), (), reading.forbidden)
        counts, forbidden, closed = [*reading.counts], reading.forbidden, set[int]()

        def end(phrase: int) -> None:
            nonlocal forbidden
            owner = self.owners[phrase]
            if owner < 0:
                forbidden |= {phrase}
            elif owner not in closed:
                closed.add(owner)
                counts[owner] = min(counts[owner] + 1, self.times[owner])

        if not is_within_word:
            for phrase in reading.pending:
                end(phrase)
        begun = [one for one in reading.begun if self.owners[one[0]] not in closed]
        if not is_within_word:
            begun += [(phrase, 0) for phrase in self.starting.get(character, ()) if self.is_open(reading, phrase)]
        longer, pending = list[tuple[int, int]](), list[int]()
        closed.clear()
        for phrase, n in begun:
            text = self.texts[phrase]
            if text[n] != character:
                continue
            if n + 1 < len(text):
                longer.append((phrase, n + 1))
            elif kind == WORD:
                pending.append(phrase)
            else:
                end(phrase)  # no word character is on both sides of its end
        still_open = [counts[owner] < times for owner, times in enumerate(self.times)]
        longer = [
            (phrase, n)
            for phrase, n in longer
            if (owner := self.owners[phrase]) < 0 or still_open[owner] and owner not in closed
        ]
        pending = [phrase for phrase in pending if (owner := self.owners[phrase]) < 0 or still_open[owner]]
        return Reading(kind, tuple(counts), tuple(longer), tuple(pending), forbidden)

    def read_all(self, text: str) -> Reading:
        """Return the state after a whole text, at the end of which words end too."""
        reading = self.start
        for character in text:
            reading = self.read(reading, character)
        return self.read(reading, " ")

    def forbidden_in(self, text: str) -> list[str]:
        """Return the forbidden phrases in the beginning of a text, at the end of which a word may go on."""
        reading = self.start
        for character in text:
            reading = self.read(reading, character)
        return [self.texts[phrase] for phrase in sorted(reading.forbidden)]

    def unmet(self, text: str) -> tuple[str, ...]:
        """Return the demands that a text does not meet, as often as they are missing, and the forbidden phrases in it.

        The alternatives of a demand are joined by `|`.
        """
        reading = self.read_all(text)
        names = ["|".join(alternatives) for alternatives in self.demands]
        missing = [n - count for n, count in zip(self.times, reading.counts, strict=True)]
        return (
            *(name for name, count in zip(names, missing, strict=True) for _ in range(count)),
            *(self.texts[phrase] for phrase in sorted(reading.forbidden)),
        )
