"""The state of a `CpuTransformer` between two decoding steps."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.decoding.kernels import Visible


@dataclass(frozen=True)
class Tables:
    """Keys and values: of each layer, (rows, H*K + H*W)."""

    layers: Sequence[Tensor]

    @cached_property
    def pointers(self) -> ctypes.Array[ctypes.c_void_p]:
        """The addresses of the tables for the compiled kernels."""
        return (ctypes.c_void_p * len(self.layers))(*(table.data_ptr() for table in self.layers))

    def with_room(self, rows: int) -> "Tables":
        """Return the tables, or larger ones that begin with them."""
        if rows <= len(self.layers[0]):
            return self
        larger = [table.new_empty(max(rows, 2 * len(table)), table.size(1)) for table in self.layers]
        for new, old in zip(larger, self.layers, strict=True):
            new[: len(old)] = old
        return Tables(larger)


class CpuCache(NamedTuple):
    """The state of N rows between two decoding steps.

    Every step writes the projections of its rows below those of earlier steps, in tables that grow. `past` holds the
    rows of the tables that lead to each row, so no keys and values are copied when rows are selected, repeated or
    dropped. A cache is therefore good for one step: a second step from it would write to the same rows.
    """

    tables: Tables  # keys and values of all steps
    written: int  # rows in use
    past: Tensor  # (M, t) int32, the rows of the tables that hold the tokens so far of each row of the last step
    cross: Tables  # keys and values of the encoder's output
    source: Visible  # the rows of `cross` that belong to each of the M rows
    selected: Tensor | None = None  # (N,) int64: the row of the last step that each row continues; None: M is N

    @property
    def length(self) -> int:
        """t, the number of tokens decoded so far."""
        return self.past.size(1)

    def select(self, rows: Tensor, sentences: Tensor) -> "CpuCache":
        """Return the cache whose row i continues row rows[i] of this one. The next step looks its rows up."""
        return self._replace(selected=(rows if self.selected is None else self.selected[rows]).contiguous())

    def rows(self) -> tuple[Tensor, Visible]:
        """Return `past` and `source` of each of the N rows."""
        if self.selected is None:
            return self.past, self.source
        source = Visible(self.source.rows, self.source.lengths, self.source.row_of_query[self.selected])
        return self.past[self.selected], source


def sources(src_mask: Tensor) -> Visible:
    """Return the rows of each of B sentences with mask (B,S), for one query each."""
    lengths = src_mask.sum(1)
    rows = (lengths.cumsum(0) - lengths)[:, None] + torch.arange(src_mask.size(1))
    return Visible(rows.int().contiguous(), lengths.int(), torch.arange(len(src_mask), dtype=torch.int32))
