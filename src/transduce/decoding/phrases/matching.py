"""Phrases in a text, as whole words: which occur, how often, and which are partly written. It knows no tokens.

A phrase occurs where the text has its characters, case and all, as whole words: at neither of its ends
is a word character of the phrase next to a word character of the text. Letters, marks and digits are word characters.
In scripts without spaces, such as Chinese, Japanese and Thai, they are not, so there a phrase is any substring.

A text is read character by character. The next character shows whether a word ends: until then a phrase that ends with
a word character is pending.
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


class MatchState(NamedTuple):
    """The state after a part of a text. Phrases are numbered as in `PhraseList.texts`.

    last_kind: of the last character. counts: the occurrences of each required phrase so far, at most as many as are
    required. partial: phrases whose first n characters are the last ones of the text, as (phrase, n). pending: phrases
    that occur if a word ends here. forbidden: forbidden phrases that occur.
    """

    last_kind: int
    counts: tuple[int, ...]
    partial: tuple[tuple[int, int], ...] = ()
    pending: tuple[int, ...] = ()
    forbidden: frozenset[int] = frozenset()


class PhraseList:
    """The phrases that a text must have, and the phrases that it must not have.

    required: the alternatives of each required phrase, any of which suffices. A phrase that is listed n times must
    occur n times, without overlap. Different required phrases may overlap.
    """

    def __init__(self, required: Sequence[Sequence[str]], forbidden: Sequence[str] = ()) -> None:
        self.required = [*dict.fromkeys(tuple(alternatives) for alternatives in required)]
        self.times = tuple([tuple(phrase) for phrase in required].count(phrase) for phrase in self.required)
        self.forbidden = [*dict.fromkeys(forbidden)]
        self.texts = [text for alternatives in self.required for text in alternatives] + self.forbidden
        owners = [owner for owner, alternatives in enumerate(self.required) for _ in alternatives]
        self.owners = owners + [-1] * len(self.forbidden)  # the required phrase of each text; -1: it is forbidden
        self.start = MatchState(START, (0,) * len(self.required))

    @cached_property
    def by_first_character(self) -> dict[str, list[int]]:
        """The phrases that begin with each character."""
        phrases = dict[str, list[int]]()
        for phrase, text in enumerate(self.texts):
            phrases.setdefault(text[0], []).append(phrase)
        return phrases

    def is_open(self, state: MatchState, phrase: int) -> bool:
        """Return True for a forbidden phrase, and for a required one that does not occur often enough yet."""
        owner = self.owners[phrase]
        return owner < 0 or state.counts[owner] < self.times[owner]

    def read(self, state: MatchState, character: str) -> MatchState:
        """Return the state after one more character."""
        kind = kind_of(character)
        is_within_word = kind == WORD and state.last_kind == WORD
        if state.pending and not is_within_word:
            return self._read_end(state, character)
        longer = list[tuple[int, int]]()
        for phrase, n in state.partial:
            text = self.texts[phrase]
            if text[n] == character:
                if n + 1 == len(text):
                    return self._read_end(state, character)
                longer.append((phrase, n + 1))
        if not is_within_word:
            for phrase in self.by_first_character.get(character, ()):
                if self.is_open(state, phrase):
                    if len(self.texts[phrase]) == 1:
                        return self._read_end(state, character)
                    longer.append((phrase, 1))
        return MatchState(kind, state.counts, tuple(longer), (), state.forbidden)

    def _read_end(self, state: MatchState, character: str) -> MatchState:
        """Return the state after a character at which phrases end, or whose end the next character shows."""
        kind = kind_of(character)
        is_within_word = kind == WORD and state.last_kind == WORD
        counts = [*state.counts]
        forbidden, closed = state.forbidden, set[int]()

        def end(phrase: int) -> None:
            nonlocal forbidden
            owner = self.owners[phrase]
            if owner < 0:
                forbidden |= {phrase}
            elif owner not in closed:
                closed.add(owner)
                counts[owner] = min(counts[owner] + 1, self.times[owner])

        if not is_within_word:
            for phrase in state.pending:
                end(phrase)
        partial = [started for started in state.partial if self.owners[started[0]] not in closed]
        if not is_within_word:
            first = self.by_first_character.get(character, ())
            partial += [(phrase, 0) for phrase in first if self.is_open(state, phrase)]
        longer, pending = list[tuple[int, int]](), list[int]()
        closed.clear()
        for phrase, n in partial:
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
        return MatchState(kind, tuple(counts), tuple(longer), tuple(pending), forbidden)

    def read_all(self, text: str) -> MatchState:
        """Return the state after a whole text, at the end of which words end too."""
        state = self.start
        for character in text:
            state = self.read(state, character)
        return self.read(state, " ")

    def forbidden_in(self, text: str) -> list[str]:
        """Return the forbidden phrases in the first part of a text, whose last word may be longer in the whole text."""
        state = self.start
        for character in text:
            state = self.read(state, character)
        return [self.texts[phrase] for phrase in sorted(state.forbidden)]

    def unmet(self, text: str) -> tuple[str, ...]:
        """Return the required phrases that a text lacks, as often as they are missing, and the forbidden ones in it.

        The alternatives of a required phrase are joined by `|`.
        """
        if not self.texts:
            return ()
        state = self.read_all(text)
        names = ["|".join(alternatives) for alternatives in self.required]
        missing = [n - count for n, count in zip(self.times, state.counts, strict=True)]
        return (
            *(name for name, count in zip(names, missing, strict=True) for _ in range(count)),
            *(self.texts[phrase] for phrase in sorted(state.forbidden)),
        )
