"""The state of a `CpuTransformer` between two decoding steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.decoding.kernels import Visible


@dataclass(frozen=True)
class Tables:
    """Keys and values: of each layer, (rows, H*K + H*W)."""

    layers: Sequence[Tensor]

    def with_room(self, rows: int) -> "Tables":
        """Return the tables, or larger ones that begin with them."""
        if rows <= len(self.layers[0]):
            return self
        larger = [table.new_empty(max(rows, 2 * len(table)), table.size(1)) for table in self.layers]
        for new, old in zip(larger, self.layers, strict=True):
            new[: len(old)] = old
        return Tables(larger)

    def free_rows(self, visible: Tensor) -> Tensor:
        """Return the rows (F,) int32, ascending, that are not among the rows `visible`."""
        is_free = torch.ones(len(self.layers[0]), dtype=torch.bool)
        is_free[visible.long()] = False
        return is_free.nonzero()[:, 0].int()


class CpuCache(NamedTuple):
    """The state of N rows between two decoding steps. The rows may have different ages: numbers of tokens.

    Every step writes the projections of its rows to free rows of the tables. `past` holds the rows of the tables that
    lead to each row, so no keys and values are copied when rows are selected, repeated or dropped. Rows of the tables
    that lead to no row any more are written again, before the tables grow. A cache is therefore good for one step: a
    second step from it would write to the same rows.
    """

    tables: Tables  # keys and values
    free: Tensor  # (F,) int32, rows of the tables to write to
    written: int  # how many of the F, the first ones, have been written
    past: Tensor  # (M, T) int32, the rows of the tables that hold the tokens so far of each row of the last step
    ages: Tensor  # (M,) int32, how many of the T of each row
    length: int  # at least the greatest of the ages
    cross: Tables  # keys and values of the encoder's output
    source: Visible  # the rows of `cross` that belong to each of the M rows
    selected: Tensor | None = None  # (N,) int64: the row of the last step that each row continues; None: M is N

    def select(self, rows: Tensor, sentences: Tensor) -> "CpuCache":
        """Return the cache whose row i continues row rows[i] of this one. The next step looks its rows up."""
        return self._replace(selected=(rows if self.selected is None else self.selected[rows]).contiguous())

    def gathered(self) -> "CpuCache":
        """Return the same cache without `selected`: M is N, and `length` is exact."""
        if self.selected is None:
            return self
        source = self.source._replace(row_of_query=self.source.row_of_query[self.selected])
        ages = self.ages[self.selected]
        length = int(ages.max())
        past = self.past[self.selected, :length]
        return self._replace(past=past, ages=ages, length=length, source=source, selected=None)

    def with_room(self, n: int) -> "CpuCache":
        """Return the cache with at least n free rows. The tables grow if more than half of their rows are in use."""
        if self.written + n <= self.free.numel():
            return self
        now = self.gathered()
        free, n_rows = self.tables.free_rows(_seen(now.past, now.ages)), len(self.tables.layers[0])
        n_missing = max(n, n_rows // 2) - len(free)
        if n_missing <= 0:
            return self._replace(free=free, written=0)
        tables = self.tables.with_room(n_rows + n_missing)
        new = torch.arange(n_rows, len(tables.layers[0]), dtype=torch.int32)
        return self._replace(tables=tables, free=torch.cat([free, new]), written=0)

    def join(self, other: "CpuCache") -> "CpuCache":
        """Return the cache of the rows of this one, then the rows of `other`, which are before their first token.

        The keys and values of the encoder's output move from `other` to rows that no sentence here uses.
        """
        this = self.gathered()
        moved, n_new = other.source, len(other.cross.layers[0])
        lines, line_of_row = this.source.row_of_query.long().unique(return_inverse=True)
        rows, lengths = this.source.rows[lines], this.source.lengths[lines]
        free, n_rows = self.cross.free_rows(_seen(rows, lengths)), len(self.cross.layers[0])
        cross = self.cross.with_room(n_rows + max(0, n_new - len(free)))
        free = torch.cat([free, torch.arange(n_rows, len(cross.layers[0]), dtype=torch.int32)])[:n_new]
        for table, added in zip(cross.layers, other.cross.layers, strict=True):
            table[free.long()] = added
        moved_rows = free[moved.rows.clamp(max=n_new - 1).long()]
        row_of_query = torch.cat([line_of_row.int(), moved.row_of_query + len(lines)])
        source = Visible(_stacked(rows, moved_rows), torch.cat([lengths, moved.lengths]), row_of_query)
        past, ages = _stacked(this.past, other.past), torch.cat([this.ages, other.ages])
        return this._replace(past=past, ages=ages, cross=cross, source=source)


def _seen(rows: Tensor, lengths: Tensor) -> Tensor:
    """Return all rows[j, :lengths[j]] as one (rows,)."""
    return rows[torch.arange(rows.size(1)) < lengths[:, None]]


def _stacked(above: Tensor, below: Tensor) -> Tensor:
    """Return the lines of both, padded with zeros to one width."""
    width = max(above.size(1), below.size(1))
    return torch.cat([F.pad(lines, (0, width - lines.size(1))) for lines in (above, below)])
