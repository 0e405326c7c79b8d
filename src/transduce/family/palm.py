"""PaLM (Chowdhery et al. 2022, section 2): Llama's positions and network, in layers whose two parts run in parallel.

What changed since GPT-3:

    h = h + Attention(LN(h)) + FFN(LN(h))     one norm, and both parts read the same input ("parallel layers")
    FFN(x) = W_2 (silu(W_1 x) * W_3 x)        SwiGLU
    one head of keys and values               which all heads of queries share
    q_m, k_n turned by m theta_i, n theta_i   RoPE
    no biases                                 in no matrix and no norm; the embedding is the output matrix
"""

from torch import Tensor, nn

from transduce.family.attention_configs import PalmConfig
from transduce.family.llama import Llama
from transduce.model.attention import Attention, Mask, MultiHeadAttention, fast_attention
from transduce.model.transformer import EncoderLayer, Residual


class ParallelLayer(nn.Module):
    """A layer whose attention and feed-forward network read the same input, within one `residual`."""

    def __init__(self, attention: MultiHeadAttention, feed_forward: nn.Module, residual: Residual) -> None:
        super().__init__()
        self.self_attention = attention
        self.feed_forward = feed_forward
        self.residual = residual

    def forward(self, x: Tensor, mask: Mask, attention: Attention = fast_attention) -> Tensor:
        """(B,T,D) with a mask broadcastable to (B,H,T,S) -> (B,T,D)."""
        own = self.self_attention
        return self.residual(x, lambda y: own.attend(*own.projections(y), mask, attention) + self.feed_forward(y))


class PaLM(Llama):
    """The decoder of PaLM. norm_eps: added to the variances."""

    def __init__(self, config: PalmConfig, *, norm_eps: float = 1e-5) -> None:
        super().__init__(config.llama, d_k=config.d_k, norm_eps=norm_eps)

        def norm() -> nn.Module:
            return nn.LayerNorm(config.d_model, norm_eps, bias=False)

        def parallel(layer: EncoderLayer) -> ParallelLayer:
            residual = Residual(norm(), dropout=0.0, post=False)
            return ParallelLayer(layer.self_attention, layer.feed_forward, residual)

        self.layers = nn.ModuleList(parallel(layer) for layer in self.layers)
        self.norm = norm()
