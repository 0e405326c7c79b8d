"""Synthesizer (Tay et al. 2020, section 3): attention whose scores are no products of queries and keys.

    dense               scores of position i: W_2 relu(W_1 x_i) + b, a number for each position           3.1
    random              row i of a learned matrix R, the same for every text                              3.2
    factorised dense    number u + v n_a is the product of number u of n_a and number v of n_b, as above  3.3
    factorised random   R = R_1 R_2^T, of rank k                                                          3.4

Each head has its own. Scores depend on the number of a position, so a text has a maximum length P.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transduce.family.attention_configs import SynthesizerConfig
from transduce.family.attention_wrappers import explicit
from transduce.family.gpt2 import GPT2
from transduce.family.initialisation import initialise
from transduce.model.attention import Attention, Mask, MultiHeadAttention, reference_attention
from transduce.model.transformer import KeysValues


class Dense(nn.Module):
    """Scores from what a head reads of its own position, W_1 x."""

    def __init__(self, n_heads: int, d_k: int, n_scores: int) -> None:
        super().__init__()
        self.w_2 = nn.Parameter(0.02 * torch.randn(n_heads, d_k, n_scores))
        self.bias = nn.Parameter(torch.zeros(n_heads, 1, n_scores))

    def forward(self, queries: Tensor, positions: Tensor) -> Tensor:
        """Return the scores (N,H,T,P) of queries (N,H,T,K) at `positions` (N,T) or (1,T)."""
        return queries.relu() @ self.w_2 + self.bias


class FactorisedDense(nn.Module):
    """Scores that are products of two short lists of numbers."""

    def __init__(self, n_heads: int, d_k: int, n_positions: int) -> None:
        super().__init__()
        n_a = math.isqrt(n_positions - 1) + 1
        self.a = Dense(n_heads, d_k, n_a)
        self.b = Dense(n_heads, d_k, -(-n_positions // n_a))

    def forward(self, queries: Tensor, positions: Tensor) -> Tensor:
        a, b = self.a(queries, positions), self.b(queries, positions)
        return (b[..., :, None] * a[..., None, :]).flatten(-2)


class Random(nn.Module):
    """Scores that depend on nothing but the two positions. rank: None: of a whole matrix."""

    def __init__(self, n_heads: int, n_positions: int, rank: int | None = None) -> None:
        super().__init__()
        self.rows = nn.Parameter(0.1 * torch.randn(n_heads, n_positions, rank or n_positions))
        self.columns = None if rank is None else nn.Parameter(0.1 * torch.randn(n_heads, n_positions, rank))

    def forward(self, queries: Tensor, positions: Tensor) -> Tensor:
        rows = self.rows[:, positions].transpose(0, 1)  # (N,H,T,P) or (N,H,T,k)
        return rows if self.columns is None else rows @ self.columns.mT


class SyntheticAttention(MultiHeadAttention):
    """Causal attention without keys. scores: one of the modules above; a random one needs no queries either."""

    def __init__(self, d_model: int, n_heads: int, scores: nn.Module, dropout: float) -> None:
        super().__init__(d_model, n_heads, dropout=dropout)
        del self.w_k
        if isinstance(scores, Random):
            self.w_q = nn.Identity()
        self.scores = scores

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Return keys of width 0, and the values (B,H,S,W) of `memory` (B,S,D)."""
        values = self._split(self.w_v(memory), self.n_heads)
        return values[..., :0], values

    def forward(
        self, x: Tensor, keys_values: Sequence[Tensor], mask: Mask, attention: Attention = reference_attention
    ) -> Tensor:
        """Attend from `x` (N,T,D), the last T of S positions. attention: adds a mask of scores to products of width 0.

        The last row of the mask says which positions are real: those before them are padding.
        """
        queries, n_new = self._split(self.w_q(x), self.n_heads), x.size(1)
        is_visible = explicit(mask, n_new, n_new, x.device)
        positions = (is_visible[..., -1, :].cumsum(-1) - 1).clamp(min=0).view(-1, is_visible.size(-1))  # (N,S) or (1,S)
        shape = *queries.shape[:3], -1
        scores = self.scores(queries, positions[:, -n_new:]).expand(shape)  # (N,H,T,P)
        scores = scores.gather(-1, positions[:, None, None].expand(shape))  # (N,H,T,S)
        scores = torch.where(is_visible, scores, torch.finfo(scores.dtype).min)
        keys, values = keys_values
        heads = attention(queries[..., :0], keys, values, scores, self.dropout if self.training else 0.0)
        return self.w_o(heads.transpose(1, 2).flatten(2))


class SynthesizerGPT2(GPT2):
    """GPT-2 with this attention."""

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config.gpt2)
        n_heads = config.n_heads
        d_k = config.d_model // config.n_heads
        n_positions = config.max_positions
        scores = {
            "dense": lambda: Dense(n_heads, d_k, n_positions),
            "random": lambda: Random(n_heads, n_positions),
            "factorised_dense": lambda: FactorisedDense(n_heads, d_k, n_positions),
            "factorised_random": lambda: Random(n_heads, n_positions, config.rank),
        }[config.scores]
        for layer in self.layers:
            layer.self_attention = SyntheticAttention(config.d_model, n_heads, scores(), config.dropout)
        self.attention = reference_attention  # the fused kernel has no products of width 0
        initialise(self.named_parameters(), n_residuals=2 * config.n_layers)
