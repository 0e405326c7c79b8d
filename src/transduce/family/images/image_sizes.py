"""Images that are larger or smaller than a model learned from (Dosovitskiy et al. 2020, section 3.2).

The patches keep their size, so there are more or fewer of them, and the learned positions are interpolated. Letters as
in `family/images/vit.py`.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.errors import UserError


def check_size(images: Tensor, unit: int, name: str) -> None:
    """Raise UserError if the height or the width of `images` (B,C,height,width) is no multiple of `unit`.

    name: what the unit is, for the message.
    """
    height, width = images.shape[2:]
    if height == 0 or width == 0 or height % unit or width % unit:
        expected = f"expected multiples of {name}={unit}; resize or crop the images"
        raise UserError(f"images of {height} x {width} pixels: {expected}")


def resized_positions(positions: Tensor, n_starts: int, n_rows: int, n_columns: int) -> Tensor:
    """Return the positions (1,P,D) of a grid of patches, interpolated in two dimensions if it is another one.

    positions: learned positions of `n_starts` vectors, such as x_class, and then of a square grid, row by row. The
    vectors keep theirs.
    """
    side = math.isqrt(positions.size(1) - n_starts)
    if (n_rows, n_columns) == (side, side):
        return positions
    grid = positions[:, n_starts:].mT.unflatten(2, (side, side))  # (1,D,side,side)
    grid = F.interpolate(grid, size=(n_rows, n_columns), mode="bicubic", align_corners=False)
    return torch.cat([positions[:, :n_starts], grid.flatten(2).mT], dim=1)
