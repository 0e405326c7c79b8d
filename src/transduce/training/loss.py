"""The training loss: cross entropy with label smoothing (§5.4)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def label_smoothed_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """The summed loss (a scalar, in nats) of `logits` (N,V) against `targets` (N,). Divide by the global token count.

    The truth gets probability 1 - label_smoothing and every other token, control tokens included, an even share
    label_smoothing / (V - 1) of the rest: the distribution of the authors' code. PyTorch's argument of the same name
    spreads over all V tokens, the truth included, hence the factor.
    """
    vocab_size = logits.size(-1)
    spread_over_all = label_smoothing * vocab_size / (vocab_size - 1)
    wide = logits.to(_softmax_dtype(logits.dtype))
    return F.cross_entropy(wide, targets, reduction="sum", label_smoothing=spread_over_all)


def _softmax_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32, or `dtype` if that is wider."""
    return torch.promote_types(dtype, torch.float32)


def projected_cross_entropy(
    hidden: Tensor, projection: Tensor, targets: Tensor, label_smoothing: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """The same loss of the logits `hidden @ projection.T + bias`, for hidden (N,D), projection (V,D), targets (N,) and
    bias (V,), if there is one.

    The logits of a whole batch are the largest tensor of a training step by far, and are never kept: the loss and its
    gradients are computed together, a few hundred rows at a time. bf16 under autocast: the products are in bf16, the
    softmax in fp32.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    loss: Any = _ProjectedCrossEntropy.apply(hidden, projection, bias, targets, label_smoothing, dtype)
    return loss


# Of fp32 logits held at a time: what fits a large cache; what keeps a GPU busy.
CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 256 << 20}


def _chunk_rows(hidden: Tensor, vocab_size: int) -> int:
    """How many rows of `hidden` are projected at a time."""
    return max(1, CHUNK_BYTES.get(hidden.device.type, CHUNK_BYTES["cpu"]) // (4 * vocab_size))


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        projection: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
    ) -> Tensor:
        vocab_size = projection.size(0)
        share = label_smoothing / (vocab_size - 1)  # of each token but the truth
        truth = 1 - label_smoothing - share  # what the truth gets more than that
        with torch.autocast(hidden.device.type, enabled=False):
            weight = projection.to(dtype)
            total = hidden.new_zeros((), dtype=_softmax_dtype(dtype))
            grad_hidden = torch.empty_like(hidden)
            grad_projection = torch.zeros_like(projection)
            grad_bias = None if bias is None else torch.zeros_like(bias)
            rows = _chunk_rows(hidden, vocab_size)
            for begin in range(0, len(targets), rows):
                chunk, expected = hidden[begin : begin + rows].to(dtype), targets[begin : begin + rows, None]
                logits = (chunk @ weight.T).to(total.dtype)  # (rows, V)
                if bias is not None:
                    logits += bias
                highest = logits.amax(1, keepdim=True)
                at_truth = logits.gather(1, expected)
                total += truth * (highest - at_truth).sum()
                if share:
                    total += share * (highest * vocab_size - logits.sum(1, keepdim=True)).sum()
                scores = logits.sub_(highest).exp_()
                mass = scores.sum(1, keepdim=True)
                total += mass.log().sum()
                grad = scores.div_(mass).sub_(share)  # the gradient of the loss by the logits: softmax - target
                grad.scatter_add_(1, expected, torch.full_like(at_truth, -truth))
                if grad_bias is not None:
                    grad_bias += grad.sum(0)
                grad = grad.to(dtype)
                grad_hidden[begin : begin + rows] = grad @ weight
                grad_projection += grad.T @ chunk
        ctx.save_for_backward(grad_hidden, grad_projection, grad_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (grad_output,) = grad_outputs
        gradients = [None if grad is None else grad * grad_output for grad in ctx.saved_tensors]
        return *gradients, None, None, None


@torch.no_grad()
def token_log_probs(hidden: Tensor, projection: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
    """log P(targets) (N,) under the softmax of the same logits, a few hundred rows at a time. No gradient."""
    rows = _chunk_rows(hidden, projection.size(0))
    found = []
    for begin in range(0, len(targets), rows):
        logits = F.linear(hidden[begin : begin + rows], projection, bias)
        logits = logits.to(_softmax_dtype(logits.dtype))
        found.append(logits.log_softmax(1).gather(1, targets[begin : begin + rows, None])[:, 0])
    return torch.cat(found) if found else hidden.new_zeros(0)
