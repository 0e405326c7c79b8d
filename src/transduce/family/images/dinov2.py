"""The encoder of DINOv2 (Oquab et al. 2023, table 2), a ViT whose vectors serve tasks that it was not trained for.

What changed since ViT: LayerScale (Touvron et al. 2021, "Going deeper with image Transformers", eq. 1) multiplies what
a part adds by learned numbers, one for each value, which start small. The largest size has the gated network. With the
product * of each pair of values:

    z = z + scale_1 * Attention(LN(z))
    z = z + scale_2 * W_2 gelu(W_1 LN(z))           gated: W_2 (silu(W_1 LN(z)) * W_3 LN(z))
    log p(class) ~ [LN(z_0); mean of LN(z_patches)] W^T + b

Its training, by a student and a teacher that see different pieces of an image, is not here.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.feed_forward import GatedFeedForward
from transduce.family.images.configs import ViTConfig
from transduce.family.images.vit import PatchEncoder
from transduce.model.attention import MultiHeadAttention
from transduce.model.transformer import EncoderLayer, FeedForward, Residual


class ScaledResidual(Residual):
    """The residual connection x + scale * dropout(f(norm(x))). start: first value of each number of `scale`."""

    def __init__(self, d_model: int, norm_eps: float, dropout: float, start: float) -> None:
        super().__init__(nn.LayerNorm(d_model, norm_eps), dropout, post=False)
        self.scale = nn.Parameter(torch.full((d_model,), start))

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B,T,D) -> (B,T,D). `sublayer` keeps the shape."""
        return super().forward(x, lambda y: self.scale * sublayer(y))


def scaled_layer(config: ViTConfig, *, gated: bool, start: float) -> EncoderLayer:
    """Return a layer. gated: see `DinoV2`. start: see `ScaledResidual`."""
    d_model = config.d_model
    d_ff = config.d_ff or 4 * d_model
    residuals = [ScaledResidual(d_model, config.norm_eps, config.dropout, start) for _ in range(2)]
    attention = MultiHeadAttention(d_model, config.n_heads, dropout=config.dropout)
    if not gated:
        return EncoderLayer(attention, FeedForward(d_model, d_ff, F.gelu), residuals)
    width = -(-(2 * d_ff // 3) // 8) * 8  # three matrices are as large as two of width d_ff
    return EncoderLayer(attention, GatedFeedForward(d_model, width, F.silu, bias=True), residuals)


class DinoV2(PatchEncoder):
    """The encoder, and a linear head if there are classes.

    labels: names of the classes; () leaves the head out. gated: the network of the largest size, with as many values
    as one of width `d_ff`. start: first value of LayerScale.
    """

    def __init__(
        self, config: ViTConfig, labels: Sequence[str] = (), *, gated: bool = False, start: float = 1e-5
    ) -> None:
        super().__init__(config, partial(scaled_layer, gated=gated, start=start))
        self.output = nn.Linear(2 * config.d_model, len(labels)) if labels else nn.Identity()
        self.labels, self.gated = tuple(labels), gated
        self.initialise()

    def pooled(self, images: Tensor) -> Tensor:
        """Return the state of x_class and the mean state of the patches, (B,2D)."""
        states = self.states(images)
        return torch.cat([states[:, 0], states[:, 1:].mean(dim=1)], dim=1)
