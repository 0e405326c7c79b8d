"""The inner loops of translation on a CPU, each twice: in torch, and in C++ (kernels.cpp).

    compiled() -> Kernels, or None where there is no compiler, or no AVX-512 with VNNI
    PLAIN      -> the same in torch: slower, without requirements; the tests compare the compiled ones with it

Installing needs no compiler. The first use compiles the kernels (compile_kernels.py).
"""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.decoding.compile_kernels import library


@dataclass(frozen=True)
class Packed:
    """A weight (n, k) with its bias. In int8 each of its rows has a scale: w[j] is about weight[j] * scales[j]."""

    weight: Tensor  # in the layout of the kernels that packed it
    bias: Tensor  # (n,) fp32
    shape: tuple[int, int]
    scales: Tensor | None = None  # (n,) fp32; None: the weight is fp32
    zeros: Tensor | None = None  # (n,) int32, for the compiled kernel in int8

    @functools.cached_property
    def struct(self) -> "CLinear":
        """The addresses of the tensors for the compiled kernels."""
        pointers = (None if x is None else x.data_ptr() for x in (self.weight, self.bias, self.scales, self.zeros))
        return CLinear(*pointers, *self.shape)


class Visible(NamedTuple):
    """The rows of keys and values that each of N queries may attend to, all int32.

    Query i sees rows[j, :lengths[j]] with j = row_of_query[i]. The tokens of a sentence share a line of `rows`: a line
    for each of n tokens would be n x n.
    """

    rows: Tensor  # (M, T)
    lengths: Tensor  # (M,)
    row_of_query: Tensor  # (N,)


class Kernels(Protocol):
    """The functions that take most of the time of translation.

    All tensors are fp32 on the CPU. Rows are independent of one another.
    """

    def pack(self, weight: Tensor, bias: Tensor, *, int8: bool) -> Packed:
        """Pack weight (n, k). In int8 it is quantised, symmetrically, with a scale for each row."""
        ...

    def linear(self, x: Tensor, packed: Packed, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        """Return x W^T + bias (m, n) of x (m, k), then relu, then plus `residual`.

        In int8 the rows of x are quantised as well, each with a scale of its own.
        """
        ...

    def norm(self, x: Tensor, layer: nn.LayerNorm) -> Tensor:
        """Return the layer normalisation of the rows of x (m, n)."""
        ...

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, visible: Visible, n_heads: int) -> Tensor:
        """Return the attention (eq. 1) of each of N queries over its `visible` rows of keys and values, (N, H*W).

        queries (N, H*K), keys (R, H*K), values (R, H*W), heads side by side; keys and values with equal strides.
        """
        ...

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and ids (N, count) of the most likely tokens by logits (N, V), best first."""
        ...


# ---- in torch ----------------------------------------------------------------------------------------------------

GATHERED = 1 << 22  # most floats of keys and values in one gather


class Plain:
    """The kernels in torch, step by step."""

    def pack(self, weight: Tensor, bias: Tensor, *, int8: bool) -> Packed:
        shape = weight.size(0), weight.size(1)
        if not int8:
            return Packed(weight, bias, shape)
        largest = weight.abs().amax(dim=1)
        inverse = torch.where(largest > 0, 127 / largest, 0.0)
        rounded = (weight * inverse[:, None]).round().to(torch.int8)
        return Packed(rounded, bias, shape, largest / 127)

    def linear(self, x: Tensor, packed: Packed, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        if packed.scales is None:
            y = F.linear(x, packed.weight, packed.bias)
        else:
            largest = x.abs().amax(dim=1, keepdim=True)  # NaN if one value is NaN
            inverse = torch.where(largest > 0, 127 / largest, 0.0)
            rounded = (x * inverse).round().nan_to_num().to(torch.int8)
            sums = torch.ops.aten._int_mm(rounded, packed.weight.T)
            y = sums * (largest / 127 * packed.scales) + packed.bias
        y = y.relu() if relu else y
        return y if residual is None else y + residual

    def norm(self, x: Tensor, layer: nn.LayerNorm) -> Tensor:
        return torch.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, visible: Visible, n_heads: int) -> Tensor:
        n_queries = max(1, GATHERED // max(1, visible.rows.size(1) * (keys.size(1) + values.size(1))))
        out = queries.new_empty(len(queries), values.size(1))  # one result: several would fragment the memory
        for part, q, i in zip(*(x.split(n_queries) for x in (out, queries, visible.row_of_query.long())), strict=True):
            part.copy_(self._attend(q, keys, values, visible.rows[i], visible.lengths[i], n_heads))
        return out

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, rows: Tensor, lengths: Tensor, n_heads: int
    ) -> Tensor:
        """Attend with a line of `rows` (N, T) for each query."""
        is_visible = torch.arange(rows.size(1)) < lengths[:, None]  # (N, T)
        rows = rows.where(is_visible, rows[:, :1]).long()  # a row of another sentence may hold NaN, and 0 * NaN is NaN
        q = queries.unflatten(1, (n_heads, 1, -1))  # (N, H, 1, K)
        k, v = (x[rows].unflatten(2, (n_heads, -1)).transpose(1, 2) for x in (keys, values))  # (N, H, T, ...)
        scores = (q @ k.transpose(2, 3)) / q.size(-1) ** 0.5
        weights = scores.masked_fill(~is_visible[:, None, None], -torch.inf).softmax(dim=-1)
        return (weights @ v).flatten(1)

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        values, ids = logits.topk(count, dim=1)
        return values - logits.logsumexp(dim=1, keepdim=True), ids


PLAIN = Plain()

# ---- in C++ ------------------------------------------------------------------------------------------------------


POINTER = ctypes.c_void_p
INTEGER = ctypes.c_long
PANEL = 64  # of kernels.cpp: outputs that are computed together


class CLinear(ctypes.Structure):
    """Linear of products.h."""

    _fields_ = [*((name, POINTER) for name in ("weight", "bias", "scales", "zeros")), ("n", INTEGER), ("k", INTEGER)]


class CTokens(ctypes.Structure):
    """Tokens of kernels.cpp."""

    _fields_ = [("output", CLinear), ("ids", POINTER)]


@dataclass(frozen=True)
class PackedTokens:
    """Some rows of an output matrix, for the compiled kernels, and the ids (n,) of the tokens that they belong to."""

    output: Packed
    ids: Tensor

    @functools.cached_property
    def struct(self) -> CTokens:
        """The addresses of the tensors."""
        return CTokens(self.output.struct, self.ids.data_ptr())

    @property
    def address(self) -> int:
        """The address of the struct, which is good as long as this object lives."""
        return ctypes.addressof(self.struct)


class CNorm(ctypes.Structure):
    """Norm of kernels.cpp. All zero: no norm."""

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

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        for name, arguments in ARGUMENTS.items():
            getattr(library, name).argtypes, getattr(library, name).restype = arguments, None

    def pack(self, weight: Tensor, bias: Tensor, *, int8: bool) -> Packed:
        n, k = weight.shape
        panels, weight, bias = -(-n // PANEL), weight.contiguous(), bias.contiguous()  # names keep them in memory
        if not int8:
            packed = torch.empty(panels, k, PANEL)
            self.library.pack_fp32(weight.data_ptr(), n, k, packed.data_ptr())
            return Packed(packed, bias, (n, k))
        packed = torch.empty(panels, -(-k // 4), PANEL, 4, dtype=torch.int8)
        scales, zeros = torch.empty(n), torch.empty(n, dtype=torch.int32)
        self.library.pack_int8(weight.data_ptr(), n, k, packed.data_ptr(), scales.data_ptr(), zeros.data_ptr())
        return Packed(packed, bias, (n, k), scales, zeros)

    def packed_tokens(self, output: Packed, lists: Sequence[Tensor]) -> list[PackedTokens]:
        """Return the rows of `output` for each list of ids, ascending. Each begins with a panel of its own."""
        padded = [F.pad(ids, (0, -len(ids) % PANEL)) for ids in lists]
        ids, sizes = torch.cat(padded), [len(one) for one in padded]
        weight = output.weight[ids // PANEL, :, ids % PANEL]  # (ids, k), or (ids, k4, 4)
        weight = weight.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()
        bias, scales, zeros = output.bias[ids], _at(output.scales, ids), _at(output.zeros, ids)
        tokens, begin = list[PackedTokens](), 0
        for some, size in zip(lists, sizes, strict=True):
            part, begin = slice(begin, begin + size), begin + size
            panels, shape = slice(part.start // PANEL, begin // PANEL), (len(some), output.shape[1])
            packed = Packed(weight[panels], bias[part], shape, _at(scales, part), _at(zeros, part))
            tokens.append(PackedTokens(packed, some))
        return tokens

    def linear(self, x: Tensor, packed: Packed, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        (n, k), m = packed.shape, x.size(0)
        assert x.is_contiguous() and x.size(1) == k and (residual is None or residual.is_contiguous())
        y = torch.empty(m, n)
        residual_pointer = None if residual is None else residual.data_ptr()
        weight = ctypes.addressof(packed.struct)
        self.library.linear(weight, x.data_ptr(), m, relu, residual_pointer, y.data_ptr())
        return y

    def norm(self, x: Tensor, layer: nn.LayerNorm) -> Tensor:
        (m, n), struct, x = x.shape, norm_struct(layer), x.contiguous()
        y = torch.empty(m, n)
        self.library.norm(x.data_ptr(), m, n, ctypes.addressof(struct), y.data_ptr())
        return y

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, visible: Visible, n_heads: int) -> Tensor:
        n, stride, rows = len(queries), keys.stride(0), visible.rows
        d_k, d_v = queries.size(1) // n_heads, values.size(1) // n_heads
        assert stride == values.stride(0) and rows.is_contiguous() and len(visible.row_of_query) == n
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

    def best_of(self, x: Tensor, output: Packed, count: int, barred: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return `best` of the logits `linear(x, output)`, which are never all in memory, without the `barred` ids.

        Where fewer than `count` ids are left, the log-probability -inf fills up.
        """
        n, without = len(x), _integers(tuple(barred))
        values, ids, x = torch.empty(n, count), torch.empty(n, count, dtype=torch.int64), x.contiguous()
        outputs = values.data_ptr(), ids.data_ptr()
        weight = ctypes.addressof(output.struct)
        self.library.best_of(weight, x.data_ptr(), n, count, ctypes.addressof(without), len(without), *outputs)
        return values, ids

    def best_of_lists(
        self, x: Tensor, common: PackedTokens, own: Tensor, count: int, barred: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Return `best_of` among some tokens: the `common` ones, and of row i those at the address own[i].

        A log-probability is over these tokens of the row.
        """
        n, without = len(x), _integers(tuple(barred))
        values, ids, x = torch.empty(n, count), torch.empty(n, count, dtype=torch.int64), x.contiguous()
        assert own.is_contiguous() and len(own) == n
        lists = common.address, own.data_ptr()
        outputs = ctypes.addressof(without), len(without), values.data_ptr(), ids.data_ptr()
        self.library.best_of_lists(*lists, x.data_ptr(), n, count, *outputs)
        return values, ids


def _at(values: Tensor | None, index: Tensor | slice) -> Tensor | None:
    return None if values is None else values[index]


@functools.lru_cache(maxsize=32)
def _integers(values: tuple[int, ...]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


@functools.cache
def compiled() -> Compiled | None:
    """Return the compiled kernels; None where this machine cannot compile or run them."""
    functions = library()
    return None if functions is None else Compiled(functions)
