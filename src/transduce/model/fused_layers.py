"""Parts of a layer that a GPU computes in few kernels when it trains. Elsewhere they are what their names say.

A step of a GPU mostly waits for its memory, so what counts is how often a part reads and writes its tensors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transduce.model.dropout import Dropout
from transduce.model.fused import fused

# ---- the type of matrix products ---------------------------------------------------------------------------------


def products_dtype(x: Tensor) -> torch.dtype:
    """Return autocast's type of matrix products, or the type of `x` without autocast."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def narrow(x: Tensor) -> Tensor:
    """Return `x` in autocast's type of matrix products, so that autocast does not cast it again for each product."""
    dtype = products_dtype(x)
    if torch.compiler.is_compiling():
        return x.to(dtype)
    written = vars(x).get("narrow") if x.is_cuda else None
    return written if written is not None and written.dtype == dtype else x.to(dtype)


# ---- residual connection and normalisation -----------------------------------------------------------------------


def norm_of_sum(x: Tensor, y: Tensor, norm: nn.Module, dropout: Dropout) -> Tensor:
    """Return norm(x + dropout(y)), for x and y (B,T,D).

    The kernel of a GPU also writes the result in autocast's type of matrix products, for `narrow`.
    """
    if not (x.is_cuda and dropout.training and isinstance(norm, nn.LayerNorm)) or torch.compiler.is_compiling():
        return norm(x + dropout(y))
    rows = (x.flatten(0, -2), y.flatten(0, -2))  # so that only one size changes between batches
    outputs = _norm_of_sum(*rows, norm.weight, norm.bias, norm.eps, dropout.p, products_dtype(x))
    wide, narrowed = (output.view_as(x) for output in outputs)
    vars(wide)["narrow"] = narrowed
    return wide


@fused
def _norm_of_sum(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float, dropout: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    total = x + F.dropout(y, dropout, training=dropout > 0)
    wide = F.layer_norm(total, weight.shape, weight, bias, eps)
    return wide, wide.to(dtype)


# ---- the inner layer of a feed-forward network -------------------------------------------------------------------


def activated(x: Tensor, layer: nn.Linear, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Return activation(layer(x)) for x (B,T,D). With ReLU, the product of a GPU also adds the bias and cuts at 0."""
    has_relu = activation is F.relu and layer.bias is not None
    if x.is_cuda and layer.training and has_relu and x.dtype == layer.weight.dtype == products_dtype(x):
        return _Relu.apply(x.flatten(0, -2), layer.weight, layer.bias).unflatten(0, x.shape[:-1])
    return activation(layer(x))


class _Relu(torch.autograd.Function):
    """The rows max(0, x W^T + b)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = torch._addmm_activation(bias, x, weight.T)  # pyright: ignore[reportPrivateImportUsage]
        ctx.save_for_backward(x, weight, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, output = ctx.saved_tensors
        (grad,) = grad_outputs
        grad = torch.ops.aten.threshold_backward(grad, output, 0)  # 0 where the output is 0
        return grad @ weight, grad.T @ x, grad.sum(0)
