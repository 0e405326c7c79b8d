"""The relative bias of T5 (Raffel et al. 2020, section 2.1): positions as learned numbers, which join the scores.

    score of query i and key j, head h: q_i k_j + table[bucket(j - i), h]

Near distances have a bucket each, and far ones share buckets whose ranges grow. Letters as in `model/transformer.py`; S
counts the positions so far, of which the last T are new.
"""

import math

import torch
from torch import Tensor, nn


class RelativeBias(nn.Module):
    """A learned number for each head and each bucket of the distance from a query to a key.

    is_causal: no key is after its query, so that all buckets are for keys before it. n_buckets: number of buckets, 4 or
    more. Half of them hold one distance each, the others hold ranges that grow, up to `longest`, which is more than
    that half.
    """

    def __init__(self, n_heads: int, *, is_causal: bool, n_buckets: int = 32, longest: int = 128) -> None:
        super().__init__()
        self.table = nn.Embedding(n_buckets, n_heads)
        self.is_causal = is_causal
        self.n_buckets = n_buckets
        self.longest = longest

    def forward(self, n_queries: int, n_keys: int) -> Tensor:
        """Return the bias (H,T,S) of the last T of S positions."""
        keys = torch.arange(n_keys, device=self.table.weight.device)
        return self.table(self.buckets(keys - keys[n_keys - n_queries :, None])).permute(2, 0, 1)

    def buckets(self, distances: Tensor) -> Tensor:
        """Return the bucket of each distance, the position of the key minus the position of the query."""
        n = self.n_buckets if self.is_causal else self.n_buckets // 2  # of one direction
        away = (-distances).clamp(min=0) if self.is_causal else distances.abs()
        exact = n // 2
        steps = torch.log(away.clamp(min=1).float() / exact) / math.log(self.longest / exact) * (n - exact)
        buckets = torch.where(away < exact, away, (exact + steps.long()).clamp(max=n - 1))
        return buckets if self.is_causal else buckets + n * (distances > 0)
