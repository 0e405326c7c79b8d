"""Constraints: which tokens may come next in each row of a search. Without torch."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from transduce.errors import UserError

Product = tuple[np.ndarray, np.ndarray]  # places among some rows, and ids: each of the ids in each of the rows


class NextTokens(NamedTuple):
    """The tokens that rows of sentences with phrases bar or want next, in addition to the allowed ones.

    rows: (R,) int64, ascending. Places are indices into it.
    barred: the ids that may not come next. wanted: (places, ids) of tokens that make progress, pair by pair. best_of:
    the most likely one of the ids is wanted too. The wanted tokens are candidates, however unlikely they are.
    n_tokens: (R,) of all phrases that the output must have.
    """

    rows: np.ndarray
    barred: Sequence[Product]
    wanted: tuple[np.ndarray, np.ndarray]
    best_of: Sequence[Product]
    n_tokens: np.ndarray


class PhraseProgress(NamedTuple):
    """The progress of R rows towards the phrases that their outputs must have; all (R,).

    n_tokens: tokens of these phrases so far. n_met: phrases that the output has if it ends here. is_at_risk: the output
    must not end here, and the next token is one of few. is_dead: no output may begin with these tokens.
    """

    n_tokens: np.ndarray
    n_met: np.ndarray
    is_at_risk: np.ndarray
    is_dead: np.ndarray


class Constraint(Protocol):
    """The tokens that may come next in each of the N rows of a search, given the tokens so far of each row.

    A constraint is a value: `select` and `advance` return another one and leave this one as it is. So a constraint may
    keep a state for each row (the rest of a prefix, brackets that are open), and beams cannot mix the states.
    A request holds the constraint before the first token, with one row for each sentence. After each step the search
    selects the rows that stay, where a beam may repeat a row, and advances each of them by its new token.

    - The answer for a row depends only on its sentence and its tokens. Otherwise the batch would change an output.
    - The search never asks for a row that a beam has given up, but selects and advances it like the others, by any id.
    - A token that a constraint allows may be one of the banned ones. EOS never comes before `search.min_tokens`.
    - A row that allows no token ends the search with FloatingPointError, unless its sentence has other hypotheses.
    """

    def allowed(self) -> Mapping[int, Sequence[int]]:
        """Return the ids that may come next, by row. A row that is missing is free: any id may come next."""
        ...

    def select(self, rows: Sequence[int]) -> "Constraint":
        """Return the constraint whose row i is row rows[i] of this one."""
        ...

    def advance(self, ids: Sequence[int]) -> "Constraint | None":
        """Return the constraint after one more token for each row, ids[i] for row i. None: all rows stay free."""
        ...

    def next_tokens(self) -> NextTokens | None:
        """Return the tokens that rows bar or want next; None for none. A beam shares its places by their progress."""
        return None

    def progress(self, rows: Sequence[int], ids: Sequence[int]) -> PhraseProgress:
        """Return the progress of rows of `next_tokens` after one more token each: ids[i] in row rows[i]."""
        nothing, never = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
        return PhraseProgress(nothing, nothing, never, never)

    @property
    def extra_lengths(self) -> Sequence[int]:
        """The numbers of tokens that are added to the maximum length of each row; empty: none are added."""
        return ()

    @property
    def needed_ids(self) -> Sequence[Collection[int]]:
        """The ids that the output of each row may need, whatever its source; empty: of no row."""
        return ()


@dataclass(frozen=True)
class Prefixes(Constraint):
    """The constraint that each output begins with given ids: row i must continue with prefixes[i][length:]."""

    prefixes: Sequence[Sequence[int]]
    length: int = 0  # tokens so far

    def allowed(self) -> dict[int, Sequence[int]]:
        """Return the next id of each prefix that has not ended."""
        n = self.length
        return {row: prefix[n : n + 1] for row, prefix in enumerate(self.prefixes) if len(prefix) > n}

    def select(self, rows: Sequence[int]) -> "Prefixes":
        """Return the prefixes of `rows`."""
        return Prefixes([self.prefixes[row] for row in rows], self.length)

    @property
    def needed_ids(self) -> Sequence[Collection[int]]:
        """The ids of each prefix."""
        return self.prefixes

    def advance(self, ids: Sequence[int]) -> "Prefixes | None":
        """Return the prefixes with one token done; None once all of them have ended."""
        length = self.length + 1
        return Prefixes(self.prefixes, length) if any(len(prefix) > length for prefix in self.prefixes) else None


@dataclass(frozen=True)
class Both(Constraint):
    """Two constraints on the same rows: the outputs begin with the prefixes, and meet the other one."""

    prefixes: Prefixes
    other: Constraint

    def allowed(self) -> Mapping[int, Sequence[int]]:
        """Return the ids that may come next, by row: within a prefix its next one."""
        return {**self.other.allowed(), **self.prefixes.allowed()}

    def select(self, rows: Sequence[int]) -> "Both":
        """Return the constraint whose row i is row rows[i] of this one."""
        return Both(self.prefixes.select(rows), self.other.select(rows))

    def advance(self, ids: Sequence[int]) -> Constraint | None:
        """Return the constraint after one more token for each row; None if all rows stay free."""
        prefixes, other = self.prefixes.advance(ids), self.other.advance(ids)
        return Both(prefixes, other) if prefixes is not None and other is not None else prefixes or other

    def next_tokens(self) -> NextTokens | None:
        """Return the tokens that the other one bars or wants next."""
        return self.other.next_tokens()

    def progress(self, rows: Sequence[int], ids: Sequence[int]) -> PhraseProgress:
        """Return the progress of rows by the other one."""
        return self.other.progress(rows, ids)

    @property
    def extra_lengths(self) -> Sequence[int]:
        """The numbers of tokens that are added to the maximum length of each row."""
        return self.other.extra_lengths

    @property
    def needed_ids(self) -> Sequence[Collection[int]]:
        """The ids of each prefix, and the ids that the other constraint needs."""
        others = self.other.needed_ids or [()] * len(self.prefixes.prefixes)
        return [{*both[0], *both[1]} for both in zip(self.prefixes.prefixes, others, strict=True)]


@dataclass(frozen=True)
class Joined(Constraint):
    """The constraints of several groups of rows, one group after the other.

    parts: the constraint of each group, None if its rows are free, and its number of rows. A selection keeps the rows
    of a group together, and the groups in order.
    """

    parts: Sequence[tuple[Constraint | None, int]]

    def allowed(self) -> dict[int, Sequence[int]]:
        """Return the ids that may come next, by row."""
        allowed, first = dict[int, Sequence[int]](), 0
        for constraint, n_rows in self.parts:
            if constraint is not None:
                allowed |= {first + row: ids for row, ids in constraint.allowed().items()}
            first += n_rows
        return allowed

    def select(self, rows: Sequence[int]) -> "Joined":
        """Return the constraint whose row i is row rows[i] of this one."""
        parts = list[tuple[Constraint | None, int]]()
        first, begin = 0, 0
        for constraint, n_rows in self.parts:
            first, end = first + n_rows, begin
            while end < len(rows) and rows[end] < first:
                end += 1
            of_part = [row - (first - n_rows) for row in rows[begin:end]]
            if of_part:
                parts.append((constraint and constraint.select(of_part), len(of_part)))
            begin = end
        return Joined(parts)

    def advance(self, ids: Sequence[int]) -> "Joined | None":
        """Return the constraints after one more token for each row; None if all rows stay free."""
        parts, begin = list[tuple[Constraint | None, int]](), 0
        for constraint, n_rows in self.parts:
            end = begin + n_rows
            parts.append((constraint and constraint.advance(ids[begin:end]), n_rows))
            begin = end
        return Joined(parts) if any(constraint is not None for constraint, _ in parts) else None

    def next_tokens(self) -> NextTokens | None:
        """Return the tokens that rows bar or want next; None for none."""
        rows, n_tokens = list[np.ndarray](), list[np.ndarray]()
        barred = list[Product]()
        wanted = list[Product]()
        best_of = list[Product]()
        first, n_rows = 0, 0
        for constraint, n in self.parts:
            if constraint is not None and (of_part := constraint.next_tokens()) is not None:
                rows.append(of_part.rows + first)
                barred += [(places + n_rows, ids) for places, ids in of_part.barred]
                best_of += [(places + n_rows, ids) for places, ids in of_part.best_of]
                wanted.append((of_part.wanted[0] + n_rows, of_part.wanted[1]))
                n_tokens.append(of_part.n_tokens)
                n_rows += len(of_part.rows)
            first += n
        if not rows:
            return None
        places, ids = (np.concatenate(arrays) for arrays in zip(*wanted, strict=True))
        return NextTokens(np.concatenate(rows), barred, (places, ids), best_of, np.concatenate(n_tokens))

    def progress(self, rows: Sequence[int], ids: Sequence[int]) -> PhraseProgress:
        """Return the progress of rows after one more token each."""
        parts = np.searchsorted(self._ends, rows, side="right")
        of_rows = np.zeros((4, len(rows)), dtype=np.int64)
        for part in {*parts.tolist()}:
            places, first = (parts == part).nonzero()[0], int(self._ends[part]) - self.parts[part][1]
            constraint = self.parts[part][0]
            assert constraint is not None
            own = constraint.progress([rows[i] - first for i in places], [ids[i] for i in places])
            of_rows[:, places] = own
        n_tokens, n_met, is_at_risk, is_dead = of_rows
        return PhraseProgress(n_tokens, n_met, is_at_risk.astype(bool), is_dead.astype(bool))

    @property
    def extra_lengths(self) -> Sequence[int]:
        """The numbers of tokens that are added to the maximum length of each row."""
        parts = [(constraint.extra_lengths if constraint is not None else (), n) for constraint, n in self.parts]
        return [extra for of_part, n in parts for extra in of_part or [0] * n]

    @property
    def needed_ids(self) -> Sequence[Collection[int]]:
        """The ids that the output of each row may need."""
        parts = [(constraint.needed_ids if constraint is not None else (), n) for constraint, n in self.parts]
        return [ids for of_part, n in parts for ids in of_part or [()] * n]

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([n_rows for _, n_rows in self.parts])


def joined(first: Constraint | None, n_first: int, second: Constraint | None, n_second: int) -> Constraint | None:
    """Return the constraint of n_first rows, then n_second rows; None if all are free."""
    if first is None and second is None:
        return None
    if n_first == 0:
        return second
    before = first.parts if isinstance(first, Joined) else [(first, n_first)]
    return Joined([*before, (second, n_second)])


def prefix_constraint(prefixes: Sequence[Sequence[int]], max_lengths: Sequence[int], eos: int) -> Prefixes | None:
    """Return the constraint of a prefix for each sentence, of which an empty one restricts nothing; None if all are.

    max_lengths: the most tokens of each output. Raises UserError for a prefix that is longer, or that contains EOS.
    """
    if len(prefixes) != len(max_lengths):
        raise UserError(f"{len(prefixes)} prefixes: expected one for each of {len(max_lengths)} sentences")
    for number, (prefix, longest) in enumerate(zip(prefixes, max_lengths, strict=True), start=1):
        if eos in prefix:
            raise UserError(f"prefix of sentence {number}: expected no EOS (id {eos}), which would end the output")
        if len(prefix) > longest:
            raise UserError(f"prefix of sentence {number}: expected at most {longest} tokens, not {len(prefix)}")
    return Prefixes(prefixes) if any(prefixes) else None
