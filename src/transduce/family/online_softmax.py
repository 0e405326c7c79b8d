"""Exact attention in parts: the online softmax of FlashAttention, and the merge of two parts of Ring Attention.

FlashAttention (Dao et al. 2022, section 3.1) never has all weights of a query at once. It walks over blocks of keys,
and keeps for each query the maximum m of the scores s so far, the sum l of e^(s - m), and the sum o of e^(s - m) v:

    m' = max(m, max s)        l' = e^(m - m') l + sum e^(s - m')        o' = e^(m - m') o + sum e^(s - m') v

At the end o / l is eq. 1, and L = m + log l is the log-sum-exp of the scores. Memory grows with n instead of n^2: the
causal mask too is made block by block. The backward pass computes the weights again, block by block, as e^(s - L).

Ring Attention (Liu et al. 2023, section 3) gives each of several devices a part of the keys. The outputs of two parts,
with the weights e^(L_1 - L) and e^(L_2 - L), where L = log(e^L_1 + e^L_2), add up to the output of both.

torch's fused kernel is the same algorithm, and faster. This one is to be read.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.model.attention import Mask
from transduce.model.dropout import keep_mask

BLOCK = 256  # keys at once
PartialOutput = tuple[Tensor, Tensor]  # the output (B,H,T,W) of a part of the keys, and its log-sum-exp L (B,H,T,1)


def online_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
    """Return the same as `reference_attention`; 0 for a query without a visible key.

    A floating mask is added to the scores, and may have a gradient. Its lowest finite value hides a key.
    Dropout keeps a mask of one byte for each weight until the backward pass, so memory then grows with n^2.
    """
    return attention_part(queries, keys, values, mask, dropout)[0]


def attention_part(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float = 0.0, *, block: int = BLOCK
) -> PartialOutput:
    """Return attention to only these keys, by an online softmax over blocks of keys, and its log-sum-exp.

    The mask "causal" is the mask of the last T of S positions. The log-sum-exp of a query without a visible key is so
    low that `merge` gives this part no weight.
    """
    visible = None if isinstance(mask, str) else mask.expand(*mask.shape[:-1], keys.size(2))
    output: Any = _OnlineSoftmax.apply(queries, keys, values, visible, dropout, block)
    return output


def merge(one: PartialOutput, other: PartialOutput) -> PartialOutput:
    """Return attention to the keys of both parts, which have the same queries."""
    lse = torch.logaddexp(one[1], other[1])
    return (one[1] - lse).exp() * one[0] + (other[1] - lse).exp() * other[0], lse


class _OnlineSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, dropout: float, block: int
    ) -> PartialOutput:
        m = queries.new_full((*queries.shape[:3], 1), torch.finfo(queries.dtype).min)
        l, o = torch.zeros_like(m), queries.new_zeros(*queries.shape[:3], values.size(-1))  # noqa: E741
        ctx.kept = []
        for rows, part, visible in _blocks(mask, queries, keys, block):
            scores = _scores(queries[:, :, rows], keys[:, :, part], visible)
            highest = torch.maximum(m[:, :, rows], scores.amax(dim=-1, keepdim=True))
            weights, shrink = (scores - highest).exp(), (m[:, :, rows] - highest).exp()
            l[:, :, rows] = shrink * l[:, :, rows] + weights.sum(dim=-1, keepdim=True)
            if dropout:
                ctx.kept.append(keep_mask(weights.shape, dropout).to(weights.device))
                weights = weights * ctx.kept[-1] / (1 - dropout)
            o[:, :, rows] = shrink * o[:, :, rows] + weights @ values[:, :, part]
            m[:, :, rows] = highest
        l = l.clamp(min=torch.finfo(l.dtype).tiny)  # noqa: E741
        output, lse = o / l, m + l.log()
        ctx.save_for_backward(queries, keys, values, mask, output, lse)
        ctx.dropout, ctx.block = dropout, block
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_output: Tensor, grad_lse: Tensor
    ) -> tuple[Tensor | None, ...]:
        queries, keys, values, mask, output, lse = ctx.saved_tensors
        grad_queries, grad_keys, grad_values = (torch.zeros_like(x) for x in (queries, keys, values))
        grad_mask = torch.zeros_like(mask) if ctx.needs_input_grad[3] else None
        mean = (grad_output * output).sum(dim=-1, keepdim=True) - grad_lse  # of the weights' gradients
        for i, (rows, part, visible) in enumerate(_blocks(mask, queries, keys, ctx.block)):
            weights = (_scores(queries[:, :, rows], keys[:, :, part], visible) - lse[:, :, rows]).exp()
            grad_weights = grad_output[:, :, rows] @ values[:, :, part].mT
            scale = ctx.kept[i] / (1 - ctx.dropout) if ctx.dropout else 1.0
            grad_scores = weights * (grad_weights * scale - mean[:, :, rows])
            if grad_mask is not None:
                grad_mask[..., part] = grad_scores.sum_to_size(visible.shape)
            grad_scores = grad_scores / math.sqrt(queries.size(-1))
            grad_values[:, :, part] = (weights * scale).mT @ grad_output[:, :, rows]
            grad_keys[:, :, part] = grad_scores.mT @ queries[:, :, rows]
            grad_queries[:, :, rows] += grad_scores @ keys[:, :, part]
        return grad_queries, grad_keys, grad_values, grad_mask, None, None


def _scores(queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    """Return the scores of eq. 1, -inf where the mask hides a key."""
    scores = (queries / math.sqrt(queries.size(-1))) @ keys.mT
    if mask.is_floating_point():
        scores, mask = scores + mask, mask > torch.finfo(mask.dtype).min
    return torch.where(mask, scores, -math.inf)


def _blocks(mask: Tensor | None, queries: Tensor, keys: Tensor, block: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield each block of keys: the queries that may see it and its keys, as slices, and their part of the mask.

    mask: None is the causal one. Queries before the block are then left out.
    """
    n_queries, n_keys = queries.size(2), keys.size(2)
    places = torch.arange(n_keys, device=keys.device)
    for start in range(0, n_keys, block):
        part = slice(start, start + block)
        if mask is not None:
            yield slice(n_queries), part, mask[..., part]
            continue
        before = max(0, start - (n_keys - n_queries))  # the first query is at position n_keys - n_queries
        positions = torch.arange(before, n_queries, device=keys.device) + (n_keys - n_queries)
        yield slice(before, n_queries), part, places[part] <= positions[:, None]
