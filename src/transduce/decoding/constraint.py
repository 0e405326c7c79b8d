"""Constraints: which tokens may come next in each row of a search. Without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from transduce.errors import UserError


class Constraint(Protocol):
    """The tokens that may come next in each of the N rows of a search, given the tokens so far of each row.

    A constraint is a value: `select` and `advance` return another one and leave this one as it is. So a constraint may
    keep a state for each row (the rest of a prefix, the open brackets of a tree), and beams cannot mix the states.
    A request holds the constraint before the first token, with one row for each sentence. After each step the search
    selects the rows that stay, where a beam may repeat a row, and advances each of them by its new token.

    - The answer for a row depends on its sentence and its tokens alone. Otherwise the batch would change an output.
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


@dataclass(frozen=True)
class Prefixes:
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

    def advance(self, ids: Sequence[int]) -> "Prefixes | None":
        """Return the prefixes with one token done; None once all of them have ended."""
        length = self.length + 1
        return Prefixes(self.prefixes, length) if any(len(prefix) > length for prefix in self.prefixes) else None


@dataclass(frozen=True)
class Joined:
    """The constraints of several groups of rows, one group after the other.

    parts: of each group its constraint, None if its rows are free, and its number of rows. A selection keeps the rows
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
        parts, first, begin = list[tuple[Constraint | None, int]](), 0, 0
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
