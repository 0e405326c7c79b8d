"""Exact attention in parts: the online softmax of FlashAttention, and the merge of two parts of Ring Attention.

FlashAttention (Dao et al. 2022, section 3.1) never has all weights of a query at once. It walks over blocks of keys,
and keeps for each query the maximum m of the scores s so far, the sum l of e^(s - m), and the sum o of e^(s - m) v:

    m' = max(m, max s)        l' = e^(m - m') l + sum e^(s - m')        o' = e^(m - m') o + sum e^(s - m') v

At the end o / l is eq. 1, and L = m + log l is the log-sum-exp of the scores. Memory grows with n instead of n^2. The
backward pass computes the weights again, block by block, as e^(s - L).

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

from transduce.family.around import causal
from transduce.model.attention import Mask
from transduce.model.dropout import keep_mask

BLOCK = 256  # keys at once
Part = tuple[Tensor, Tensor]  # the output (B,H,T,W) of a part of the keys, and its log-sum-exp L (B,H,T,1)


def online_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
    """Return the same as `reference_attention`; 0 for a query without a visible key. The mask is boolean, or "causal".

    Dropout keeps a mask of one byte for each weight until the backward pass.
    """
    return attention_part(queries, keys, values, mask, dropout)[0]


def attention_part(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float = 0.0, *, block: int = BLOCK
) -> Part:
    """Return attention to these keys alone, by an online softmax over blocks of keys, and its log-sum-exp.

    The log-sum-exp of a query without a visible key is so low that `merge` gives this part no weight.
    """
    if isinstance(mask, str):
        mask = causal(queries.size(2), keys.size(2), keys.device)
    output: Any = _OnlineSoftmax.apply(queries, keys, values, mask, dropout, block)
    return output


def merge(one: Part, other: Part) -> Part:
    """Return attention to the keys of both parts, which have the same queries."""
    lse = torch.logaddexp(one[1], other[1])
    return (one[1] - lse).exp() * one[0] + (other[1] - lse).exp() * other[0], lse


class _OnlineSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, dropout: float, block: int
    ) -> Part:
        lowest = torch.finfo(queries.dtype).min
        m = queries.new_full((*queries.shape[:3], 1), lowest)
        l, o = torch.zeros_like(m), queries.new_zeros(*queries.shape[:3], values.size(-1))  # noqa: E741
        ctx.kept = []
        for part, is_visible in _blocks(mask, keys.size(2), block):
            scores = torch.where(is_visible, _scores(queries, keys[:, :, part]), lowest)
            highest = torch.maximum(m, scores.amax(dim=-1, keepdim=True))
            weights, shrink = (scores - highest).exp() * is_visible, (m - highest).exp()
            l = shrink * l + weights.sum(dim=-1, keepdim=True)  # noqa: E741
            if dropout:
                ctx.kept.append(keep_mask(weights.shape, dropout).to(weights.device))
                weights = weights * ctx.kept[-1] / (1 - dropout)
            o = shrink * o + weights @ values[:, :, part]
            m = highest
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
        mean = (grad_output * output).sum(dim=-1, keepdim=True) - grad_lse  # of the weights' gradients
        for i, (part, is_visible) in enumerate(_blocks(mask, keys.size(2), ctx.block)):
            scores = _scores(queries, keys[:, :, part])
            weights = torch.where(is_visible, scores - lse, -math.inf).exp()
            grad_weights = grad_output @ values[:, :, part].mT
            scale = ctx.kept[i] / (1 - ctx.dropout) if ctx.dropout else 1.0
            grad_scores = weights * (grad_weights * scale - mean) / math.sqrt(queries.size(-1))
            grad_values[:, :, part] = (weights * scale).mT @ grad_output
            grad_keys[:, :, part] = grad_scores.mT @ queries
            grad_queries += grad_scores @ keys[:, :, part]
        return grad_queries, grad_keys, grad_values, None, None, None


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    return (queries / math.sqrt(queries.size(-1))) @ keys.mT


def _blocks(mask: Tensor, n_keys: int, block: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield each block of keys, as a slice, and its columns of the mask."""
    mask = mask.expand(*mask.shape[:-1], n_keys)
    for start in range(0, n_keys, block):
        part = slice(start, start + block)
        yield part, mask[..., part]
