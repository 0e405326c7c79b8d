"""The layers of an encoder or of a decoder as one call of the compiled kernels.

A step with few or narrow rows costs calls between kernels, not arithmetic. The kernels of `CpuTransformer`, one by one,
are the definition; the tests compare the results, which are equal. The structs here are those of kernels.cpp.
"""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transduce.decoding.cpu_cache import CpuCache, Tables
from transduce.decoding.kernels import INTEGER, POINTER, CLinear, CNorm, Compiled, Packed, Visible, norm_struct


class CVisible(ctypes.Structure):
    """Visible of kernels.cpp."""

    _fields_ = [("index", POINTER), ("width", INTEGER), ("lengths", POINTER), ("row_of_query", POINTER)]


class CLayer(ctypes.Structure):
    """Layer of kernels.cpp."""

    _fields_ = [("linears", CLinear * 6), ("norms", CNorm * 3)]


class CStack(ctypes.Structure):
    """Stack of kernels.cpp."""

    _fields_ = [
        *(("layers", POINTER), ("last", CNorm)),
        *((name, INTEGER) for name in ("n_layers", "d_model", "d_ff", "heads", "d_k", "d_v", "post")),
    ]


class CRows(ctypes.Structure):
    """Rows of kernels.cpp."""

    _fields_ = [
        *(("n", INTEGER), ("added", POINTER), ("tables", POINTER), ("cross", POINTER)),
        *(("self", CVisible), ("source", CVisible)),
    ]


class CStep(ctypes.Structure):
    """Step of kernels.cpp."""

    _fields_ = [
        *(("embedding", POINTER), ("positions", POINTER), ("scale", ctypes.c_float)),
        *((name, POINTER) for name in ("ids", "selected", "past", "ages")),
        *(("past_width", INTEGER), ("last_source", POINTER)),
    ]


@dataclass(frozen=True)
class StackLayer:
    """The weights of a layer, in the order of Layer in kernels.cpp. A layer of an encoder has no cross-attention."""

    project: Packed  # queries, keys and values of self-attention
    out: Packed
    cross_query: Packed | None
    cross_out: Packed | None
    inner: Packed
    outer: Packed
    norms: Sequence[nn.Module]  # of each sub-layer

    def struct(self) -> CLayer:
        linears = (self.project, self.out, self.cross_query, self.cross_out, self.inner, self.outer)
        norms = [norm_struct(layer) for layer in self.norms]
        between = [CNorm()] * (3 - len(norms))
        return CLayer(
            (CLinear * 6)(*(CLinear() if one is None else one.struct for one in linears)),
            (CNorm * 3)(*norms[:-1], *between, norms[-1]),
        )


@dataclass(frozen=True)
class Sizes:
    """The sizes that all layers share. post: norms after the residual sums."""

    d_model: int
    d_ff: int
    heads: int
    d_k: int
    d_v: int
    post: bool


class CompiledStack:
    """Layers with ReLU, and the norm after the last one."""

    def __init__(self, kernels: Compiled, layers: Iterable[StackLayer], last: nn.Module, sizes: Sizes) -> None:
        self.library = kernels.library
        self.weights = [*layers], last  # kept in memory
        structs = [layer.struct() for layer in self.weights[0]]
        self.layers = (CLayer * len(structs))(*structs)
        numbers = (sizes.d_model, sizes.d_ff, sizes.heads, sizes.d_k, sizes.d_v, sizes.post)
        self.struct = CStack(ctypes.addressof(self.layers), norm_struct(last), len(structs), *numbers)
        self.address = ctypes.addressof(self.struct)
        self.d_model = sizes.d_model
        self.width = sizes.heads * (sizes.d_k + sizes.d_v)

    def encode(self, x: Tensor, visible: Visible) -> Tensor:
        """Return the output (R, D) of an encoder for embedded tokens x (R, D)."""
        x = x.clone(memory_format=torch.contiguous_format)
        table = x.new_empty(len(x), self.width)  # of each layer after the other
        tables = Tables([table] * len(self.layers)).pointers
        rows = CRows(len(x), None, ctypes.addressof(tables), None, _visible(visible))
        self.library.stack(self.address, ctypes.addressof(rows), x.data_ptr())
        return x

    def decode_step(
        self, ids: Tensor, embedding: tuple[Tensor, float], positions: Tensor, cache: CpuCache
    ) -> tuple[Tensor, CpuCache]:
        """Return the output (N, D) after one more token `ids` (N,) for each row, and the cache that includes it.

        embedding: the matrix (V, D) and its scale. positions: (positions, D), more than the oldest row has tokens. The
        cache must have room for N rows.
        """
        ids, (matrix, scale), n = ids.contiguous(), embedding, ids.numel()
        past, source = cache.past, cache.source
        index = torch.empty(n, cache.length + 1, dtype=torch.int32)
        ages, row_of_query = torch.empty(n, dtype=torch.int32), torch.empty(n, dtype=torch.int32)
        x = torch.empty(n, self.d_model)
        pointers = ctypes.addressof(cache.tables.pointers), ctypes.addressof(cache.cross.pointers)
        own = CVisible(index.data_ptr(), cache.length + 1, ages.data_ptr(), None)
        cross = CVisible(
            source.rows.data_ptr(), source.rows.size(1), source.lengths.data_ptr(), row_of_query.data_ptr()
        )
        rows = CRows(n, cache.free.data_ptr() + 4 * cache.written, *pointers, own, cross)
        selected = None if cache.selected is None else cache.selected.data_ptr()
        before = past.data_ptr(), cache.ages.data_ptr(), past.size(1), source.row_of_query.data_ptr()
        step = CStep(matrix.data_ptr(), positions.data_ptr(), scale, ids.data_ptr(), selected, *before)
        self.library.decode_step(self.address, ctypes.addressof(rows), ctypes.addressof(step), x.data_ptr())
        source = Visible(source.rows, source.lengths, row_of_query)
        return x, CpuCache(
            cache.tables, cache.free, cache.written + n, index, ages, cache.length + 1, cache.cross, source
        )


def _visible(visible: Visible) -> CVisible:
    rows, lengths, row_of_query = visible.rows, visible.lengths, visible.row_of_query
    assert rows.is_contiguous() and lengths.is_contiguous() and row_of_query.is_contiguous()
    return CVisible(rows.data_ptr(), rows.size(1), lengths.data_ptr(), row_of_query.data_ptr())
