"""BigBird's pattern (Zaheer et al. 2020, section 2), in blocks of positions (appendix D).

A block of queries sees the first and the last block, its own and the two next to it, and some random ones. The first
and the last block see all. A path between any two positions is then at most two layers long.

The pattern is for an encoder. It is a mask, so a text takes the time of full attention.
"""

from functools import cache

import torch
from torch import Tensor

from transduce.family.attention_patterns import Pattern, check_at_least


def big_bird(size: int, n_random: int, n_heads: int, *, seed: int = 0) -> Pattern:
    """Return the pattern for blocks of `size` positions, with random blocks that differ between heads.

    The same seed and the same number of blocks in a text give the same pattern. Raises ValueError for impossible sizes.
    """
    check_at_least(1, size=size, n_heads=n_heads)
    check_at_least(0, n_random=n_random)
    blocks = cache(lambda n_blocks: big_bird_blocks(n_blocks, n_random, n_heads, seed))

    def is_visible(queries: Tensor, keys: Tensor) -> Tensor:
        n_blocks = keys.size(-1) // size + (keys.size(-1) % size > 0)
        return of_blocks(blocks(n_blocks).to(keys.device), size)(queries, keys)

    return is_visible


def of_blocks(blocks: Tensor, size: int) -> Pattern:
    """Return the pattern of visible blocks of `size` positions. blocks: (H,N,N), True where a block sees another."""
    return lambda queries, keys: blocks[..., queries // size, keys // size]


def big_bird_blocks(n_blocks: int, n_random: int, n_heads: int, seed: int) -> Tensor:
    """Return which blocks see which, (H,N,N). In a short text, all blocks may see all."""
    block = torch.arange(n_blocks)
    at_edge = (block == 0) | (block == n_blocks - 1)
    is_visible = at_edge | at_edge[:, None] | ((block - block[:, None]).abs() <= 1)  # (N,N)
    draw = torch.rand(n_heads, n_blocks, n_blocks, generator=torch.Generator().manual_seed(seed))
    random = draw.masked_fill(is_visible, -1).topk(min(n_random, n_blocks)).indices  # if too few are left, visible ones
    return is_visible.expand_as(draw).scatter(-1, random, True)
