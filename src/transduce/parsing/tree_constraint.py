"""The constraint of the search under which every output is a tree over exactly the words of its sentence.

A row of the search is a part of a sequence of symbols (`linearize`). `TopDown` and `ByWord` say what may come next in
it. In both forms there is always a next symbol, and every output ends in time, also the output of an untrained model.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from transduce.data.vocabulary import CONTROLS, EOS
from transduce.decoding.constraint import Constraint
from transduce.errors import UserError
from transduce.parsing.linearize import NO_PHRASE, End, labels_of, n_ends, tag_and_end

SymbolRow = TypeVar("SymbolRow")


class Symbols(Protocol[SymbolRow]):
    """The symbols that a model writes, by id, and the rules of their form for one row of a search."""

    @property
    def symbols(self) -> Sequence[str]: ...

    def shortest(self, n_words: int) -> int:
        """Return the number of tokens of the shortest output for `n_words` words, EOS counted."""
        ...

    def start(self, n_words: int, max_length: int) -> SymbolRow:
        """Return a row before its first symbol. max_length: maximum tokens of its output, at least `shortest`."""
        ...

    def allowed(self, row: SymbolRow) -> Sequence[int]:
        """Return the ids that may come next in a row. Equal answers are the same object."""
        ...

    def advance(self, row: SymbolRow, symbol: int) -> SymbolRow:
        """Return the row after one more symbol. A row that the beam has given up may get any symbol."""
        ...


def symbols_of(vocabulary: Sequence[str]) -> Symbols[Any]:
    """Return the symbols of a vocabulary, with the rules of their form.

    Raises UserError if there is no tag, and for an older by-word form, whose tags had the number of ending phrases.
    """
    is_top_down = NO_PHRASE not in vocabulary or any(symbol.startswith(")") for symbol in vocabulary)
    return TopDown(vocabulary) if is_top_down else ByWord(vocabulary)


def _no_tags() -> UserError:
    return UserError("the model: expected symbols of trees; train it on the output of transduce linearize")


# ---- top-down ----------------------------------------------------------------------------------------------------

Open = tuple[str, "Open"] | None  # the label of the innermost open phrase, and the other open ones


class TopDownRow(NamedTuple):
    """The state of a row. room: r - (w + d + 1), the number of tokens that the output may have but need not have."""

    words: int  # w
    room: int
    open: Open = None
    is_empty: bool = False  # the last symbol opened a phrase, which has no child yet


@dataclass(frozen=True)
class TopDown:
    """The symbols of the top-down form.

    What may come next depends on the words without a tag (w), the open phrases (d), and the tokens that the output may
    still have (r), EOS counted:

        a tag                     w > 0
        (NP, a label              w > 0 and w + d + 3 <= r
        )NP, the end of the       the innermost open phrase is an NP with a child
        EOS                       w = d = 0

    A tag for each word, an end for each open phrase, and EOS always fit: w + d + 1 <= r holds at first and stays true.
    A label without a symbol for its end, or an end without a label, is left out.
    """

    symbols: Sequence[str]

    def __post_init__(self) -> None:
        if not self.tags:
            raise _no_tags()

    @cached_property
    def ends(self) -> dict[str, int]:
        """The id of the end of each label."""
        return {s[1:]: i for i, s in enumerate(self.symbols) if i >= len(CONTROLS) and s.startswith(")")}

    @cached_property
    def opens(self) -> dict[int, str]:
        """The label of each symbol that opens a phrase."""
        return {i: s[1:] for i, s in enumerate(self.symbols) if s.startswith("(") and s[1:] in self.ends}

    @cached_property
    def tags(self) -> frozenset[int]:
        """The ids of the tags."""
        return frozenset(i for i, s in enumerate(self.symbols) if i >= len(CONTROLS) and s[0] not in "()")

    @cached_property
    def _memo(self) -> dict[tuple[bool, bool, str | None, bool], Sequence[int]]:
        return {}

    def shortest(self, n_words: int) -> int:
        return n_words + 1

    def start(self, n_words: int, max_length: int) -> TopDownRow:
        return TopDownRow(n_words, max_length - self.shortest(n_words))

    def allowed(self, row: TopDownRow) -> Sequence[int]:
        label = row.open[0] if row.open is not None and not row.is_empty else None
        key = row.words > 0, row.words > 0 and row.room >= 2, label, row.open is None and row.words <= 0
        if key not in self._memo:
            self._memo[key] = self._ids(*key)
        return self._memo[key]

    def _ids(self, tag: bool, open: bool, label: str | None, end: bool) -> Sequence[int]:
        ids = [*self.tags] if tag else []
        ids += [*self.opens] if open else []
        ids += [self.ends[label]] if label is not None else []
        return sorted([*ids, *([EOS] if end else [])])

    def advance(self, row: TopDownRow, symbol: int) -> TopDownRow:
        if symbol in self.tags:
            return TopDownRow(row.words - 1, row.room, row.open)
        if label := self.opens.get(symbol):
            return TopDownRow(row.words, row.room - 2, (label, row.open), is_empty=True)
        return TopDownRow(row.words, row.room, row.open[1] if row.open is not None else None)


# ---- by-word -----------------------------------------------------------------------------------------------------


class ByWordRow(NamedTuple):
    """The state of a row: words without a tag, labels of the open phrases, and True if the next symbol is a tag."""

    words: int
    labels: tuple[str, ...] = ()
    is_tag_next: bool = False


@dataclass(frozen=True)
class ByWord:
    """The symbols of the by-word form.

    Labels and tags take turns, and EOS follows the last tag, so every output for w words has 2 w + 1 tokens. A tag ends
    the phrases in an open phrase; the tag of the last word names no open phrase.
    """

    symbols: Sequence[str]

    def __post_init__(self) -> None:
        if not self.opens or not self._tags_of(()):
            raise _no_tags()
        if any(end.label.isdigit() for end in self.tags.values() if end is not None):
            raise UserError("the model: expected tags such as NN)S, not NN)1 as in an older form; train it again")

    @cached_property
    def opens(self) -> dict[int, tuple[str, ...]]:
        """The labels in each symbol that begins phrases."""
        begins = ((i, s) for i, s in enumerate(self.symbols) if s == NO_PHRASE or s.startswith("("))
        return {i: tuple(labels_of(s)) for i, s in begins}

    @cached_property
    def tags(self) -> dict[int, End | None]:
        """The phrase in which all phrases end with each symbol with a tag."""
        ends = dict[int, End | None]()
        for i in range(len(CONTROLS), len(self.symbols)):
            with suppress(ValueError):  # a symbol of another form is left out
                if i not in self.opens:
                    ends[i] = tag_and_end(self.symbols[i])[1]
        return ends

    @cached_property
    def _memo(self) -> dict[tuple[tuple[str, int], ...], Sequence[int]]:
        return {}

    @cached_property
    def _all_opens(self) -> Sequence[int]:
        return sorted(self.opens)

    @cached_property
    def _most(self) -> dict[str, int]:
        """The highest number of each label in the symbols. More open phrases than this allow no other tag."""
        most = Counter[str]()
        for end in filter(None, self.tags.values()):
            most[end.label] = max(most[end.label], end.number)
        return most

    def _tags_of(self, open: tuple[tuple[str, int], ...]) -> Sequence[int]:
        """Return the ids of the tags that end no phrase, or phrases in an open one. open: open phrases by label."""
        if open not in self._memo:
            numbers = dict(open)
            fits = (i for i, end in self.tags.items() if end is None or end.number <= numbers.get(end.label, 0))
            self._memo[open] = sorted(fits)
        return self._memo[open]

    def shortest(self, n_words: int) -> int:
        return 2 * n_words + 1

    def start(self, n_words: int, max_length: int) -> ByWordRow:
        return ByWordRow(n_words)

    def allowed(self, row: ByWordRow) -> Sequence[int]:
        if row.words <= 0:
            return ONLY_EOS
        if not row.is_tag_next:
            return self._all_opens
        if row.words == 1 or not row.labels:
            return self._tags_of(())
        open = Counter(("", *row.labels[:-1]))
        return self._tags_of(
            tuple(sorted((label, min(n, open[label])) for label, n in self._most.items() if open[label]))
        )

    def advance(self, row: ByWordRow, symbol: int) -> ByWordRow:
        if symbol in self.opens:
            return ByWordRow(row.words, row.labels + self.opens[symbol], is_tag_next=True)
        with suppress(ValueError):
            return ByWordRow(row.words - 1, row.labels[: len(row.labels) - n_ends(row.labels, self.tags.get(symbol))])
        return ByWordRow(row.words - 1, row.labels)


ONLY_EOS = (EOS,)

# ---- the constraint ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TreeConstraint(Constraint, Generic[SymbolRow]):
    """The constraint that each row becomes a tree over its words."""

    table: Symbols[SymbolRow]
    rows: Sequence[SymbolRow]

    def allowed(self) -> dict[int, Sequence[int]]:
        """Return the ids that may come next, by row: all rows are restricted."""
        return dict(enumerate(map(self.table.allowed, self.rows)))

    def select(self, rows: Sequence[int]) -> "TreeConstraint[SymbolRow]":
        """Return the constraint whose row i is row rows[i] of this one."""
        return TreeConstraint(self.table, [self.rows[row] for row in rows])

    def advance(self, ids: Sequence[int]) -> "TreeConstraint[SymbolRow]":
        """Return the constraint after one more symbol for each row."""
        return TreeConstraint(self.table, [*map(self.table.advance, self.rows, ids)])


def tree_constraint(
    table: Symbols[SymbolRow], n_words: Sequence[int], max_lengths: Sequence[int]
) -> TreeConstraint[SymbolRow]:
    """Return the constraint before the first symbol, with a row for each sentence.

    n_words: number of words of each sentence. max_lengths: maximum number of tokens of its output, at least
    `table.shortest`.
    """
    pairs = [*zip(n_words, max_lengths, strict=True)]
    assert all(n >= 1 and most >= table.shortest(n) for n, most in pairs)
    return TreeConstraint(table, [table.start(n, most) for n, most in pairs])
