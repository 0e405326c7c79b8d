"""Phrases in the search: the constraint that outputs have phrases, or do not have them, whatever the tokens.

The state of a row is that of its text (`matching.Reading`), so any tokens that spell a phrase meet it. A line makes
each state once, and keeps what follows it by token: then a step costs a look-up for each row.

A demand asks for tokens that make progress. Those of a phrase are the ones that the tokenizer writes after a space, or
without a space where none comes before it. After a part that other tokens spelled, it is the longest piece that fits.
"""

from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from transduce.data.piece_bytes import piece_bytes
from transduce.data.vocabulary import EOS, TokenizerLike
from transduce.decoding.constraint import Constraint, Demands, Standing
from transduce.decoding.phrases.matching import OPENING, SPACE, START, UNSPACED, WORD, PhraseList, Reading, kind_of

BROKEN = b"\xff"  # after bytes that are no character: a decoder may then replace characters before them too


class Pieces:
    """The text of each id of a vocabulary.

    bytes_of: by id; none for control ids. encode: text of the target language -> ids. eos: the id that ends an output.
    """

    def __init__(self, bytes_of: Sequence[bytes], encode: Callable[[str], Sequence[int]], eos: int = EOS) -> None:
        self.bytes_of, self.encode, self.eos = bytes_of, encode, eos
        self.texts = [_text_of(piece) for piece in bytes_of]  # "" where it is not whole characters
        self.first_characters = [_first_characters(text) for text in self.texts]
        self.last_kinds = [kind_of(text[-1]) if text else START for text in self.texts]
        self.ids = {piece: i for i, piece in enumerate(bytes_of) if piece}
        self.longest = max(map(len, bytes_of))
        starts = [i for i, text in enumerate(self.texts) if text and kind_of(text[0]) != WORD]
        self.word_ends = np.array(starts, dtype=np.int64)  # before which a word ends
        self.whole = np.array([i for i, text in enumerate(self.texts) if text], dtype=np.int64)

    def content(self, ids: Sequence[int]) -> bytes:
        """Return the text of ids, with the space before it."""
        return b"".join(self.bytes_of[token] for token in ids)

    def longest_prefix(self, text: bytes) -> int | None:
        """Return the id of the longest piece that `text` begins with."""
        ends = range(min(self.longest, len(text)), 0, -1)
        return next((self.ids[text[:end]] for end in ends if text[:end] in self.ids), None)


@lru_cache(maxsize=4)
def target_of(tokenizer: TokenizerLike) -> TokenizerLike:
    """Return the tokenizer of the target language, made once."""
    return tokenizer.target


@lru_cache(maxsize=4)
def pieces_of(tokenizer: TokenizerLike) -> Pieces:
    """Return the pieces of the target language. tokenizer: of the source language."""
    return Pieces(piece_bytes(tokenizer), target_of(tokenizer).encode)


def _text_of(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return ""


def _first_characters(text: str) -> frozenset[str]:
    """Return the characters of a piece with which a phrase may begin: not those within a word."""
    kinds = [START, *map(kind_of, text)]
    return frozenset(c for c, kind, last in zip(text, kinds[1:], kinds, strict=False) if not kind == last == WORD)


class Path:
    """The tokens of a phrase.

    spaced: with a space before it; all tokens of it. glued: without a space, as after an opening bracket.
    steps: the bytes of the phrase after each token but the last; `progress` counts them.
    """

    def __init__(self, text: str, spaced: Sequence[int], glued: Sequence[int], pieces: Pieces) -> None:
        self.content, self.spaced, self.pieces = text.encode(), spaced, pieces
        self.ends_of_characters = np.cumsum([0, *(len(c.encode()) for c in text)]).tolist()
        self.is_unspaced = kind_of(text[0]) == UNSPACED
        self.after_space = len(pieces.bytes_of[spaced[0]]) == 1 < len(spaced) and not self.is_unspaced
        self.next_ids: dict[int, int | None] = {}
        for ids, begin in ((spaced, -1), (glued, 0)) if self.is_unspaced else ((glued, 0), (spaced, -1)):
            steps = begin + np.cumsum([0, *(len(pieces.bytes_of[i]) for i in ids)])
            self.next_ids |= dict(zip(steps.tolist(), ids, strict=False))
            if len(ids):
                self.steps: list[int] = steps[1:-1].tolist()
        self.next_ids.pop(-1, None)

    @property
    def n_tokens(self) -> int:
        """The number of its tokens after a space."""
        return len(self.spaced)

    def next_id(self, offset: int) -> int | None:
        """Return the token that goes on after the first `offset` bytes; None if there is none."""
        if offset not in self.next_ids:
            self.next_ids[offset] = self.pieces.longest_prefix(self.content[offset:])
        return self.next_ids[offset]

    def progress(self, offset: int) -> int:
        """Return the number of tokens that end at `offset` or before it."""
        return bisect_right(self.steps, offset)

    def first_ids(self, last: int) -> list[int | None]:
        """Return the tokens with which the phrase may begin after a character of kind `last`."""
        if self.is_unspaced:
            return [self.next_id(0), *self.spaced[: last == START]]
        if last == SPACE:
            return [self.next_id(0)]
        return [self.spaced[0], *([self.next_id(0)] if last == OPENING else [])]


class State:
    """The state of a row: the text so far, and what it asks of the next token.

    rest: bytes of a character that is not whole yet. progress: tokens towards the demands. n_met: demands that are met
    if the text ends here. is_complete: the text may end here. is_at_risk: if a word ends here, it has a forbidden
    phrase or a broken character. is_dead: it has one. waits: if a word ends here, it has a phrase of a demand. wanted:
    tokens that make progress.
    """

    def __init__(self, line: "LinePhrases", reading: Reading, rest: bytes) -> None:
        self.line, self.reading, self.rest = line, reading, rest
        self._after: dict[int, State] = {}
        owners, times = line.phrases.owners, line.phrases.times
        ending = {owners[phrase] for phrase in reading.pending}
        at_end = [count + (owner in ending) for owner, count in enumerate(reading.counts)]
        self.is_dead, self.is_at_risk = bool(reading.forbidden) or rest == BROKEN, -1 in ending or bool(rest)
        self.n_met = sum(at_end)
        self.is_complete = at_end == [*times] and not self.is_dead and not self.is_at_risk
        self.is_idle = not (reading.begun or reading.pending or rest)
        self.waits = bool(ending - {-1}) and not self.is_at_risk
        self.progress, self.wanted = line.progress_of(reading, rest, ending, self.is_complete)

    def after(self, token: int) -> "State":
        """Return the state after one more token; any id."""
        state = self._after.get(token)
        if state is None:
            state = self._after[token] = self.line.state_after(self, token)
        return state


class LinePhrases:
    """The phrases of a line as tokens, and the states of its rows. paths: of each phrase that is demanded."""

    def __init__(self, phrases: PhraseList, paths: Sequence[Path], pieces: Pieces) -> None:
        self.phrases, self.paths, self.pieces = phrases, paths, pieces
        self.first_characters = frozenset(phrases.starting)
        self.weights = [0] * len(phrases.demands)
        for path, owner in zip(paths, phrases.owners, strict=False):
            self.weights[owner] = max(self.weights[owner], path.n_tokens + 1)
        self.states: dict[tuple[Reading, bytes], State] = {}
        self.start = self.state(phrases.start, b"")

    @cached_property
    def n_tokens(self) -> int:
        """The number of tokens of all that is demanded."""
        return sum((weight - 1) * n for weight, n in zip(self.weights, self.phrases.times, strict=True))

    def state(self, reading: Reading, rest: bytes) -> State:
        """Return the state of a text; equal states are the same object."""
        state = self.states.get((reading, rest))
        if state is None:
            state = self.states[reading, rest] = State(self, reading, rest)
        return state

    def state_after(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        text = self.pieces.texts[token]
        if token == self.pieces.eos or not self.pieces.bytes_of[token]:
            return state
        if text and state.is_idle and self.first_characters.isdisjoint(self.pieces.first_characters[token]):
            return self.state(state.reading._replace(last=self.pieces.last_kinds[token]), b"")
        rest = b""
        if state.rest or not text:
            decoder = getincrementaldecoder("utf-8")()
            try:
                text = decoder.decode(state.rest + self.pieces.bytes_of[token])
            except UnicodeDecodeError:
                return self.state(state.reading, BROKEN)
            rest = decoder.getstate()[0]
        reading = state.reading
        for character in text:
            reading = self.phrases.read(reading, character)
        return self.state(reading, rest)

    def progress_of(
        self, reading: Reading, rest: bytes, ending: set[int], is_complete: bool
    ) -> tuple[int, tuple[int, ...]]:
        """Return the tokens that are done of all demands, and the ids that make progress.

        Of phrases that have begun, such as two with the same first word, one counts: then each step makes progress.
        ending: the demands that are met if a word ends here.
        """
        phrases, begun, busy = self.phrases, 0, {*ending}
        wanted = dict[int | None, None]()
        for phrase, offset in self._begun(reading, rest):
            path = self.paths[phrase]
            wanted[path.next_id(offset)] = None
            if tokens := path.progress(offset):
                begun = max(begun, tokens)
                busy.add(phrases.owners[phrase])
        for phrase, path in enumerate(self.paths if not rest else ()):
            if phrases.owners[phrase] not in busy and phrases.is_open(reading, phrase):
                wanted |= dict.fromkeys(path.first_ids(reading.last))
        if is_complete:
            wanted[self.pieces.eos] = None
        met = sum(weight * count for weight, count in zip(self.weights, reading.counts, strict=True))
        ends = sum(self.weights[owner] - 1 for owner in ending if owner >= 0)
        return met + max(begun, ends), tuple(token for token in wanted if token is not None)

    def _begun(self, reading: Reading, rest: bytes) -> list[tuple[int, int]]:
        """Return the demanded phrases that have begun, and how many of their bytes are there."""
        begun = list[tuple[int, int]]()
        for phrase, n in reading.begun:
            if phrase < len(self.paths):
                path = self.paths[phrase]
                offset = path.ends_of_characters[n]
                if path.content.startswith(rest, offset):
                    begun.append((phrase, offset + len(rest)))
        if rest or reading.last == SPACE:
            for phrase, path in enumerate(self.paths):
                is_within_word = reading.last == WORD and kind_of(self.phrases.texts[phrase][0]) == WORD
                is_new = path.content.startswith(rest) and not is_within_word if rest else path.after_space
                if is_new and self.phrases.is_open(reading, phrase):
                    begun.append((phrase, len(rest)))
        return begun


@dataclass(frozen=True)
class Phrases(Constraint):
    """The constraint of phrases: of each row its state, or None if it has no phrases."""

    states: Sequence[State | None]

    def allowed(self) -> dict[int, Sequence[int]]:
        """Return nothing: no row is restricted to a few tokens."""
        return {}

    def select(self, rows: Sequence[int]) -> "Phrases":
        """Return the phrases of `rows`."""
        return Phrases([self.states[row] for row in rows])

    def advance(self, ids: Sequence[int]) -> "Phrases | None":
        """Return the constraint after one more token for each row; None if no row has phrases."""
        states = [state and state.after(token) for state, token in zip(self.states, ids, strict=True)]
        return Phrases(states) if any(states) else None

    @property
    def extra_lengths(self) -> list[int]:
        """The number of tokens of the phrases of each row."""
        return [state.line.n_tokens if state else 0 for state in self.states]

    def demands(self) -> Demands | None:
        """Return what the rows with phrases ask of the next token."""
        rows = [row for row, state in enumerate(self.states) if state is not None]
        if not rows:
            return None
        places, ids = list[int](), list[int]()
        unfinished, waiting, at_risk, broken = list[int](), list[int](), list[int](), list[int]()
        for place, state in enumerate(state for state in self.states if state is not None):
            places += [place] * len(state.wanted)
            ids += state.wanted
            if not state.is_complete:
                unfinished.append(place)
            if state.rest:
                broken.append(place)
            elif state.is_at_risk:
                at_risk.append(place)
            elif state.waits:
                waiting.append(place)
        pieces = next(state.line.pieces for state in self.states if state is not None)
        barred = [(_array(unfinished), _array([pieces.eos])), (_array(at_risk), pieces.word_ends)]
        barred.append((_array(broken), pieces.whole))
        n_tokens = _array([state.line.n_tokens for state in self.states if state is not None])
        best_of = [(_array(waiting), pieces.word_ends)]
        return Demands(_array(rows), barred, (_array(places), _array(ids)), best_of, n_tokens)

    def standing(self, rows: Sequence[int], ids: Sequence[int]) -> Standing:
        """Return where rows stand after one more token each."""
        states = [state.after(token) for row, token in zip(rows, ids, strict=True) if (state := self.states[row])]
        flags = np.array([(s.is_at_risk, s.is_dead) for s in states], dtype=bool).reshape(-1, 2)
        return Standing(_array([s.progress for s in states]), _array([s.n_met for s in states]), *flags.T)


def _array(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def path_of(text: str, pieces: Pieces) -> Path | None:
    """Return the tokens of a phrase; None for a text that cannot be written."""
    spaced, content = pieces.encode(text), text.encode()
    if pieces.content(spaced) == content:  # a tokenizer that writes no space at the beginning of a line
        space = pieces.ids.get(b" ")
        return Path(text, spaced if space is None else [space, *spaced], spaced, pieces)
    if pieces.content(spaced) != b" " + content:
        return None
    glued = pieces.encode(("." if text[0].isalnum() else "a") + text)
    while glued and pieces.content(glued) != content:
        glued = glued[1:]
    return Path(text, spaced, glued, pieces)
