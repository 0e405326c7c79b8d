"""Sparse attention: each position attends to a part of the others, and the pattern says to which.

    restricted        |i - j| <= reach                                         Vaswani et al. 2017, section 4
    strided           i - j < stride  or  (i - j) mod stride = 0               Child et al. 2019, section 4.3
    fixed             floor(i / l) = floor(j / l)  or  j mod l >= l - c        Child et al. 2019, section 4.3
    global            j < count  or  i < count                                 Beltagy et al. 2020, section 3.1

for a query at i and a key at j. Impossible sizes raise ValueError. `with_pattern` makes an attention function of a
pattern by a mask. This is the definition: the time of a whole text grows with n^2. `window.py` has a form that saves
time.

Letters as in `model/transformer.py`; S counts the positions so far, of which the last T are new.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from transduce.family.attention_wrappers import explicit
from transduce.model.attention import Attention, Mask, fast_attention

# (positions of queries (T,1), positions of keys (1,S)) -> True where a query sees a key, (T,S) or (H,T,S)
Pattern = Callable[[Tensor, Tensor], Tensor]


def with_pattern(pattern: Pattern, attention: Attention = fast_attention) -> Attention:
    """Attend to those keys that the mask and `pattern` allow, both.

    The first column of the mask is position 0. After a cache, keys that no new position sees are left out, so that the
    time of a step grows with the number of visible keys.
    """

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        n_queries, n_keys = queries.size(2), keys.size(2)
        positions = torch.arange(n_keys, device=keys.device)
        is_visible = pattern(positions[n_keys - n_queries :, None], positions[None])
        mask = both(mask, is_visible)
        if n_queries < n_keys:
            is_needed = is_visible.flatten(0, -2).any(dim=0)
            keys = keys[:, :, is_needed]
            values = values[:, :, is_needed]
            mask = mask[..., is_needed]
        return attention(queries, keys, values, mask, dropout)

    return attend


def both(mask: Mask, is_visible: Tensor) -> Tensor:
    """Return the mask which shows what `mask` and `is_visible` (..., T,S) show, both.

    A floating mask, which is added to the scores, keeps its values there.
    """
    mask = explicit(mask, is_visible.size(-2), is_visible.size(-1), is_visible.device)
    if mask.is_floating_point():
        return torch.where(is_visible, mask, torch.finfo(mask.dtype).min)
    return mask & is_visible


def check_at_least(least: int, **sizes: int) -> None:
    """Raise ValueError for a size below `least`. sizes: by the names of the arguments."""
    for name, size in sizes.items():
        if size < least:
            raise ValueError(f"{name}={size}: expected an integer of at least {least}")


def restricted(reach: int) -> Pattern:
    """Return the pattern of all distances up to `reach`: a window of 2 reach + 1, or reach + 1 under a causal mask."""
    check_at_least(0, reach=reach)
    return lambda queries, keys: (queries - keys).abs() <= reach


def strided(stride: int) -> Pattern:
    """Return the pattern of the last `stride` positions, and of every `stride`-th one before them.

    For a causal mask. It is both sets of the paper in each head (section 5.1, the merged head).
    """
    check_at_least(1, stride=stride)
    return lambda queries, keys: (queries - keys < stride) | ((queries - keys) % stride == 0)


def fixed(size: int, n_summaries: int) -> Pattern:
    """Return the pattern of the query's own block of `size`, and of the last `n_summaries` positions of all blocks.

    For a causal mask, in texts without padding at the beginning.
    """
    check_at_least(1, size=size)
    check_at_least(0, n_summaries=n_summaries)
    if n_summaries > size:
        raise ValueError(f"n_summaries={n_summaries}: expected at most the size of a block, {size}")
    return lambda queries, keys: (queries // size == keys // size) | (keys % size >= size - n_summaries)


def first(count: int) -> Pattern:
    """Return the pattern in which all see the first `count` positions, and these see all."""
    check_at_least(0, count=count)
    return lambda queries, keys: (queries < count) | (keys < count)


def union(*patterns: Pattern) -> Pattern:
    """Return the pattern which shows what one of `patterns` shows."""

    def is_visible(queries: Tensor, keys: Tensor) -> Tensor:
        visible = patterns[0](queries, keys)
        for pattern in patterns[1:]:
            visible = visible | pattern(queries, keys)
        return visible

    return is_visible
