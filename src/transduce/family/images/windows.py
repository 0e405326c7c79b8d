"""Attention in shifted windows of a grid (Liu et al. 2021, section 3.2): a function around attention, as in
`attention_wrappers.py`.

A grid of R rows and C columns has R C positions, row by row. Windows of M x M divide it after it was rolled by a shift.
Rolled positions meet in a window without being neighbours: `same_region` is the mask that separates them.
"""

import torch
from torch import Tensor, nn

from transduce.model.attention import Attention, Mask


def with_windows(grid: tuple[int, int], width: int, shift: int, attention: Attention) -> Attention:
    """Attend only within windows. The mask is (N,1,MM,MM) for the N windows of a picture."""

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        assert not isinstance(mask, str)
        n_images = len(queries)
        queries, keys, values = (windows(rolled(x, grid, -shift), grid, width) for x in (queries, keys, values))
        result = attention(queries, keys, values, mask.repeat(n_images, 1, 1, 1), dropout)
        return rolled(joined(result, grid, width), grid, shift)

    return attend


def rolled(x: Tensor, grid: tuple[int, int], shift: int) -> Tensor:
    """Return x (B,H,RC,K) with all positions moved by `shift` rows and columns; the last ones come first."""
    return x.unflatten(2, grid).roll((shift, shift), dims=(2, 3)).flatten(2, 3)


def windows(x: Tensor, grid: tuple[int, int], width: int) -> Tensor:
    """(B,H,RC,K) -> (BN,H,MM,K)."""
    x = x.unflatten(2, (grid[0] // width, width, grid[1] // width, width))
    return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(0, 2)


def joined(x: Tensor, grid: tuple[int, int], width: int) -> Tensor:
    """(BN,H,MM,K) -> (B,H,RC,K), the inverse of `windows`."""
    x = x.unflatten(0, (-1, grid[0] // width, grid[1] // width)).unflatten(4, (width, width))
    return x.permute(0, 3, 1, 4, 2, 5, 6).flatten(2, 5)


def same_region(grid: tuple[int, int], width: int, shift: int, device: torch.device) -> Tensor:
    """Return the mask (N,1,MM,MM) of the pairs in a window that were neighbours before the roll (figure 4)."""
    came_around = [torch.arange(side, device=device) >= side - shift for side in grid]
    regions = 2 * came_around[0][:, None].int() + came_around[1]
    regions = windows(regions.view(1, 1, -1, 1), grid, width)  # (N,1,MM,1)
    return regions == regions.mT


class WindowBias(nn.Module):
    """A learned number for each head and each distance, in rows and columns, of two positions in a window (eq. 4)."""

    def __init__(self, n_heads: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding((2 * width - 1) ** 2, n_heads)
        self.width = width

    def forward(self) -> Tensor:
        """Return the bias (H,MM,MM)."""
        side = torch.arange(self.width, device=self.table.weight.device)
        away = side[:, None] - side + self.width - 1  # (M,M), from 0
        places = (2 * self.width - 1) * away[:, None, :, None] + away[None, :, None]  # (M,M,M,M)
        return self.table(places.flatten(2).flatten(0, 1)).permute(2, 0, 1)
