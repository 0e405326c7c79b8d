"""The training loss: cross entropy with label smoothing (§5.4)."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def label_smoothed_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the summed loss, a scalar in nats, of `logits` (N,V) against `targets` (N,).

    The caller divides by the token count of the whole batch. The target token has the probability 1 - label_smoothing.
    Every other token, control tokens included, has label_smoothing / (V - 1), as in the authors' code. PyTorch's
    argument of the same name spreads the probability over all V tokens, the target included. A factor corrects this.
    """
    vocab_size = logits.size(-1)
    torch_smoothing = label_smoothing * vocab_size / (vocab_size - 1)
    logits = logits.to(_softmax_dtype(logits.dtype))
    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=torch_smoothing)


def _softmax_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return fp32, or `dtype` if it is wider."""
    return torch.promote_types(dtype, torch.float32)


def projected_cross_entropy(
    hidden: Tensor, projection: Tensor, targets: Tensor, label_smoothing: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """Return `label_smoothed_cross_entropy` of the logits `hidden @ projection.T + bias`, without storing them.

    hidden: (N,D). projection: (V,D). targets: (N,). bias: (V,), or None.

    The logits of a whole batch would be the largest tensor of a training step by far. So the forward pass computes the
    loss and its gradients together, a few hundred rows at a time. Under autocast to bf16 the products are in bf16 and
    the softmax is in fp32.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    loss: Any = _ProjectedCrossEntropy.apply(hidden, projection, bias, targets, label_smoothing, dtype)
    return loss


CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 256 << 20}  # fp32 logits that fit into a CPU's cache, or keep a GPU busy


def _chunk_rows(hidden: Tensor, vocab_size: int) -> int:
    """Return the number of rows of `hidden` that are projected at a time."""
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
        share = label_smoothing / (vocab_size - 1)  # the probability of each token except the target
        excess = 1 - label_smoothing - share  # the probability of the target, less `share`
        with torch.autocast(hidden.device.type, enabled=False):
            weight = projection.to(dtype)
            total = hidden.new_zeros((), dtype=_softmax_dtype(dtype))
            grad_hidden = torch.empty_like(hidden)
            grad_projection = torch.zeros_like(projection)
            grad_bias = None if bias is None else torch.zeros_like(bias)
            rows = _chunk_rows(hidden, vocab_size)
            for begin in range(0, len(targets), rows):
                chunk = hidden[begin : begin + rows].to(dtype)
                target = targets[begin : begin + rows, None]
                logits = (chunk @ weight.T).to(total.dtype)  # (rows, V)
                if bias is not None:
                    logits += bias
                highest = logits.amax(1, keepdim=True)
                target_logits = logits.gather(1, target)
                total += excess * (highest - target_logits).sum()
                if share:
                    total += share * (highest * vocab_size - logits.sum(1, keepdim=True)).sum()
                exponentials = logits.sub_(highest).exp_()
                normalizer = exponentials.sum(1, keepdim=True)
                total += normalizer.log().sum()
                grad = exponentials.div_(normalizer).sub_(share)  # of the logits: softmax - target distribution
                grad.scatter_add_(1, target, torch.full_like(target_logits, -excess))
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
    """Return log P(targets) (N,) under the softmax of the logits `hidden @ projection.T + bias`. No gradient.

    Arguments as in `projected_cross_entropy`. The logits of a few hundred rows are in memory at a time.
    """
    rows = _chunk_rows(hidden, projection.size(0))
    log_probs = []
    for begin in range(0, len(targets), rows):
        logits = F.linear(hidden[begin : begin + rows], projection, bias)
        logits = logits.to(_softmax_dtype(logits.dtype))
        log_probs.append(logits.log_softmax(1).gather(1, targets[begin : begin + rows, None])[:, 0])
    return torch.cat(log_probs) if log_probs else hidden.new_zeros(0)
