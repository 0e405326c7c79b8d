"""Attention along the rows of a table, of AlphaFold 2 (Jumper et al. 2021, supplement 1.6.1 and 1.6.6).

It is the paper's of 2017 with a bias and a gate: the rows of a table are the batch. There is no padding. The letters B,
T, H, K in shape comments are as in `model/transformer.py`.
"""

import torch
from torch import Tensor, nn

from transduce.family.attention_wrappers import with_bias
from transduce.model.attention import MultiHeadAttention


class GatedAttention(MultiHeadAttention):
    """Self-attention of each row of a table, whose heads are multiplied by sigmoid(W_g x + b)."""

    def __init__(self, d_model: int, n_heads: int, d_k: int) -> None:
        super().__init__(d_model, n_heads, d_k=d_k, d_v=d_k, bias=False)
        self.w_o = nn.Linear(n_heads * d_k, d_model)
        self.w_g = nn.Linear(d_model, n_heads * d_k)

    def of_rows(self, x: Tensor, bias: Tensor) -> Tensor:
        """Return (B,T,D) for x (B,T,D), with a bias broadcastable to (B,H,T,T) of all scores."""
        gates = self._split(self.w_g(x).sigmoid(), self.n_heads)
        attention = with_bias(bias)
        everything = torch.ones(1, 1, dtype=torch.bool, device=x.device)
        return self.attend(*self.projections(x), everything, lambda *parts: gates * attention(*parts))


class RowAttention(nn.Module):
    """Attention along each row of m, with a bias from pairs (algorithm 7), or of z from itself (13)."""

    def __init__(self, d_row: int, d_pair: int, n_heads: int, d_k: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_row)
        self.bias = nn.Linear(d_pair, n_heads, bias=False)
        self.attention = GatedAttention(d_row, n_heads, d_k)

    def forward(self, x: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Return (B,r,D) for x (B,r,D). pairs (r,r,Z): they already have their norm; None: x, with its norm."""
        x = self.norm(x)
        return self.attention.of_rows(x, self.bias(x if pairs is None else pairs).permute(2, 0, 1))
