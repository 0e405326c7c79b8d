"""ViT, the Vision Transformer (Dosovitskiy et al. 2020, section 3.1).

What changed since 2017: the tokens are pieces of an image, and there is no decoder. A linear map E turns each square
patch into a vector, P are learned positions, and LN is layer norm:

    z = [x_class; patch_1 E; patch_2 E; ...] + P     eq. 1; x_class is learned
    z = z + Attention(LN(z))                         eq. 2: pre-norm
    z = z + W_2 gelu(W_1 LN(z))                      eq. 3: the exact GELU instead of ReLU
    log p(class) ~ LN(z_0) W^T + b                   eq. 4, and the linear head

In shape comments C counts channels and P the patches and the learned vectors before them: one of them in ViT.
The other letters are as in `model/transformer.py`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.images.configs import ClipConfig, ViTConfig
from transduce.family.images.image_model import ImageModel
from transduce.family.images.image_sizes import check_size, resized_positions
from transduce.family.initialisation import initialise
from transduce.family.layers import layer_around
from transduce.model.attention import Attention, fast_attention
from transduce.model.dropout import Dropout
from transduce.model.transformer import EncoderLayer, FeedForward


def vit_layer(config: ViTConfig | ClipConfig, activation: Callable[[Tensor], Tensor] = F.gelu) -> EncoderLayer:
    """Return a layer of eq. 2 and 3."""
    network = FeedForward(config.d_model, config.d_ff or 4 * config.d_model, activation)
    return layer_around(network, config.d_model, config.n_heads, dropout=config.dropout, norm_eps=config.norm_eps)


class PatchEncoder(ImageModel):
    """The encoder of patches, without a head.

    layer: function that makes a layer. n_starts: number of learned vectors before the patches; x_class is the first.
    """

    def __init__(
        self, config: ViTConfig, layer: Callable[[ViTConfig], EncoderLayer] = vit_layer, *, n_starts: int = 1
    ) -> None:
        super().__init__()
        d_model = config.d_model
        # A convolution whose stride is its width is the same linear map for each patch.
        self.patches = nn.Conv2d(config.n_channels, d_model, config.patch_size, stride=config.patch_size)
        n_patches = (config.image_size // config.patch_size) ** 2
        self.starts = nn.ParameterList(torch.empty(1, 1, d_model) for _ in range(n_starts))
        self.positions = nn.Parameter(torch.empty(1, n_starts + n_patches, d_model))
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(d_model, config.norm_eps)
        self.config, self.n_channels = config, config.n_channels

    def initialise(self) -> None:
        """Draw the first values of all parameters."""
        for tensor in *self.starts, self.positions, self.patches.weight:
            nn.init.normal_(tensor, std=0.02)
        initialise(self.named_parameters())

    def tokens(self, images: Tensor) -> Tensor:
        """Return the input (B,P,D) of the first layer."""
        check_size(images, self.config.patch_size, "patch_size")
        patches = self.patches(images)  # (B,D,rows,columns)
        starts = [start.expand(len(images), -1, -1) for start in self.starts]
        x = torch.cat([*starts, patches.flatten(2).mT], dim=1)
        return self.dropout(x + resized_positions(self.positions, len(starts), *patches.shape[2:]))

    def states(self, images: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the states (B,P,D) of `images` (B,C,height,width), the learned vectors first, then row by row.

        Images of a size other than `image_size` get interpolated positions. Raises UserError if a height or a width is
        no multiple of `patch_size`.
        """
        x = self.tokens(images)
        mask = torch.ones(1, 1, 1, x.size(1), dtype=torch.bool, device=x.device)
        for layer in self.layers:
            x = layer(x, mask, attention)
        return self.norm(x)

    def pooled(self, images: Tensor) -> Tensor:
        """Return the state (B,D) of x_class."""
        return self.states(images)[:, 0]

    def least_rows(self, height: int, width: int) -> tuple[int, int]:
        """Return the number of patches, and their width in a layer."""
        return max(height * width // self.config.patch_size**2, 1), self.config.d_model


class ViT(PatchEncoder):
    """A classifier of images. labels: names of the classes."""

    def __init__(self, config: ViTConfig, labels: Sequence[str]) -> None:
        super().__init__(config)
        self.output, self.labels = nn.Linear(config.d_model, len(labels)), tuple(labels)
        self.initialise()
