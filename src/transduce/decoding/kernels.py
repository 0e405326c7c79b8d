"""The inner loops of translation on a CPU: what they compute, and the reference in torch.

PLAIN                        -> in torch: slower, without requirements
compiled_kernels.compiled()  -> the same in C++; the tests compare them with PLAIN
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Linear(Protocol):
    """A linear layer whose weight (n, k) and bias (n,) are packed."""

    def __call__(self, x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        """Return x W^T + bias (m, n) of x (m, k), then relu, then plus `residual` (m, n)."""
        ...


class Visible(NamedTuple):
    """The rows of keys and values that each of N queries may attend to, all int32; int64 on a GPU.

    Query i sees rows[j, :lengths[j]] with j = row_of_query[i]. The tokens of a sentence share a line of `rows`: a line
    for each of n tokens would be n x n.
    """

    rows: Tensor  # (M, T)
    lengths: Tensor  # (M,)
    row_of_query: Tensor  # (N,)
    bias: Tensor | None = None  # of a GPU instead of both: 0 where a line sees a row, else -inf, (M or 1, 1, 1, T)


class Kernels(Protocol):
    """The functions that take most of the time of translation.

    All tensors are fp32 on the CPU. Rows are independent of one another.
    precisions: of the linear layers that `pack` packs; torch has faster ones for the others.
    """

    precisions: Collection[str]

    def pack(self, weight: Tensor, bias: Tensor, *, int8: bool) -> Linear:
        """Return the linear layer of weight (n, k) and bias (n,).

        In int8 the weight is quantised, symmetrically, with a scale for each row. So are the rows of an input, each
        with its own scale.
        """
        ...

    def norm(self, x: Tensor, layer: nn.LayerNorm) -> Tensor:
        """Return the layer normalisation of the rows of x (m, n)."""
        ...

    def attend(self, queries: Tensor, keys_values: Tensor, visible: Visible, n_heads: int) -> Tensor:
        """Return the attention (eq. 1) of each of N queries over its `visible` rows of keys and values, (N, H*W).

        queries (N, H*K), keys_values (R, H*K + H*W), heads side by side.
        """
        ...

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and ids (N, count) of the most likely tokens by logits (N, V), best first."""
        ...


# ---- in torch ----------------------------------------------------------------------------------------------------

GATHERED = 1 << 22  # most floats of keys and values in one gather


@dataclass(frozen=True)
class PlainLinear:
    """A linear layer in torch. scales: (n,), of the rows of an int8 weight; None: the weight is fp32."""

    weight: Tensor  # (n, k)
    bias: Tensor
    scales: Tensor | None

    def __call__(self, x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        if self.scales is None:
            y = F.linear(x, self.weight, self.bias)
        else:
            largest = x.abs().amax(dim=1, keepdim=True)  # NaN if one value is NaN
            inverse = torch.where(largest > 0, 127 / largest, 0.0)
            rounded = (x * inverse).round().nan_to_num().to(torch.int8)
            sums = torch.ops.aten._int_mm(rounded, self.weight.T)
            y = sums * (largest / 127 * self.scales) + self.bias
        y = y.relu() if relu else y
        return y if residual is None else y + residual


class Plain:
    """The kernels in torch, step by step."""

    precisions: Collection[str] = ("int8",)

    def pack(self, weight: Tensor, bias: Tensor, *, int8: bool) -> Linear:
        if not int8:
            return PlainLinear(weight, bias, None)
        largest = weight.abs().amax(dim=1)
        inverse = torch.where(largest > 0, 127 / largest, 0.0)
        rounded = (weight * inverse[:, None]).round().to(torch.int8)
        return PlainLinear(rounded, bias, largest / 127)

    def norm(self, x: Tensor, layer: nn.LayerNorm) -> Tensor:
        return torch.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)

    def attend(self, queries: Tensor, keys_values: Tensor, visible: Visible, n_heads: int) -> Tensor:
        keys, values = keys_values[:, : queries.size(1)], keys_values[:, queries.size(1) :]
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
