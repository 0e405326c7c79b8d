"""The Evoformer block of AlphaFold 2 (Jumper et al. 2021, supplement 1.6): attention in tables of two dimensions.

m (s,r,M) describes s related sequences at r positions, and z (r,r,Z) pairs of positions. Each part is added to its
input (algorithm 6):

    m + attention along each sequence, with a bias from z      algorithm 7
    m + attention along each position, over the sequences      8
    m + feed-forward network                                   9
    z + mean over the sequences of outer products of m         10
    z + sum over the third corner k of each triangle i, j, k   11: edges that leave i and j; 12: edges that enter
    z + attention to edges that start, or end, in one corner   13, 14: each with a bias from the third edge
    z + feed-forward network                                   15

`row_attention.py` has the attention. There is one protein, and no padding.
"""

import torch
from torch import Tensor, nn

from transduce.family.row_attention import GatedAttention, RowAttention
from transduce.model.transformer import FeedForward


def transition(d_model: int) -> nn.Sequential:
    """Return a norm, and a feed-forward network of four times the width (algorithms 9 and 15)."""
    return nn.Sequential(nn.LayerNorm(d_model), FeedForward(d_model, 4 * d_model))


class OuterProductMean(nn.Module):
    """What the sequences say together about a pair of positions (algorithm 10): (s,r,M) -> (r,r,Z)."""

    def __init__(self, d_row: int, d_pair: int, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_row)
        self.a = nn.Linear(d_row, width)
        self.b = nn.Linear(d_row, width)
        self.output = nn.Linear(width * width, d_pair)

    def forward(self, m: Tensor) -> Tensor:
        m = self.norm(m)
        return self.output(torch.einsum("sia,sjb->ijab", self.a(m), self.b(m)).flatten(2) / len(m))


class TriangleUpdate(nn.Module):
    """Each edge ij learns from the two other edges of its triangles: (r,r,Z) -> (r,r,Z).

    edges: "ik,jk", which leave i and j (algorithm 11), or "ki,kj", which enter them (12).
    """

    def __init__(self, d_pair: int, edges: str, width: int = 128) -> None:
        super().__init__()
        first, second = edges.split(",")
        self.equation = f"{first}c,{second}c->ijc"
        self.norm = nn.LayerNorm(d_pair)
        self.a = nn.Linear(d_pair, width)
        self.b = nn.Linear(d_pair, width)
        self.gate_a = nn.Linear(d_pair, width)
        self.gate_b = nn.Linear(d_pair, width)
        self.inner_norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, d_pair)
        self.gate = nn.Linear(d_pair, d_pair)

    def forward(self, z: Tensor) -> Tensor:
        z = self.norm(z)
        a = self.gate_a(z).sigmoid() * self.a(z)
        b = self.gate_b(z).sigmoid() * self.b(z)
        return self.gate(z).sigmoid() * self.output(self.inner_norm(torch.einsum(self.equation, a, b)))


class EvoformerBlock(nn.Module):
    """One of AlphaFold's 48 blocks, without dropout: (s,r,M) and (r,r,Z) -> the same. d_row, d_pair: M and Z."""

    def __init__(self, d_row: int = 256, d_pair: int = 128, *, d_k: int = 32) -> None:
        super().__init__()
        self.pair_norm = nn.LayerNorm(d_pair)
        self.rows = RowAttention(d_row, d_pair, 8, d_k)
        self.column_norm = nn.LayerNorm(d_row)
        self.columns = GatedAttention(d_row, 8, d_k)
        self.row_transition = transition(d_row)
        self.outer = OuterProductMean(d_row, d_pair)
        self.leaving = TriangleUpdate(d_pair, "ik,jk")
        self.entering = TriangleUpdate(d_pair, "ki,kj")
        self.starting = RowAttention(d_pair, d_pair, 4, d_k)
        self.ending = RowAttention(d_pair, d_pair, 4, d_k)
        self.pair_transition = transition(d_pair)

    def forward(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        m = m + self.rows(m, self.pair_norm(z))
        m = m + self.columns.of_rows(self.column_norm(m).transpose(0, 1), m.new_zeros(1, 1)).transpose(0, 1)
        m = m + self.row_transition(m)
        z = z + self.outer(m)
        for part in (self.leaving, self.entering, self.starting):
            z = z + part(z)
        z = z + self.ending(z.transpose(0, 1)).transpose(0, 1)
        return m, z + self.pair_transition(z)
