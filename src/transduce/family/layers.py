"""The layer that most encoders share: the layer of 2017 with GELU, and with the norm first or last."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.attention import MultiHeadAttention
from transduce.model.transformer import EncoderLayer, FeedForward, Residual


def gelu_layer(
    d_model: int,
    n_heads: int,
    d_ff: int | None,
    activation: Callable[[Tensor], Tensor] = F.gelu,
    *,
    dropout: float,
    norm_eps: float,
    post: bool = False,
) -> EncoderLayer:
    """Return a layer. d_ff: inner width; None: 4 * d_model. post: the norm after each residual, as in 2017.

    activation: the exact GELU, or a function in its place. dropout: of the attention weights and the residuals.
    """
    residuals = [Residual(nn.LayerNorm(d_model, norm_eps), dropout, post=post) for _ in range(2)]
    feed_forward = FeedForward(d_model, d_ff or 4 * d_model, activation)
    return EncoderLayer(MultiHeadAttention(d_model, n_heads, dropout=dropout), feed_forward, residuals)
