"""Tensor product attention, and T6 with it (Zhang et al. 2025, section 3): a small cache from factors of each token.

For each token x, the heads of its query, key and value are a sum of R products of two factors, both linear in x:

    Q = A^T B / R         A: (R,H), a number for each head; B: (R,K), a vector that the heads share; (H,K) altogether

The cache has the factors of keys and values: (R_k + R_v)(H + K) numbers of a token instead of 2 H K. The rotation of
RoPE is linear, so it rotates the factor B, and the cache holds rotated factors.

T6 is Llama with this attention. In shape comments R counts the products.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transduce.family.attention_configs import T6Config
from transduce.family.attention_wrappers import NO_PAST, Past, with_cache, with_rotation
from transduce.family.llama import Llama
from transduce.model.attention import Attention, Mask, fast_attention
from transduce.model.transformer import KeysValues


class TensorProductAttention(nn.Module):
    """Self-attention of which keys and values are factors, in place of a layer's `MultiHeadAttention`.

    ranks: R of queries, of keys and of values. d_k: width of a head; None: d_model / n_heads.
    """

    def __init__(
        self, d_model: int, n_heads: int, *, ranks: tuple[int, int, int] = (6, 2, 2), d_k: int | None = None
    ) -> None:
        super().__init__()
        d_k = d_k or d_model // n_heads
        self.n_heads, self.ranks = n_heads, ranks
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, rank * (n_heads + d_k), bias=False) for rank in ranks)
        self.w_o = nn.Linear(n_heads * d_k, d_model, bias=False)
        for matrix in (self.w_q, self.w_k, self.w_v, self.w_o):
            nn.init.xavier_uniform_(matrix.weight)

    def projections(self, x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the queries (B,H,T,K) of `x` (B,T,D), and `keys_values` of it."""
        return products(self._factors(self.w_q, x, 0), self.n_heads), self.keys_values(x)

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Return the factors of the keys and of the values of `memory` (B,S,D), A and B side by side: (B,R,S,H+K)."""
        return self._factors(self.w_k, memory, 1), self._factors(self.w_v, memory, 2)

    def attend(self, queries: Tensor, keys_values: Sequence[Tensor], mask: Mask, attention: Attention) -> Tensor:
        """Attend with `queries` (B,H,T,K) -> (B,T,D). attention: around `with_products`, as it gets factors."""
        heads = attention(queries, keys_values[0], keys_values[1], mask, 0.0)
        return self.w_o(heads.transpose(1, 2).flatten(2))

    def _factors(self, matrix: nn.Linear, x: Tensor, number: int) -> Tensor:
        return matrix(x).unflatten(-1, (self.ranks[number], -1)).transpose(1, 2)  # (B,S,R*(H+K)) -> (B,R,S,H+K)


def products(factors: Tensor, n_heads: int) -> Tensor:
    """Return the mean of the R products A^T B: (B,R,S,H+K) -> (B,H,S,K)."""
    a, b = factors[..., :n_heads], factors[..., n_heads:]
    return torch.einsum("brsh,brsk->bhsk", a, b) / factors.size(1)


def with_products(n_heads: int, attention: Attention = fast_attention) -> Attention:
    """Attend to the products of factors. Inside of `with_cache`, so that the cache holds the factors."""

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        return attention(queries, products(keys, n_heads), products(values, n_heads), mask, dropout)

    return attend


def with_rotation_of_factors(angles: Tensor, n_heads: int, attention: Attention) -> Attention:
    """Rotate queries, and the factor B of the keys, as `with_rotation` rotates keys."""

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        a, b = keys[..., :n_heads], keys[..., n_heads:]

        def with_a(queries: Tensor, b: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
            return attention(queries, torch.cat([a, b], dim=-1), values, mask, dropout)

        return with_rotation(angles, with_a)(queries, b, values, mask, dropout)

    return attend


class T6(Llama):
    """Llama with tensor product attention."""

    def __init__(self, config: T6Config) -> None:
        super().__init__(config.llama)
        ranks = (config.q_rank, config.kv_rank, config.kv_rank)
        for layer in self.layers:
            layer.self_attention = TensorProductAttention(config.d_model, config.n_heads, ranks=ranks)

    def states(self, ids: Tensor, past: Past = NO_PAST, attention: Attention = fast_attention) -> tuple[Tensor, Past]:
        """Return what `output` makes logits of, (N,T,D), for new ids (N,T), and the past with them, as factors."""
        positions, mask = past.places(ids)
        x, angles = self.embedding(ids), self.rope.angles(positions, self.d_k)
        so_far: list[KeysValues] = []
        n_heads = self.config.n_heads
        products_of = with_products(n_heads, attention)
        for i, layer in enumerate(self.layers):
            cache = with_cache(past.of_layer(i), so_far, products_of)
            x = layer(x, mask, with_rotation_of_factors(angles, n_heads, cache))
        return self.norm(x), Past(so_far, past.padding)
