"""Dropout (§5.4): while training each value is dropped with probability p, and those that stay are divided by 1 - p.

On a CPU torch draws its masks from one serial generator, a seventh of a training step of a small model. Here 32 random
bits a value come from a generator that takes a sixth of the time, and a mask is kept in a byte a value, not in four.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class Dropout(nn.Module):
    """As nn.Dropout: (...) -> (...), a new mask each time while training, drawn by way of torch's global generator.

    p, in [0, 1), is met to 2^-33.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        dropped: Any = _Dropped.apply(x, kept(x.shape, self.p), 1 / (1 - self.p))
        return dropped

    def extra_repr(self) -> str:
        return f"p={self.p}"


def kept(shape: torch.Size, p: float) -> Tensor:
    """Which values stay, bool: each with probability 1 - p, seeded by the next number of torch's global generator."""
    seed = int(torch.randint(2**63 - 1, ()))
    count = shape.numel()
    bits = np.random.SFC64(seed).random_raw(-(-count // 2)).view(np.int32)[:count]  # uniform from -2^31
    return (torch.from_numpy(bits) >= min(round(p * 2**32), 2**32 - 1) - 2**31).view(shape)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return (x * kept).mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None, None]:
        (grad_output,) = grad_outputs
        (kept,) = ctx.saved_tensors
        return (grad_output * kept).mul_(ctx.scale), None, None
