"""The constraint of the search under which every output is a tree over exactly the words of its sentence.

A row of the search is a part of a sequence of symbols (`linearize`). What may come next depends on its words without a
tag (w), its open phrases (d), its last symbol, and the tokens that its output may still have (r), EOS counted:

    a tag                     w > 0
    (NP, a label before       w > 0 and w + d + 3 <= r
    NP(, a label after        the last symbol ended a word or a phrase, and w + d + 3 <= r
    )NP, the end of the       the innermost open phrase is an NP with a child
    EOS                       w = d = 0

A tag for each word, an end for each open phrase, and EOS always fit: w + d + 1 <= r holds at first and stays true. So
there is always a next symbol, and every output ends in time, also that of an untrained model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from transduce.data.vocabulary import CONTROLS, EOS
from transduce.decoding.constraint import Constraint
from transduce.errors import UserError

Open = tuple[str, "Open"] | None  # the label of the innermost open phrase, and the other open ones


class Row(NamedTuple):
    """The state of a row. room: r - (w + d + 1), the tokens that the output can have beyond the ones it must have."""

    words: int  # w
    room: int
    open: Open = None
    is_item: bool = False  # the last symbol ended a word or a phrase
    is_empty: bool = False  # the last symbol opened a phrase, which has no child yet


@dataclass(frozen=True)
class SymbolTable:
    """The symbols that a model writes, by id.

    tags, opens, heads: the ids of tags, of labels before and after the first child. Raises UserError if there is no
    tag. A label without a symbol for its end, or an end without a label, is left out.
    """

    symbols: Sequence[str]

    def __post_init__(self) -> None:
        if not self.tags:
            raise UserError("the model: expected symbols of trees; train it on the output of transduce linearize")

    @cached_property
    def ends(self) -> dict[str, int]:
        """The id of the end of each label."""
        return {s[1:]: i for i, s in enumerate(self.symbols) if i >= len(CONTROLS) and s.startswith(")")}

    @cached_property
    def opens(self) -> dict[int, str]:
        """The label of each symbol that opens a phrase before its first child."""
        return {i: s[1:] for i, s in enumerate(self.symbols) if s.startswith("(") and s[1:] in self.ends}

    @cached_property
    def heads(self) -> dict[int, str]:
        """The label of each symbol that opens a phrase after its first child."""
        return {i: s[:-1] for i, s in enumerate(self.symbols) if s.endswith("(") and s[:-1] in self.ends}

    @cached_property
    def tags(self) -> frozenset[int]:
        """The ids of the tags."""
        return frozenset(
            i for i, s in enumerate(self.symbols) if i >= len(CONTROLS) and s[0] not in "()" and s[-1] != "("
        )

    @cached_property
    def _memo(self) -> dict[tuple[bool, bool, bool, str | None, bool], Sequence[int]]:
        return {}

    def allowed(self, row: Row) -> Sequence[int]:
        """Return the ids that may come next in a row. Equal answers are the same object."""
        label = row.open[0] if row.open is not None and not row.is_empty else None
        has_words, can_open = row.words > 0, row.room >= 2
        key = has_words, has_words and can_open, row.is_item and can_open, label, row.open is None and not has_words
        if key not in self._memo:
            self._memo[key] = self._ids(*key)
        return self._memo[key]

    def _ids(self, tag: bool, open: bool, head: bool, label: str | None, end: bool) -> Sequence[int]:
        ids = [*self.tags] if tag else []
        ids += [*self.opens] if open else []
        ids += [*self.heads] if head else []
        ids += [self.ends[label]] if label is not None else []
        return sorted([*ids, *([EOS] if end else [])])

    def advance(self, row: Row, symbol: int) -> Row:
        """Return the row after one more symbol. A row that the beam has given up may get any symbol."""
        if symbol in self.tags:
            return Row(row.words - 1, row.room, row.open, is_item=True)
        if label := self.opens.get(symbol):
            return Row(row.words, row.room - 2, (label, row.open), is_empty=True)
        if label := self.heads.get(symbol):
            return Row(row.words, row.room - 2, (label, row.open))
        outer = row.open[1] if row.open is not None else None
        return Row(row.words, row.room, outer, is_item=True)


@dataclass(frozen=True)
class TreeConstraint(Constraint):
    """The constraint that each row becomes a tree over its words."""

    table: SymbolTable
    rows: Sequence[Row]

    def allowed(self) -> dict[int, Sequence[int]]:
        """Return the ids that may come next, by row: all rows are restricted."""
        return dict(enumerate(map(self.table.allowed, self.rows)))

    def select(self, rows: Sequence[int]) -> "TreeConstraint":
        """Return the constraint whose row i is row rows[i] of this one."""
        return TreeConstraint(self.table, [self.rows[row] for row in rows])

    def advance(self, ids: Sequence[int]) -> "TreeConstraint":
        """Return the constraint after one more symbol for each row."""
        return TreeConstraint(self.table, [*map(self.table.advance, self.rows, ids)])


def tree_constraint(table: SymbolTable, n_words: Sequence[int], max_lengths: Sequence[int]) -> TreeConstraint:
    """Return the constraint before the first symbol, with a row for each sentence.

    n_words: words of each sentence. max_lengths: the most tokens of its output, at least a tag for each word and EOS.
    """
    assert all(n >= 1 and most > n for n, most in zip(n_words, max_lengths, strict=True))
    return TreeConstraint(table, [Row(n, most - n - 1) for n, most in zip(n_words, max_lengths, strict=True)])
