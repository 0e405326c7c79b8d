"""The kernels of translation on a GPU: few launches, and weights that can change in place.

Weights are in the type of matrix products. Residual sums and norms are in fp32, as in mixed precision: a product takes
one cast, and a sum takes the fp32 of its other side.

Letters as in `kernels`; B sentences or rows of `visible`.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

from transduce.decoding.kernels import Plain, Visible
from transduce.model.attention import NOT_FLASH


@dataclass(frozen=True)
class GpuLinear:
    """A linear layer; the results without `residual` have the type of its weight (n, k)."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        x = x.to(self.weight.dtype)
        if relu:
            y = torch.ops.aten._addmm_activation(self.bias, x, self.weight.T)  # one kernel for product, bias and ReLU
        else:
            y = F.linear(x, self.weight, self.bias)
        return y if residual is None else residual + y


class GpuKernels(Plain):
    """The kernels on a GPU, with products in `dtype`. linears: all that were packed, in their order."""

    precisions: Collection[str] = ("fp32", "bf16")

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.zero, self.minus_infinity = (torch.tensor(x, dtype=dtype, device=device) for x in (0.0, -torch.inf))
        self.linears: list[GpuLinear] = []

    def pack(self, weight: Tensor, bias: Tensor, *, int8: bool) -> GpuLinear:
        assert not int8
        linear = GpuLinear(weight.to(self.dtype), bias.to(self.dtype))
        self.linears.append(linear)
        return linear

    def attend(self, queries: Tensor, keys_values: Tensor, visible: Visible, n_heads: int) -> Tensor:
        """Attend as `Kernels.attend`, but query i sees line i // K: the K queries of a line are adjacent."""
        rows, width = visible.rows, queries.size(1)
        q = queries.view(len(rows), -1, n_heads, width // n_heads).transpose(1, 2)  # (B, H, K, ...)
        both = F.embedding(rows, keys_values)  # (B, T, H*K + H*W)
        sides = both[:, :, :width], both[:, :, width:]
        k, v = (side.unflatten(2, (n_heads, -1)).transpose(1, 2) for side in sides)  # (B, H, T, ...)
        with sdpa_kernel(NOT_FLASH):  # cuDNN makes a new plan for each shape
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=visible.bias)  # (B, H, K, W)
        return heads.transpose(1, 2).reshape(len(queries), -1)

    def bias_of(self, is_visible: Tensor) -> Tensor:
        """Return what is added to the scores of all heads and queries. is_visible: what each line sees, (B, T) or (T,).

        The kernel reads rows of a multiple of 16 numbers; others it would copy in every layer.
        """
        width = is_visible.size(-1)
        padded = F.pad(is_visible, (0, -width % 16)) if width % 16 else is_visible
        return torch.where(padded, self.zero, self.minus_infinity).view(-1, 1, 1, padded.size(-1))[..., :width]
