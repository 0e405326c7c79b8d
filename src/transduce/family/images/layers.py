"""The layer that most members of images share: the encoder layer of 2017 with the norm first, and GELU."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.attention import MultiHeadAttention
from transduce.model.transformer import EncoderLayer, FeedForward, Residual


def pre_norm_layer(
    d_model: int,
    n_heads: int,
    d_ff: int | None,
    activation: Callable[[Tensor], Tensor] = F.gelu,
    *,
    dropout: float,
    norm_eps: float,
) -> EncoderLayer:
    """Return a layer. d_ff: inner width; None: 4 * d_model. dropout: of the attention weights and the residuals."""
    residuals = [Residual(nn.LayerNorm(d_model, norm_eps), dropout, post=False) for _ in range(2)]
    feed_forward = FeedForward(d_model, d_ff or 4 * d_model, activation)
    return EncoderLayer(MultiHeadAttention(d_model, n_heads, dropout=dropout), feed_forward, residuals)
