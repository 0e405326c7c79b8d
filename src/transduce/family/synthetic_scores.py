"""The scores of Synthesizer (Tay et al. 2020, section 3), which are no products of queries and keys.

    dense               scores of position i: W_2 relu(W_1 x_i) + b, a number for each position           3.1
    random              row i of a learned matrix R, the same for every text                              3.2
    factorised dense    number u + v n_a is the product of number u of n_a and number v of n_b, as above  3.3
    factorised random   R = R_1 R_2^T, of rank k                                                          3.4

Each head has its own. Scores depend on the number of a position, so a text has a maximum length P.
"""

import math

import torch
from torch import Tensor, nn


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
