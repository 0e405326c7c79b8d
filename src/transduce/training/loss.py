"""The training loss: cross entropy with label smoothing (§5.4), and R-Drop, which came after the paper."""

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
    hidden: Tensor,
    projection: Tensor,
    targets: Tensor,
    label_smoothing: float = 0.0,
    bias: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Return `label_smoothed_cross_entropy` of the logits `hidden @ projection.T + bias`, without storing them.

    hidden: (N,D). projection: (V,D). targets: (N,). bias: (V,), or None. weights: factors of the targets' losses in the
    sum, (N,), without a gradient; None: 1.

    The logits of a whole batch would be the largest tensor of a training step by far. So the forward pass computes the
    loss and its gradients together, a few hundred rows at a time. Under autocast to bf16 the products are in bf16 and
    the softmax is in fp32.
    """
    dtype = _products_dtype(hidden)
    return _ProjectedLoss.apply(hidden, projection, bias, targets, label_smoothing, 0.0, dtype, weights)[0]


def projected_rdrop(
    hidden: Tensor,
    projection: Tensor,
    targets: Tensor,
    label_smoothing: float,
    bias: Tensor | None,
    alpha: float,
) -> tuple[Tensor, Tensor]:
    """Return the loss of R-Drop (Liang et al., 2021), and the cross entropy in it, which has no gradient.

    The loss of a target token with the distributions p and q of two passes is CE(p) + CE(q) + alpha / 2 * (KL(p||q) +
    KL(q||p)), summed over the tokens. The divergences are in fp32 and have a gradient in both arguments.

    hidden: (2N,D), where the rows 2i and 2i + 1 are the same token in the two passes. targets: (2N,). Other arguments
    as in `projected_cross_entropy`.
    """
    dtype = _products_dtype(hidden)
    return _ProjectedLoss.apply(hidden, projection, bias, targets, label_smoothing, alpha, dtype, None)


def _products_dtype(hidden: Tensor) -> torch.dtype:
    """Return autocast's type of matrix products, or the type of `hidden` without autocast."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 256 << 20}  # fp32 logits that fit into a CPU's cache, or keep a GPU busy


def _chunk_rows(hidden: Tensor, vocab_size: int) -> int:
    """Return the number of rows of `hidden` that are projected at a time."""
    return max(1, CHUNK_BYTES.get(hidden.device.type, CHUNK_BYTES["cpu"]) // (4 * vocab_size))


class _ProjectedLoss(torch.autograd.Function):
    """Computes the loss with R-Drop of weight `alpha`, and the cross entropy. Without R-Drop both are equal."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        projection: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        label_smoothing: float,
        alpha: float,
        dtype: torch.dtype,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        vocab_size = projection.size(0)
        share = label_smoothing / (vocab_size - 1)  # the probability of each token except the target
        excess = 1 - label_smoothing - share  # the probability of the target, less `share`
        with torch.autocast(hidden.device.type, enabled=False):
            weight = projection.to(dtype)
            total = hidden.new_zeros((), dtype=_softmax_dtype(dtype))
            divergence = torch.zeros_like(total)
            grad_hidden = torch.empty_like(hidden)
            grad_projection = torch.zeros_like(projection)
            grad_bias = None if bias is None else torch.zeros_like(bias)
            rows = _chunk_rows(hidden, vocab_size)
            if alpha:  # both passes of a token; half of the rows, because the divergence needs as much memory again
                rows = max(2, rows // 4 * 2)
            for begin in range(0, len(targets), rows):
                chunk = hidden[begin : begin + rows].to(dtype)
                target = targets[begin : begin + rows, None]
                factor = 1 if weights is None else weights[begin : begin + rows, None]
                logits = (chunk @ weight.T).to(total.dtype)  # (rows, V)
                if bias is not None:
                    logits += bias
                highest = logits.amax(1, keepdim=True)
                target_logits = logits.gather(1, target)
                total += excess * (factor * (highest - target_logits)).sum()
                if share:
                    total += share * (factor * (highest * vocab_size - logits.sum(1, keepdim=True))).sum()
                logits.sub_(highest)
                grad = logits.exp() if alpha else logits.exp_()
                normalizer = grad.sum(1, keepdim=True)
                total += (factor * normalizer.log()).sum()
                grad.div_(normalizer)  # the probabilities, of which the gradient of the logits is made in place
                if alpha:
                    divergence += _add_divergence(logits, grad, normalizer.log(), alpha / 2)
                grad.sub_(share)  # softmax - target distribution
                grad.scatter_add_(1, target, torch.full_like(target_logits, -excess))
                if weights is not None:
                    grad.mul_(factor)
                if grad_bias is not None:
                    grad_bias += grad.sum(0)
                grad = grad.to(dtype)
                grad_hidden[begin : begin + rows] = grad @ weight
                grad_projection += grad.T @ chunk
        ctx.save_for_backward(grad_hidden, grad_projection, grad_bias)
        ctx.mark_non_differentiable(total)
        return total + alpha / 2 * divergence, total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        gradients = [None if grad is None else grad * grad_outputs[0] for grad in ctx.saved_tensors]
        return *gradients, None, None, None, None, None


def _add_divergence(logits: Tensor, probabilities: Tensor, log_normalizer: Tensor, weight: float) -> Tensor:
    """Return the sum of KL(p||q) + KL(q||p), and add `weight` times its gradient by the logits to `probabilities`.

    logits, probabilities: (2R,V), where the rows 2i and 2i + 1 belong to p and q. log_normalizer: (2R,1), the
    difference between logits and log-probabilities.
    """
    pairs = (x.unflatten(0, (-1, 2)).unbind(1) for x in (logits, probabilities, log_normalizer))
    (logits_p, logits_q), (p, q), (log_z_p, log_z_q) = pairs  # (R,V) or (R,1)
    log_ratio = (logits_p - logits_q).sub_(log_z_p - log_z_q)  # log p - log q
    p_over_q = torch.linalg.vecdot(p, log_ratio)[:, None]  # KL(p||q)
    q_over_p = -torch.linalg.vecdot(q, log_ratio)[:, None]
    grad_p = (log_ratio + (1 - p_over_q)).mul_(p).sub_(q)
    grad_q = log_ratio.neg_().add_(1 - q_over_p).mul_(q).sub_(p)
    p.add_(grad_p, alpha=weight)
    q.add_(grad_q, alpha=weight)
    return (p_over_q + q_over_p).sum()


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
