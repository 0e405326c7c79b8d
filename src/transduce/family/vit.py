"""ViT, the Vision Transformer (Dosovitskiy et al. 2020, section 3.1).

What changed since 2017: the tokens are pieces of an image, and there is no decoder. A linear map E turns each square
patch into a vector, P are learned positions, and LN is layer norm:

    z = [x_class; patch_1 E; patch_2 E; ...] + P     eq. 1; x_class is learned
    z = z + Attention(LN(z))                         eq. 2: pre-norm
    z = z + W_2 gelu(W_1 LN(z))                      eq. 3: the exact GELU instead of ReLU
    log p(class) ~ LN(z_0) W^T + b                   eq. 4, and the linear head

In shape comments C counts channels and P = 1 + the number of patches; the other letters are as in
`model/transformer.py`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.configs import ViTConfig
from transduce.family.image_sizes import check_size, resized_positions
from transduce.family.initialisation import initialise
from transduce.model.attention import Attention, MultiHeadAttention, fast_attention
from transduce.model.dropout import Dropout
from transduce.model.transformer import EncoderLayer, FeedForward, Residual


class ViT(nn.Module):
    """A classifier of images.

    labels: names of the classes.
    """

    def __init__(self, config: ViTConfig, labels: Sequence[str]) -> None:
        super().__init__()
        d_model = config.d_model
        norm_eps = config.norm_eps
        dropout = config.dropout

        def layer() -> EncoderLayer:
            residuals = [Residual(nn.LayerNorm(d_model, norm_eps), dropout, post=False) for _ in range(2)]
            feed_forward = FeedForward(d_model, config.d_ff or 4 * d_model, F.gelu)
            return EncoderLayer(MultiHeadAttention(d_model, config.n_heads, dropout=dropout), feed_forward, residuals)

        # A convolution whose stride is its width is the same linear map for each patch.
        self.patches = nn.Conv2d(config.n_channels, d_model, config.patch_size, stride=config.patch_size)
        n_patches = (config.image_size // config.patch_size) ** 2
        self.start = nn.Parameter(torch.empty(1, 1, d_model))  # x_class
        self.positions = nn.Parameter(torch.empty(1, 1 + n_patches, d_model))
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layer() for _ in range(config.n_layers))
        self.norm, self.output = nn.LayerNorm(d_model, norm_eps), nn.Linear(d_model, len(labels))
        self.config, self.labels = config, tuple(labels)
        for tensor in self.start, self.positions, self.patches.weight:
            nn.init.normal_(tensor, std=0.02)
        initialise(self.named_parameters())

    def states(self, images: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the states (B,P,D) of `images` (B,C,height,width), the class first, then row by row.

        Images of a size other than `image_size` get interpolated positions. Raises UserError if a height or a width is
        no multiple of `patch_size`.
        """
        check_size(images, self.config.patch_size)
        patches = self.patches(images)  # (B,D,rows,columns)
        x = torch.cat([self.start.expand(len(images), -1, -1), patches.flatten(2).mT], dim=1)
        x = self.dropout(x + resized_positions(self.positions, *patches.shape[2:]))
        mask = torch.ones(1, 1, 1, x.size(1), dtype=torch.bool, device=x.device)
        for layer in self.layers:
            x = layer(x, mask, attention)
        return self.norm(x)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B,V) of the classes, V of them, for `images` (B,C,height,width)."""
        return self.output(self.states(images)[:, 0])
