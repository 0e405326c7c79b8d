"""The parts of wav2vec 2.0 that the Transformer of 2017 lacks: a norm of frames, and positions by convolution."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FrameNorm(nn.LayerNorm):
    """Layer norm of the channels of each frame: (B,C,T) -> (B,C,T)."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.mT).mT


class PositionalConvolution(nn.Module):
    """A wide convolution of each frame and its neighbours. Its kernel is `length` times a direction of length 1.

    width: frames that it sees. groups: parts of the channels, each of which sees only itself.
    """

    def __init__(self, d_model: int, width: int, groups: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(d_model, d_model // groups, width))
        nn.init.normal_(self.direction, std=2 * (width * d_model) ** -0.5)
        self.length = nn.Parameter(self.direction.detach().norm(dim=(0, 1), keepdim=True))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,D)."""
        kernel = self.length * self.direction / self.direction.norm(dim=(0, 1), keepdim=True)
        y = F.conv1d(x.mT, kernel, self.bias, padding=kernel.size(2) // 2, groups=self.groups)
        return F.gelu(y[..., : x.size(1)]).mT
