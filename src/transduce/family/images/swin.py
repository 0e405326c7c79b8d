"""Swin, a Transformer of shifted windows (Liu et al. 2021, section 3).

What changed since ViT: a patch sees only those in its window of M x M, so that the time is linear in the number of
patches. Every second layer shifts the windows by M // 2, so that neighbours meet. Four patches become one after each
stage, at twice the width, as in a convolutional network. There are no positions but a learned number for each head and
each distance in two dimensions, and no x_class:

    x = x + Attention(LN(x)) in windows, with softmax(Q K^T / sqrt(d_k) + B[distance]) V     eq. 3 and 4
    x = x + W_2 gelu(W_1 LN(x))
    log p(class) ~ mean of LN(x) W^T + b
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.attention_wrappers import with_bias
from transduce.family.images.configs import SwinConfig
from transduce.family.images.image_model import ImageModel
from transduce.family.images.image_sizes import check_size
from transduce.family.images.windows import WindowBias, same_region, with_windows
from transduce.family.initialisation import initialise
from transduce.family.layers import layer_around
from transduce.model.dropout import Dropout
from transduce.model.transformer import FeedForward


class Merging(nn.Module):
    """Four neighbours become one vector of twice the width (section 3.1): (B,R,C,D) -> (B,R/2,C/2,2D)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * d_model)
        self.linear = nn.Linear(4 * d_model, 2 * d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        neighbours = [x[:, row::2, column::2] for column in range(2) for row in range(2)]
        return self.linear(self.norm(torch.cat(neighbours, dim=-1)))


class Stage(nn.Module):
    """The layers of one width. number: of the stage, from 0. merges: whether a merging follows the layers."""

    def __init__(self, config: SwinConfig, number: int, *, merges: bool) -> None:
        super().__init__()
        d_model, n_heads = config.d_model << number, config.n_heads[number]
        networks = (FeedForward(d_model, config.expansion * d_model, F.gelu) for _ in range(config.depths[number]))
        self.window = config.window
        self.layers = nn.ModuleList(
            layer_around(network, d_model, n_heads, dropout=config.dropout, norm_eps=config.norm_eps)
            for network in networks
        )
        self.biases = nn.ModuleList(WindowBias(n_heads, config.window) for _ in self.layers)
        self.merging = Merging(d_model) if merges else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B,R,C,D) -> (B,R/2,C/2,2D), or the same shape without a merging."""
        grid = rows, columns = x.size(1), x.size(2)
        x = x.flatten(1, 2)
        for i, (layer, bias) in enumerate(zip(self.layers, self.biases, strict=True)):
            shift = self.window // 2 if i % 2 and min(grid) > self.window else 0  # a single window needs no shift
            mask = same_region(grid, self.window, shift, x.device)
            x = layer(x, mask, with_windows(grid, self.window, shift, with_bias(bias())))
        return self.merging(x.unflatten(1, (rows, columns)))


class Swin(ImageModel):
    """A classifier of images. labels: names of the classes."""

    def __init__(self, config: SwinConfig, labels: Sequence[str]) -> None:
        super().__init__()
        n_stages = len(config.depths)
        self.patches = nn.Conv2d(config.n_channels, config.d_model, config.patch_size, stride=config.patch_size)
        self.first_norm, self.dropout = nn.LayerNorm(config.d_model), Dropout(config.dropout)
        self.stages = nn.Sequential(*(Stage(config, i, merges=i < n_stages - 1) for i in range(n_stages)))
        width = config.d_model << (n_stages - 1)
        self.norm, self.output = nn.LayerNorm(width, config.norm_eps), nn.Linear(width, len(labels))
        self.config = config
        self.n_channels = config.n_channels
        self.labels = tuple(labels)
        nn.init.normal_(self.patches.weight, std=0.02)
        initialise(self.named_parameters())

    def states(self, images: Tensor) -> Tensor:
        """Return the states (B,R,C,D) of the last stage. Raises UserError if windows do not fill an image evenly."""
        side = (self.config.patch_size * self.config.window) << (len(self.stages) - 1)
        check_size(images, side, "the last stage's window")
        x = self.first_norm(self.patches(images).permute(0, 2, 3, 1))
        return self.norm(self.stages(self.dropout(x)))

    def pooled(self, images: Tensor) -> Tensor:
        """Return the mean state (B,D)."""
        return self.states(images).mean(dim=(1, 2))

    def least_rows(self, height: int, width: int) -> tuple[int, int]:
        """Return the number of states of the last stage, and the width of the first one."""
        side = self.config.patch_size << (len(self.stages) - 1)
        return max(height * width // side**2, 1), self.config.d_model
