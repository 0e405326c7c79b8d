"""The towers of CLIP (Radford et al. 2021, section 2.3): a ViT and a small GPT-2, which give vectors of length 1.

They have the layers of ViT and GPT-2 with x sigmoid(1.702 x) for GELU, and the ViT has one norm more, before them. Each
ends in a linear map to the common width E.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.images.configs import ClipConfig
from transduce.family.images.vit import PatchEncoder, vit_layer
from transduce.family.initialisation import initialise


def quick_gelu(x: Tensor) -> Tensor:
    """Return x sigmoid(1.702 x), which approximates GELU (Hendrycks and Gimpel 2016, section 2)."""
    return x * torch.sigmoid(1.702 * x)


class ImageTower(PatchEncoder):
    """The encoder of images, with vectors of length 1."""

    def __init__(self, config: ClipConfig) -> None:
        sizes = config.images
        d_model = sizes.d_model
        super().__init__(sizes, partial(vit_layer, activation=quick_gelu))
        self.patches = nn.Conv2d(sizes.n_channels, d_model, sizes.patch_size, stride=sizes.patch_size, bias=False)
        self.first_norm = nn.LayerNorm(d_model, sizes.norm_eps)
        self.projection = nn.Linear(d_model, config.d_joint, bias=False)
        self.labels = ()
        self.initialise()

    def tokens(self, images: Tensor) -> Tensor:
        """Return the input (B,P,D) of the first layer."""
        return self.first_norm(super().tokens(images))

    def pooled(self, images: Tensor) -> Tensor:
        """Return the vectors (B,E) of images (B,C,height,width)."""
        return F.normalize(self.projection(super().pooled(images)), dim=-1)


class TextTower(nn.Module):
    """The decoder of texts, with vectors of length 1. end: id of the last token of each text."""

    def __init__(self, config: ClipConfig, end: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_positions, config.d_model)
        self.layers = nn.ModuleList(vit_layer(config, quick_gelu) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model, config.norm_eps)
        self.projection = nn.Linear(config.d_model, config.d_joint, bias=False)
        self.end = end
        initialise(self.named_parameters())

    def pooled(self, ids: Tensor) -> Tensor:
        """Return the vectors (B,E) of texts (B,T). Ids after the first `end` do not count.

        The caller checks that each text has an `end`; of a text without it, the vector is of the first token.
        """
        x = self.embedding(ids) + self.positions.weight[: ids.size(1)]
        for layer in self.layers:
            x = layer(x, "causal")
        ends = (ids == self.end).int().argmax(dim=1)
        return F.normalize(self.projection(self.norm(x)[torch.arange(len(ids)), ends]), dim=-1)
