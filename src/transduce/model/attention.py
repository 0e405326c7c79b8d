"""Attention, section 3.2 of the paper: the function of eq. 1, and its multi-head form.

Shape comments use the letters of transformer.py. A mask is True where a position is real and may be attended to;
"causal" is the mask in which each position attends to itself and to the positions before it.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from transduce.model.dropout import dropout as drop

# ---- 3.2.1 Scaled dot-product attention --------------------------------------------------------------------------

Mask = Tensor | Literal["causal"]

# (queries (B,H,T,K), keys (B,H,S,K), values (B,H,S,W), mask broadcastable to (B,H,T,S), dropout) -> (B,H,T,W)
Attention = Callable[[Tensor, Tensor, Tensor, Mask, float], Tensor]


def attention_weights(queries: Tensor, keys: Tensor, mask: Mask) -> Tensor:
    """Return softmax(Q K^T / sqrt(d_k)), the weights of eq. 1: (B,H,T,K), (B,H,S,K) -> (B,H,T,S).

    A boolean mask gives hidden positions the lowest finite score, not -inf: a row without any visible position gets
    finite (and meaningless) weights, never NaN. A floating mask is added to the scores.
    """
    scores = (queries / math.sqrt(queries.size(-1))) @ keys.transpose(-2, -1)  # (B,H,T,S)
    if isinstance(mask, str):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask.is_floating_point():
        return (scores + mask).softmax(dim=-1)
    return torch.where(mask, scores, torch.finfo(scores.dtype).min).softmax(dim=-1)


def reference_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
    """Return Attention(Q, K, V) of eq. 1, computed step by step."""
    weights = attention_weights(queries, keys, mask)
    if dropout:
        weights = drop(weights, dropout)
    return weights @ values


SHORT = 64  # keys up to which a GPU does not use Flash, whose blocks have 128 rows (docs/log/gpu.md)
NOT_FLASH = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
LONG = 256  # keys from which the fused kernel is used on a CPU (benchmarks/attention.py, docs/log)


def fast_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
    """Return the same as `reference_attention`, computed in the faster way for the device and the length.

    Only a row without any visible position differs: it is finite both ways, but not the same. The fused kernel of a CPU
    needs no memory for weights of (T,S). torch has no such kernel with dropout, or where K is not W. On a CPU, dropout
    comes from `model/dropout.py` at every length: the threads that train at the same time share torch's generator.
    """
    if queries.is_cuda or (keys.size(-2) >= LONG and not dropout):
        causal = isinstance(mask, str)
        attn_mask = None if causal else mask
        with sdpa_kernel(NOT_FLASH) if causal and keys.size(-2) <= SHORT else nullcontext():
            return F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=attn_mask, dropout_p=dropout, is_causal=causal
            )
    return reference_attention(queries, keys, values, mask, dropout)


def source_mask(is_real: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask (B,1,1,S) of sources whose tokens are real (B,S), as attention reads it for keys in `dtype`.

    The fused kernel of a GPU adds a mask to the scores, and reads rows at multiples of 16 bytes. It would convert any
    other mask in each layer again.
    """
    if not is_real.is_cuda:
        return is_real[:, None, None, :]
    width = is_real.size(1)
    padded = F.pad(is_real.to(dtype), (0, -width % 8)).log_()  # 0 where a token is real, otherwise -inf
    return padded[:, None, None, :][..., :width]


# ---- 3.2.2 Multi-head attention ----------------------------------------------------------------------------------


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O. d_k and d_v are independent of d_model / n_heads (Table 3, rows B).

    d_k, d_v: width of a head's queries and keys, and of its values; None: d_model // n_heads.
    n_kv_heads: heads of the keys and values; None: n_heads. With fewer, the attention function shares them.
    bias: True if all four projections have a bias. dropout: probability, on the attention weights.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_k: int | None = None,
        d_v: int | None = None,
        n_kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads or n_heads
        d_k = d_k or d_model // n_heads
        d_v = d_v or d_model // n_heads
        self.w_q = nn.Linear(d_model, self.n_heads * d_k, bias=bias)
        self.w_k = nn.Linear(d_model, self.n_kv_heads * d_k, bias=bias)
        self.w_v = nn.Linear(d_model, self.n_kv_heads * d_v, bias=bias)
        self.w_o = nn.Linear(self.n_heads * d_v, d_model, bias=bias)
        self.dropout = dropout

    def projections(self, x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the queries (B,H,T,K) of `x` (B,T,D), and its keys and values: those of self-attention."""
        keys, values, queries = joint_product(x, [self.w_k, self.w_v, self.w_q])
        keys_values = self._split(keys, self.n_kv_heads), self._split(values, self.n_kv_heads)
        return self._split(queries, self.n_heads), keys_values

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys (B,H,S,K) and values (B,H,S,W) of `memory` (B,S,D), with H = n_kv_heads."""
        keys, values = joint_product(memory, [self.w_k, self.w_v])
        return self._split(keys, self.n_kv_heads), self._split(values, self.n_kv_heads)

    def attend(
        self, queries: Tensor, keys_values: Sequence[Tensor], mask: Mask, attention: Attention = fast_attention
    ) -> Tensor:
        """Attend with `queries` (B,H,T,K) where `mask`, broadcastable to (B,H,T,S), is True -> (B,T,D)."""
        keys, values = keys_values
        heads = attention(queries, keys, values, mask, self.dropout if self.training else 0.0)
        return self.w_o(heads.transpose(1, 2).flatten(2))  # (B,H,T,W) -> (B,T,H*W) -> (B,T,D)

    def forward(
        self, x: Tensor, keys_values: Sequence[Tensor], mask: Mask, attention: Attention = fast_attention
    ) -> Tensor:
        """Attend with queries from `x` (B,T,D), as `attend` does -> (B,T,D)."""
        return self.attend(self._split(self.w_q(x), self.n_heads), keys_values, mask, attention)

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B,S,H*K) -> (B,H,S,K)


def joint_product(x: Tensor, layers: Sequence[nn.Linear]) -> Sequence[Tensor]:
    """Return the outputs of several linear layers of `x`. On a GPU they are one product, which reads `x` once."""
    if not x.is_cuda:
        return [layer(x) for layer in layers]
    weight = torch.cat([layer.weight for layer in layers])
    biases = [layer.bias if layer.bias is not None else weight.new_zeros(layer.out_features) for layer in layers]
    outputs = F.linear(x, weight, None if all(layer.bias is None for layer in layers) else torch.cat(biases))
    return outputs.split([layer.out_features for layer in layers], dim=-1)
