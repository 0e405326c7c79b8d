"""What a classifier of images has: a vector of an image, and logits of that vector."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn


class ImageModel(nn.Module, ABC):
    """A classifier of images.

    labels: names of the classes. n_channels: C of an image. output: layer that makes logits of `pooled`.
    """

    labels: Sequence[str]
    n_channels: int
    output: nn.Module

    @abstractmethod
    def pooled(self, images: Tensor) -> Tensor:
        """Return what `output` makes logits of, (B,...,D), for `images` (B,C,height,width)."""
        ...

    @abstractmethod
    def least_rows(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows that an image of this size gives to the smallest matrix product, and their width."""
        ...

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B,V) of the classes, V of them, for `images` (B,C,height,width)."""
        return self.output(self.pooled(images))
