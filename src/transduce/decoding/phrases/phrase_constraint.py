"""Phrases in the search: the constraint that outputs have phrases, or do not have them, whatever the tokens.

The state of a row equals the state of its text (`matching.MatchState`): any tokens that spell a phrase meet it. A line
makes each state once, and keeps its successor by token: then a step costs a look-up for each row.

A required phrase asks for tokens that make progress: those that the tokenizer writes after a space, or without a space
where none comes before it. After a part that other tokens spelled, it is the longest piece that fits.
"""

from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from transduce.data.piece_bytes import piece_bytes
from transduce.data.vocabulary import EOS, TokenizerLike
from transduce.decoding.constraint import Constraint, NextTokens, PhraseProgress
from transduce.decoding.phrases.matching import OPENING, SPACE, START, UNSPACED, WORD, MatchState, PhraseList, kind_of

BROKEN = b"\xff"  # after bytes that are no character: a decoder may then replace characters before them too


class Pieces:
    """The text of each id of a vocabulary.

    bytes_of: by id; none for control ids. encode: text of the target language -> ids. eos: the id that ends an output.
    """

    def __init__(self, bytes_of: Sequence[bytes], encode: Callable[[str], Sequence[int]], eos: int = EOS) -> None:
        self.bytes_of = bytes_of
        self.encode = encode
        self.eos = eos
        self.texts = [_text_of(piece) for piece in bytes_of]  # "" where it is not whole characters
        self.last_kinds = [kind_of(text[-1]) if text else START for text in self.texts]
        self.ids = {piece: i for i, piece in enumerate(bytes_of) if piece}
        self.longest = max(map(len, bytes_of))
        starts = [i for i, text in enumerate(self.texts) if text and kind_of(text[0]) != WORD]
        self.word_ends = np.array(starts, dtype=np.int64)  # before which a word ends
        self.whole = np.array([i for i, text in enumerate(self.texts) if text], dtype=np.int64)
        self._ids_with = dict[str, set[int]]()  # by two characters with which a phrase may begin there, or the last one
        for i, text in enumerate(self.texts):
            for beginning in _beginnings(text):
                self._ids_with.setdefault(beginning, set()).add(i)
        # ids that change every state: they end in a space or within a character
        self.restless = {
            i for i, piece in enumerate(bytes_of) if piece and (not self.texts[i] or self.last_kinds[i] == SPACE)
        }

    def content(self, ids: Sequence[int]) -> bytes:
        """Return the text of ids, with the space before it."""
        return b"".join(self.bytes_of[token] for token in ids)

    def that_may_begin(self, phrase: str) -> set[int]:
        """Return the ids in which a phrase may begin, judged by its first two characters."""
        if len(phrase) > 1:
            return self._ids_with.get(phrase[:2], set()) | self._ids_with.get(phrase[0], set())
        return set[int]().union(*(ids for beginning, ids in self._ids_with.items() if beginning[0] == phrase))

    def longest_prefix(self, text: bytes) -> int | None:
        """Return the id of the longest piece that `text` begins with."""
        ends = range(min(self.longest, len(text)), 0, -1)
        return next((self.ids[text[:end]] for end in ends if text[:end] in self.ids), None)


_PIECES = WeakKeyDictionary[TokenizerLike, Pieces]()


def pieces_of(tokenizer: TokenizerLike) -> Pieces:
    """Return the pieces of the target language, made once. tokenizer: of the source language."""
    if tokenizer not in _PIECES:
        _PIECES[tokenizer] = Pieces(piece_bytes(tokenizer), tokenizer.target.encode)
    return _PIECES[tokenizer]


def _text_of(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return ""


def _beginnings(text: str) -> set[str]:
    """Return the two characters at each place of a piece at which a phrase may begin: not those within a word."""
    kinds = [START, *map(kind_of, text)]
    pairs = enumerate(zip(kinds, kinds[1:], strict=False))
    return {text[i : i + 2] for i, (last, kind) in pairs if not kind == last == WORD}


class PhraseTokens:
    """The tokens of a required phrase.

    spaced: all its tokens, with a space before it. glued: without a space, as after an opening bracket.
    ends: the bytes of the phrase after each token but the last; `progress` counts them.
    """

    def __init__(self, text: str, spaced: Sequence[int], glued: Sequence[int], pieces: Pieces) -> None:
        self.content = text.encode()
        self.spaced = spaced
        self.pieces = pieces
        self.ends_of_characters = np.cumsum([0, *(len(c.encode()) for c in text)]).tolist()
        self.is_unspaced = kind_of(text[0]) == UNSPACED
        self.is_after_space = len(pieces.bytes_of[spaced[0]]) == 1 < len(spaced) and not self.is_unspaced
        self.next_ids: dict[int, int | None] = {}
        for ids, first in ((spaced, -1), (glued, 0)) if self.is_unspaced else ((glued, 0), (spaced, -1)):
            offsets = first + np.cumsum([0, *(len(pieces.bytes_of[i]) for i in ids)])
            self.next_ids |= dict(zip(offsets.tolist(), ids, strict=False))
            if len(ids):
                self.ends: list[int] = offsets[1:-1].tolist()
        self.next_ids.pop(-1, None)

    @property
    def n_tokens(self) -> int:
        """The number of its tokens after a space."""
        return len(self.spaced)

    def next_id(self, offset: int) -> int | None:
        """Return the token that continues the first `offset` bytes; None if there is none."""
        if offset not in self.next_ids:
            self.next_ids[offset] = self.pieces.longest_prefix(self.content[offset:])
        return self.next_ids[offset]

    def progress(self, offset: int) -> int:
        """Return the number of tokens that end at `offset` or before it."""
        return bisect_right(self.ends, offset)

    def first_ids(self, last_kind: int) -> list[int | None]:
        """Return the tokens with which the phrase may begin after a character of a kind."""
        if self.is_unspaced:
            return [self.next_id(0), *self.spaced[: last_kind == START]]
        if last_kind == SPACE:
            return [self.next_id(0)]
        return [self.spaced[0], *([self.next_id(0)] if last_kind == OPENING else [])]


class PhraseState:
    """The state of a row: its text so far, and the tokens that it asks for next.

    rest: bytes of a character that is not whole yet. progress: tokens of required phrases. n_met: required phrases that
    the text has if it ends here. is_complete: the text may end here. is_at_risk: if a word ends here, the text has a
    forbidden phrase or a broken character. is_dead: it has one. is_pending: if a word ends here, it has one required
    phrase more. partial: required phrases that are partly written, as (phrase, bytes). busy: phrases that need no token
    of their beginning, by their place among the required ones.
    """

    def __init__(self, automaton: "PhraseAutomaton", match: MatchState, rest: bytes) -> None:
        self.automaton = automaton
        self.match = match
        self.rest = rest
        self._after: dict[int, PhraseState] | None = None  # most states have no successor
        self._wanted: tuple[int, ...] | None = None
        owners, times = automaton.phrases.owners, automaton.phrases.times
        ending = {owners[phrase] for phrase in match.pending}
        counts_at_end = [count + (owner in ending) for owner, count in enumerate(match.counts)]
        self.is_dead, self.is_at_risk = bool(match.forbidden) or rest == BROKEN, -1 in ending or bool(rest)
        self.n_met = sum(counts_at_end)
        self.is_complete = counts_at_end == [*times] and not self.is_dead and not self.is_at_risk
        self.is_idle = not (match.partial or match.pending or rest or match.last_kind == SPACE)
        self.is_pending = bool(ending - {-1}) and not self.is_at_risk
        self.progress, self.busy, self.partial = automaton.progress_of(match, rest, ending)
        self.figures = self.progress, self.n_met, self.is_at_risk, self.is_dead

    @property
    def wanted(self) -> tuple[int, ...]:
        """The tokens that make progress. Only a row needs them, and most states never belong to a row."""
        if self._wanted is None:
            self._wanted = self.automaton.wanted_of(self)
        return self._wanted

    def figures_after(self, token: int) -> tuple[int, int, bool, bool]:
        """Return progress, n_met, is_at_risk and is_dead after one more token; any id."""
        if self.is_idle and token not in self.automaton.touching:
            return self.figures  # most tokens have nothing to do with the phrases: no state for each of them
        return self.after(token).figures

    def after(self, token: int) -> "PhraseState":
        """Return the state after one more token; any id."""
        if self._after is None:
            self._after = {}
        state = self._after.get(token)
        if state is None:
            state = self._after[token] = self.automaton.state_after(self, token)
        return state


class PhraseAutomaton:
    """The states of the rows of a line, and how tokens lead from one to the next.

    required: the tokens of each required phrase, of all alternatives.
    """

    def __init__(self, phrases: PhraseList, required: Sequence[PhraseTokens], pieces: Pieces) -> None:
        self.phrases = phrases
        self.required = required
        self.pieces = pieces
        # ids that may begin a phrase, or end in a space
        self.touching = pieces.restless.union(*map(pieces.that_may_begin, phrases.texts))
        self.weights = [0] * len(phrases.required)
        for tokens, owner in zip(required, phrases.owners, strict=False):
            self.weights[owner] = max(self.weights[owner], tokens.n_tokens + 1)
        self.states: dict[tuple[MatchState, bytes], PhraseState] = {}
        self.start = self.state(phrases.start, b"")

    @cached_property
    def n_tokens(self) -> int:
        """The number of tokens of all required phrases."""
        return sum((weight - 1) * n for weight, n in zip(self.weights, self.phrases.times, strict=True))

    @cached_property
    def needed_ids(self) -> frozenset[int]:
        """The tokens by which the phrases may be written, whatever tokens spelled a part of one."""
        ids = set[int | None]()
        for tokens in self.required:
            ids |= {*tokens.spaced, *map(tokens.next_id, range(len(tokens.content)))}
        return frozenset(token for token in ids if token is not None)

    def state(self, match: MatchState, rest: bytes) -> PhraseState:
        """Return the state of a text; equal states are the same object."""
        state = self.states.get((match, rest))
        if state is None:
            state = self.states[match, rest] = PhraseState(self, match, rest)
        return state

    def state_after(self, state: PhraseState, token: int) -> PhraseState:
        """Return the state after one more token."""
        text = self.pieces.texts[token]
        if token == self.pieces.eos or not self.pieces.bytes_of[token]:
            return state
        if state.is_idle and token not in self.touching:
            return self.state(state.match._replace(last_kind=self.pieces.last_kinds[token]), b"")
        rest = b""
        if state.rest or not text:
            decoder = getincrementaldecoder("utf-8")()
            try:
                text = decoder.decode(state.rest + self.pieces.bytes_of[token])
            except UnicodeDecodeError:
                return self.state(state.match, BROKEN)
            rest = decoder.getstate()[0]
        match, begins = state.match, token in self.touching or bool(state.rest or rest)
        for character in text:
            match = self.phrases.read(match, character)
            if not (begins or match.partial or match.pending):  # what comes has nothing to do with the phrases
                match = match._replace(last_kind=self.pieces.last_kinds[token])
                break
        return self.state(match, rest)

    def progress_of(
        self, match: MatchState, rest: bytes, ending: set[int]
    ) -> tuple[int, tuple[int, ...], tuple[tuple[int, int], ...]]:
        """Return the number of tokens of required phrases in a text, and `busy` and `partial` of its state.

        Of phrases that are partly written, such as two with the same first word, one counts: then each step makes
        progress. ending: the required phrases that occur if a word ends here.
        """
        longest, busy = 0, {*ending}
        partial = self._partial(match, rest)
        for phrase, offset in partial:
            if count := self.required[phrase].progress(offset):
                longest = max(longest, count)
                busy.add(self.phrases.owners[phrase])
        met = sum(map(mul, self.weights, match.counts))
        ends = sum(self.weights[owner] - 1 for owner in ending if owner >= 0) if ending else 0
        return met + max(longest, ends), tuple(busy), tuple(partial)

    def wanted_of(self, state: PhraseState) -> tuple[int, ...]:
        """Return the ids that make progress."""
        phrases, match = self.phrases, state.match
        wanted = dict[int | None, None]()
        for phrase, offset in state.partial:
            wanted[self.required[phrase].next_id(offset)] = None
        for phrase, tokens in enumerate(self.required if not state.rest else ()):
            if phrases.owners[phrase] not in state.busy and phrases.is_open(match, phrase):
                wanted |= dict.fromkeys(tokens.first_ids(match.last_kind))
        if state.is_complete:
            wanted[self.pieces.eos] = None
        return tuple(token for token in wanted if token is not None)

    def _partial(self, match: MatchState, rest: bytes) -> list[tuple[int, int]]:
        """Return the required phrases that are partly written, and the number of their bytes in the text."""
        partial = list[tuple[int, int]]()
        for phrase, n in match.partial:
            if phrase < len(self.required):
                tokens = self.required[phrase]
                offset = tokens.ends_of_characters[n]
                if tokens.content.startswith(rest, offset):
                    partial.append((phrase, offset + len(rest)))
        if rest or match.last_kind == SPACE:
            for phrase, tokens in enumerate(self.required):
                is_within_word = match.last_kind == WORD and kind_of(self.phrases.texts[phrase][0]) == WORD
                is_new = tokens.content.startswith(rest) and not is_within_word if rest else tokens.is_after_space
                if is_new and self.phrases.is_open(match, phrase):
                    partial.append((phrase, len(rest)))
        return partial


@dataclass(frozen=True)
class PhraseConstraint(Constraint):
    """The constraint of phrases: the state of each row, None for a row without phrases."""

    states: Sequence[PhraseState | None]

    def allowed(self) -> dict[int, Sequence[int]]:
        """Return nothing: no row is restricted to a few tokens."""
        return {}

    def select(self, rows: Sequence[int]) -> "PhraseConstraint":
        """Return the phrases of `rows`."""
        return PhraseConstraint([self.states[row] for row in rows])

    def advance(self, ids: Sequence[int]) -> "PhraseConstraint | None":
        """Return the constraint after one more token for each row; None if no row has phrases."""
        states = [state and state.after(token) for state, token in zip(self.states, ids, strict=True)]
        return PhraseConstraint(states) if any(states) else None

    @property
    def extra_lengths(self) -> list[int]:
        """The number of tokens of the phrases of each row."""
        return [state.automaton.n_tokens if state else 0 for state in self.states]

    @property
    def needed_ids(self) -> list[frozenset[int]]:
        """The ids of the phrases of each row."""
        return [state.automaton.needed_ids if state else frozenset() for state in self.states]

    def next_tokens(self) -> NextTokens | None:
        """Return the tokens that the rows with phrases bar and want next."""
        rows = [row for row, state in enumerate(self.states) if state is not None]
        if not rows:
            return None
        places, ids = list[int](), list[int]()
        unfinished, pending = list[int](), list[int]()
        at_risk, broken = list[int](), list[int]()
        for place, state in enumerate(state for state in self.states if state is not None):
            places += [place] * len(state.wanted)
            ids += state.wanted
            if not state.is_complete:
                unfinished.append(place)
            if state.rest:
                broken.append(place)
            elif state.is_at_risk:
                at_risk.append(place)
            elif state.is_pending:
                pending.append(place)
        pieces = next(state.automaton.pieces for state in self.states if state is not None)
        barred = [(_array(unfinished), _array([pieces.eos])), (_array(at_risk), pieces.word_ends)]
        barred.append((_array(broken), pieces.whole))
        n_tokens = _array([state.automaton.n_tokens for state in self.states if state is not None])
        best_of = [(_array(pending), pieces.word_ends)]
        return NextTokens(_array(rows), barred, (_array(places), _array(ids)), best_of, n_tokens)

    def progress(self, rows: Sequence[int], ids: Sequence[int]) -> PhraseProgress:
        """Return the progress of rows after one more token each."""
        of_rows = ((self.states[row], token) for row, token in zip(rows, ids, strict=True))
        figures = _array([state.figures_after(token) for state, token in of_rows if state]).reshape(-1, 4)
        return PhraseProgress(figures[:, 0], figures[:, 1], *figures[:, 2:].T.astype(bool))


def _array(values: Sequence[Any]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def tokens_of(text: str, pieces: Pieces) -> PhraseTokens | None:
    """Return the tokens of a phrase; None for a text that cannot be written."""
    spaced, content = pieces.encode(text), text.encode()
    if pieces.content(spaced) == content:  # a tokenizer that writes no space at the beginning of a line
        space = pieces.ids.get(b" ")
        return PhraseTokens(text, spaced if space is None else [space, *spaced], spaced, pieces)
    if pieces.content(spaced) != b" " + content:  # the tokenizer writes it in another way, as e\u0301 for \u00e9
        spelled = [pieces.ids.get(bytes([byte]), -1) for byte in b" " + content]
        return None if -1 in spelled else PhraseTokens(text, spelled, spelled[1:], pieces)
    glued = pieces.encode(("." if text[0].isalnum() else "a") + text)
    while glued and pieces.content(glued) != content:
        glued = glued[1:]
    return PhraseTokens(text, spaced, glued, pieces)
