"""The training loss: cross entropy with label smoothing (§5.4), and R-Drop, which came after the paper."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transduce.model.fused import fused
from transduce.model.fused_layers import products_dtype


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
    loss and its gradients together, for some rows at a time: a few hundred, on a GPU a few thousand. Under autocast to
    bf16 the products are in bf16, and so are the logits and their gradient. The softmax is in fp32.
    """
    dtype = products_dtype(hidden)
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
    dtype = products_dtype(hidden)
    return _ProjectedLoss.apply(hidden, projection, bias, targets, label_smoothing, alpha, dtype, None)


# Logits at a time, in fp32: what fits into a CPU's cache; on a GPU also the memory of the logits and their gradient in
# bf16. Each chunk moves the projection (37,000 x 512) and its gradient: 0.3 GB.
CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 512 << 20}


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
        with torch.autocast(hidden.device.type, enabled=False):
            inputs = hidden.to(dtype)
            weight = projection.to(dtype)
            total = hidden.new_zeros((), dtype=_softmax_dtype(dtype))
            divergence = torch.zeros_like(total)
            grad_hidden = torch.empty_like(inputs)
            grad_projection = torch.zeros_like(projection)
            grad_bias = None if bias is None else torch.zeros_like(bias)
            rows = _chunk_rows(hidden, projection.size(0))
            if alpha:  # both passes of a token; half of the rows, because the divergence needs as much memory again
                rows = max(2, rows // 4 * 2)
            for begin in range(0, len(targets), rows):
                part = slice(begin, begin + rows)
                factors = None if weights is None else weights[part, None]
                logits = inputs[part] @ weight.T
                chunk = _loss_of_logits(logits, targets[part, None], label_smoothing, bias, factors, alpha)
                total += chunk.losses.sum()
                if chunk.divergences is not None:
                    divergence += chunk.divergences.sum()
                if grad_bias is not None and chunk.grad_bias is not None:
                    grad_bias += chunk.grad_bias
                torch.mm(chunk.grad, weight, out=grad_hidden[part])
                grad_projection += chunk.grad.T @ inputs[part]
                del logits, chunk  # their memory is for the next ones
        ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_projection, grad_bias)
        ctx.mark_non_differentiable(total)
        return total + alpha / 2 * divergence, total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        gradients = [None if grad is None else grad * grad_outputs[0] for grad in ctx.saved_tensors]
        return *gradients, None, None, None, None, None


class _LossOfLogits(NamedTuple):
    """The loss of some rows of logits.

    losses: cross entropies (N,1). divergences: of pairs of rows (N/2,1). grad: the gradient by the logits, (N,V).
    grad_bias: its sum over the rows, (V,).
    """

    losses: Tensor
    divergences: Tensor | None
    grad: Tensor
    grad_bias: Tensor | None


@fused
def _loss_of_logits(
    logits: Tensor,
    targets: Tensor,
    label_smoothing: float,
    bias: Tensor | None,
    factors: Tensor | None,
    alpha: float,
) -> _LossOfLogits:
    """Return the losses of `logits` (N,V) + bias, and the gradient of their sum. This overwrites `logits`.

    targets: (N,1). factors: of the losses, (N,1). alpha: the weight of the divergence, which is in the gradient.
    """
    dtype = logits.dtype
    vocab_size = logits.size(1)
    share = label_smoothing / (vocab_size - 1)  # the probability of each token except the target
    excess = 1 - label_smoothing - share  # the probability of the target, less `share`
    logits = logits.to(_softmax_dtype(dtype))
    if bias is not None:
        logits += bias
    highest = logits.amax(1, keepdim=True)
    losses = excess * (highest - logits.gather(1, targets))
    if label_smoothing:
        losses += share * (highest * vocab_size - logits.sum(1, keepdim=True))
    logits.sub_(highest)
    grad = logits.exp() if alpha else logits.exp_()
    normalizer = grad.sum(1, keepdim=True)
    losses += normalizer.log()
    grad.div_(normalizer)  # the probabilities, of which the gradient is made in place
    divergences = _add_divergence(logits, grad, normalizer.log(), alpha / 2) if alpha else None
    grad.sub_(share)  # softmax - target distribution
    if torch.compiler.is_compiling():  # a kernel that visits all columns
        grad -= excess * (torch.arange(vocab_size, device=grad.device) == targets)
    else:
        grad.scatter_add_(1, targets, losses.new_full(losses.shape, -excess))
    if factors is not None:
        losses *= factors
        grad *= factors
    return _LossOfLogits(losses, divergences, grad.to(dtype), None if bias is None else grad.sum(0))


def _add_divergence(logits: Tensor, probabilities: Tensor, log_normalizer: Tensor, weight: float) -> Tensor:
    """Return KL(p||q) + KL(q||p), (R,1), and add `weight` times its gradient by the logits to `probabilities`.

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
    return p_over_q + q_over_p


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
