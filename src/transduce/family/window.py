"""Restricted attention without an n x n matrix: blocks of queries attend to their blocks of keys.

The paper names it for long texts (Vaswani et al. 2017, section 4). It is the local attention of Longformer (Beltagy et
al. 2020, section 3.1). Time and memory grow with n reach instead of n^2. In shape comments N counts blocks of b
positions, and R = reach + b + reach, or reach + b under the causal mask.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.family.attention_patterns import check_at_least, restricted, union, with_pattern
from transduce.model.attention import Attention, Mask, fast_attention

LEAST = 16  # positions in a block, if the reach is smaller: smaller products are slow


def with_window(reach: int, attention: Attention = fast_attention, *, n_first: int = 0) -> Attention:
    """Attend to positions at a distance of at most `reach`, and to the first `n_first` ones.

    The mask is "causal", or says what is padding, (B,1,1,S). Under another mask, and in a step after a cache, the
    result is computed by `with_pattern`, and so is its definition. Raises ValueError for a negative size.
    """
    check_at_least(0, reach=reach, n_first=n_first)
    dense = with_pattern(union(restricted(reach), lambda _, keys: keys < n_first), attention)

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        is_of_keys = isinstance(mask, str) or (mask.size(-2) == 1 and mask.dtype == torch.bool)
        if queries.size(2) < keys.size(2) or not is_of_keys:
            return dense(queries, keys, values, mask, dropout)
        parts = _blocks(queries, keys, values, mask, reach, n_first)
        q, k, v, is_visible = (part.flatten(0, 2)[:, None] for part in parts)
        output = attention(q, k, v, is_visible, dropout)
        return output.view(*parts[0].shape[:4], -1).flatten(2, 3)[:, :, : queries.size(2)]

    return attend


def _blocks(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, reach: int, n_first: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries (B,H,N,b,K), and for each block keys (B,H,N,R,K), values (B,H,N,R,W) and the mask (B,H,N,b,R).

    With n_first, the first keys come after the R others of each block, which then do not have them.
    """
    n, block = queries.size(2), max(reach, LEAST)
    is_causal = isinstance(mask, str)
    ahead = 0 if is_causal else reach
    missing = -n % block

    def nearby(x: Tensor) -> Tensor:
        """(B,H,n,K) -> (B,H,N,R,K)."""
        return F.pad(x, (0, 0, reach, missing + ahead)).unfold(2, reach + block + ahead, block).mT

    shape = (*keys.shape[:3], 1)
    is_real = torch.ones(shape, dtype=torch.bool, device=keys.device) if is_causal else mask.mT.expand(shape)
    is_later = torch.arange(n, device=keys.device)[:, None] >= n_first
    start = torch.arange(block, device=keys.device)[:, None]  # of the queries in a block; its keys begin at -reach
    distance = start - torch.arange(-reach, block + ahead, device=keys.device)
    is_near = (distance <= reach) & (distance >= -ahead)  # (b,R)
    is_visible = nearby(is_real & is_later).mT & is_near
    queries = F.pad(queries, (0, 0, 0, missing)).unflatten(2, (-1, block))
    if not n_first:
        return queries, nearby(keys), nearby(values), is_visible

    def with_first(x: Tensor) -> Tensor:
        """(B,H,n,K) -> (B,H,N,R+n_first,K)."""
        copies = x[:, :, None, :n_first].expand(-1, -1, queries.size(2), -1, -1)
        return torch.cat([nearby(x), copies], dim=3)

    position = torch.arange(n + missing, device=keys.device).view(-1, block, 1)
    is_earlier = (torch.arange(n_first, device=keys.device)[:n] <= position) | (not is_causal)  # (N,b,n_first)
    first = is_real[:, :, None, :n_first].mT & is_earlier
    return queries, with_first(keys), with_first(values), torch.cat([is_visible, first], dim=4)
