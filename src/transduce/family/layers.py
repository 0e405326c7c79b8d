"""The layer that most members share: the encoder layer of 2017 with any network, and with the norm first or last."""

from torch import nn

from transduce.model.attention import MultiHeadAttention
from transduce.model.transformer import EncoderLayer, Residual


def layer_around(
    network: nn.Module, d_model: int, n_heads: int, *, dropout: float, norm_eps: float = 1e-5, post: bool = False
) -> EncoderLayer:
    """Return self-attention and then `network`, which keeps the shape (B,T,D), each within a residual.

    dropout: of the attention weights and the residuals. post: the norm after each residual, as in 2017.
    """
    residuals = [Residual(nn.LayerNorm(d_model, norm_eps), dropout, post=post) for _ in range(2)]
    return EncoderLayer(MultiHeadAttention(d_model, n_heads, dropout=dropout), network, residuals)
