"""The kernels of translation on a CPU in C++ (native/kernels.cpp), and whole stacks of layers as one call.

The installation compiles them, and cpu_levels.py chooses a library. `kernels.PLAIN` is their definition. The structs
here equal the structs of native/.
"""

import ctypes
import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.decoding.cpu_cache import CpuCache
from transduce.decoding.cpu_levels import library
from transduce.decoding.kernels import Visible

POINTER = ctypes.c_void_p
INTEGER = ctypes.c_long


class CLinear(ctypes.Structure):
    """Linear of products.h."""

    _fields_ = [*((name, POINTER) for name in ("weight", "bias", "scales", "zeros")), ("n", INTEGER), ("k", INTEGER)]


class CTokens(ctypes.Structure):
    """Tokens of ranking.h."""

    _fields_ = [("output", CLinear), ("ids", POINTER)]


@dataclass(frozen=True)
class PackedLinear:
    """A linear layer of the compiled kernels.

    In int8 each row of the weight has a scale: w[j] is about weight[j] * scales[j].
    """

    library: ctypes.CDLL
    weight: Tensor  # (panels, k, outputs), or in int8 (panels, groups, outputs, inputs of a group)
    bias: Tensor  # (n,) fp32
    shape: tuple[int, int]  # n, k
    scales: Tensor | None = None  # (n,) fp32; None: the weight is fp32
    zeros: Tensor | None = None  # (n,) int32, for int8

    @functools.cached_property
    def struct(self) -> CLinear:
        """The addresses of the tensors."""
        pointers = (None if x is None else x.data_ptr() for x in (self.weight, self.bias, self.scales, self.zeros))
        return CLinear(*pointers, *self.shape)

    def __call__(self, x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        (n, k), m = self.shape, x.size(0)
        assert x.is_contiguous() and x.size(1) == k and (residual is None or residual.is_contiguous())
        y = torch.empty(m, n)
        residual_pointer = None if residual is None else residual.data_ptr()
        self.library.linear(ctypes.addressof(self.struct), x.data_ptr(), m, relu, residual_pointer, y.data_ptr())
        return y

    def best_of(self, x: Tensor, count: int, barred: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return `Decoder.best` of the logits of x (N, k), which are never all in memory."""
        n, without = len(x), _integers(tuple(barred))
        values, ids = torch.empty(n, count), torch.empty(n, count, dtype=torch.int64)
        x = x.contiguous()
        outputs = values.data_ptr(), ids.data_ptr()
        weight = ctypes.addressof(self.struct)
        self.library.best_of(weight, x.data_ptr(), n, count, ctypes.addressof(without), len(without), *outputs)
        return values, ids

    def tokens(self, lists: Sequence[Tensor]) -> list["PackedTokens"]:
        """Return some rows of an output matrix for each list of ids, ascending. Each begins with its own panel."""
        panel = self.weight.size(2)
        padded = [F.pad(ids, (0, -len(ids) % panel)) for ids in lists]
        ids = torch.cat(padded)
        weight = self.weight[ids // panel, :, ids % panel]  # (ids, k), or (ids, groups, inputs)
        weight = weight.unflatten(0, (-1, panel)).transpose(1, 2).contiguous()
        bias = self.bias[ids]
        scales, zeros = _at(self.scales, ids), _at(self.zeros, ids)
        tokens, begin = list[PackedTokens](), 0
        for some, size in zip(lists, map(len, padded), strict=True):
            part, begin = slice(begin, begin + size), begin + size
            panels, shape = slice(part.start // panel, begin // panel), (len(some), self.shape[1])
            packed = PackedLinear(self.library, weight[panels], bias[part], shape, _at(scales, part), _at(zeros, part))
            tokens.append(PackedTokens(packed, some))
        return tokens


@dataclass(frozen=True)
class PackedTokens:
    """Some rows of an output matrix, and the ids (n,) of the tokens that they belong to."""

    output: PackedLinear
    ids: Tensor

    @functools.cached_property
    def struct(self) -> CTokens:
        """The addresses of the tensors."""
        return CTokens(self.output.struct, self.ids.data_ptr())

    @property
    def address(self) -> int:
        """The address of the struct, which is good as long as this object lives."""
        return ctypes.addressof(self.struct)

    def best_of(self, x: Tensor, own: Tensor, count: int, barred: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return `PackedLinear.best_of` among some tokens: these ones, and of row i those at the address own[i].

        A log-probability is over these tokens of the row.
        """
        n, without = len(x), _integers(tuple(barred))
        values, ids = torch.empty(n, count), torch.empty(n, count, dtype=torch.int64)
        x = x.contiguous()
        assert own.is_contiguous() and len(own) == n
        lists = self.address, own.data_ptr()
        outputs = ctypes.addressof(without), len(without), values.data_ptr(), ids.data_ptr()
        self.output.library.best_of_lists(*lists, x.data_ptr(), n, count, *outputs)
        return values, ids


class CNorm(ctypes.Structure):
    """Norm of layers.h. All zero: no norm."""

    _fields_ = [("weight", POINTER), ("bias", POINTER), ("eps", ctypes.c_double)]


def norm_struct(layer: nn.Module) -> CNorm:
    """Return the norm for the compiled kernels. A module that is no `LayerNorm` changes nothing."""
    if not isinstance(layer, nn.LayerNorm):
        return CNorm()
    assert layer.weight.is_contiguous() and layer.bias.is_contiguous() and layer.weight.dtype == torch.float32
    return CNorm(layer.weight.data_ptr(), layer.bias.data_ptr(), layer.eps)


ARGUMENTS = {  # of the functions of kernels.cpp
    "pack_int8": [POINTER, INTEGER, INTEGER, POINTER, POINTER, POINTER],
    "pack_fp32": [POINTER, INTEGER, INTEGER, POINTER],
    "linear": [POINTER, POINTER, INTEGER, INTEGER, POINTER, POINTER],
    "norm": [POINTER, INTEGER, INTEGER, POINTER, POINTER],
    "attend": [
        *(POINTER, INTEGER, POINTER, POINTER, INTEGER),  # queries, keys, values
        *(POINTER, INTEGER, POINTER, POINTER),  # visible rows
        *(INTEGER, INTEGER, INTEGER, INTEGER, POINTER),  # sizes, output
    ],
    "best": [POINTER, INTEGER, INTEGER, INTEGER, POINTER, POINTER],
    "best_of": [POINTER, POINTER, INTEGER, INTEGER, POINTER, INTEGER, POINTER, POINTER],
    "best_of_lists": [POINTER, POINTER, POINTER, INTEGER, INTEGER, POINTER, INTEGER, POINTER, POINTER],
    "stack": [POINTER, POINTER, POINTER],
    "decode_step": [POINTER, POINTER, POINTER, POINTER],
}


class Compiled:
    """The kernels of kernels.cpp. Calls of several threads run at once: ctypes releases the interpreter lock."""

    precisions: Collection[str] = ("fp32", "int8")

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        # of a panel of packed weights: its outputs, and the inputs that are side by side in int8
        self.panel, self.inputs = (INTEGER.in_dll(library, name).value for name in ("panel", "inputs"))
        self.int8_is_faster = bool(INTEGER.in_dll(library, "int8_is_faster").value)  # than fp32
        for name, arguments in ARGUMENTS.items():
            getattr(library, name).argtypes, getattr(library, name).restype = arguments, None

    def pack(self, weight: Tensor, bias: Tensor, *, int8: bool) -> PackedLinear:
        n, k = weight.shape
        panels = -(-n // self.panel)
        weight, bias = weight.contiguous(), bias.contiguous()  # names keep them in memory
        if not int8:
            packed = torch.empty(panels, k, self.panel)
            self.library.pack_fp32(weight.data_ptr(), n, k, packed.data_ptr())
            return PackedLinear(self.library, packed, bias, (n, k))
        packed = torch.empty(panels, -(-k // self.inputs), self.panel, self.inputs, dtype=torch.int8)
        scales, zeros = torch.empty(n), torch.empty(n, dtype=torch.int32)
        self.library.pack_int8(weight.data_ptr(), n, k, packed.data_ptr(), scales.data_ptr(), zeros.data_ptr())
        return PackedLinear(self.library, packed, bias, (n, k), scales, zeros)

    def norm(self, x: Tensor, layer: nn.LayerNorm) -> Tensor:
        (m, n), struct = x.shape, norm_struct(layer)
        x = x.contiguous()
        y = torch.empty(m, n)
        self.library.norm(x.data_ptr(), m, n, ctypes.addressof(struct), y.data_ptr())
        return y

    def attend(self, queries: Tensor, keys_values: Tensor, visible: Visible, n_heads: int) -> Tensor:
        n, rows = len(queries), visible.rows
        keys, values = keys_values[:, : queries.size(1)], keys_values[:, queries.size(1) :]
        stride = keys_values.stride(0)
        d_k, d_v = queries.size(1) // n_heads, values.size(1) // n_heads
        assert rows.is_contiguous() and len(visible.row_of_query) == n
        out = torch.empty(n, n_heads * d_v)
        inputs = queries.data_ptr(), queries.stride(0), keys.data_ptr(), values.data_ptr(), stride
        index = rows.data_ptr(), rows.size(1), visible.lengths.data_ptr(), visible.row_of_query.data_ptr()
        self.library.attend(*inputs, *index, n, n_heads, d_k, d_v, out.data_ptr())
        return out

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        n, v = logits.shape
        values, ids = torch.empty(n, count), torch.empty(n, count, dtype=torch.int64)
        logits = logits.contiguous()
        self.library.best(logits.data_ptr(), n, v, count, values.data_ptr(), ids.data_ptr())
        return values, ids


def _at(values: Tensor | None, index: Tensor | slice) -> Tensor | None:
    return None if values is None else values[index]


@functools.lru_cache(maxsize=32)
def _integers(values: tuple[int, ...]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


@functools.cache
def compiled() -> Compiled | None:
    """Return the compiled kernels; None where the installation had no compiler."""
    functions = library()
    return None if functions is None else Compiled(functions)


# ---- a stack of layers as one call -------------------------------------------------------------------------------
# A step with few or narrow rows costs calls between kernels, not arithmetic. The kernels of `CpuTransformer`, one by
# one, are the definition; the tests compare the results, which are equal.


class CVisible(ctypes.Structure):
    """Visible of layers.h."""

    _fields_ = [("index", POINTER), ("width", INTEGER), ("lengths", POINTER), ("row_of_query", POINTER)]


def addresses(tables: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of the tables of all layers, which must stay in memory."""
    return (ctypes.c_void_p * len(tables))(*(table.data_ptr() for table in tables))


class CLayer(ctypes.Structure):
    """Layer of layers.h."""

    _fields_ = [("linears", CLinear * 6), ("norms", CNorm * 3)]


class CStack(ctypes.Structure):
    """Stack of layers.h."""

    _fields_ = [
        *(("layers", POINTER), ("last", CNorm)),
        *((name, INTEGER) for name in ("n_layers", "d_model", "d_ff", "heads", "d_k", "d_v", "post")),
    ]


class CRows(ctypes.Structure):
    """Rows of layers.h."""

    _fields_ = [
        *(("n", INTEGER), ("added", POINTER), ("tables", POINTER), ("cross", POINTER)),
        *(("self", CVisible), ("source", CVisible)),
    ]


class CStep(ctypes.Structure):
    """Step of layers.h."""

    _fields_ = [
        *(("embedding", POINTER), ("positions", POINTER), ("scale", ctypes.c_float)),
        *((name, POINTER) for name in ("ids", "selected", "past", "ages")),
        *(("past_width", INTEGER), ("last_source", POINTER)),
    ]


@dataclass(frozen=True)
class StackLayer:
    """The weights of a layer, in the order of Layer in layers.h. A layer of an encoder has no cross-attention.

    linears: queries, keys and values of self-attention; its output; queries and output of cross-attention; the inner
    and the outer one of the feed-forward network. norms: of each sub-layer.
    """

    linears: Sequence[PackedLinear | None]
    norms: Sequence[nn.Module]

    def struct(self) -> CLayer:
        norms = [norm_struct(layer) for layer in self.norms]
        between = [CNorm()] * (3 - len(norms))
        linears = [CLinear() if linear is None else linear.struct for linear in self.linears]
        return CLayer((CLinear * 6)(*linears), (CNorm * 3)(*norms[:-1], *between, norms[-1]))


@dataclass(frozen=True)
class StackSizes:
    """The sizes that all layers share. post: norms after the residual sums."""

    d_model: int
    d_ff: int
    heads: int
    d_k: int
    d_v: int
    post: bool


class CompiledStack:
    """Layers with ReLU, and the norm after the last one."""

    def __init__(self, kernels: Compiled, layers: Iterable[StackLayer], last: nn.Module, sizes: StackSizes) -> None:
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
        tables = addresses([table] * len(self.layers))
        index, lengths, row_of_query, _ = visible
        assert index.is_contiguous() and lengths.is_contiguous() and row_of_query.is_contiguous()
        own = CVisible(index.data_ptr(), index.size(1), lengths.data_ptr(), row_of_query.data_ptr())
        rows = CRows(len(x), None, ctypes.addressof(tables), None, own)
        self.library.stack(self.address, ctypes.addressof(rows), x.data_ptr())
        return x

    def decode_step(
        self, ids: Tensor, embedding: tuple[Tensor, float], positions: Tensor, cache: CpuCache
    ) -> tuple[Tensor, CpuCache]:
        """Return the output (N, D) after one more token `ids` (N,) for each row, and the cache that includes it.

        embedding: the matrix (V, D) and its scale. positions: (positions, D), more than the oldest row has tokens. The
        cache must have room for N rows.
        """
        ids, n = ids.contiguous(), ids.numel()
        matrix, scale = embedding
        past, source = cache.past, cache.source
        index = torch.empty(n, cache.length + 1, dtype=torch.int32)
        ages, row_of_query = torch.empty(n, dtype=torch.int32), torch.empty(n, dtype=torch.int32)
        x = torch.empty(n, self.d_model)
        tables, cross_tables = addresses(cache.tables.layers), addresses(cache.cross.layers)
        pointers = ctypes.addressof(tables), ctypes.addressof(cross_tables)
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
