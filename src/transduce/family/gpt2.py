"""GPT-2 (Radford et al. 2019, section 2.3), GPT-1 (Radford et al. 2018, section 3.1) and StarCoder (Li et al. 2023).

What changed since 2017: there is no encoder, and the decoder attends only to itself. A token is an input and then the
truth, so the model learns from plain text. With the embedding E, the learned positions P, and LN for layer norm:

    h = E[ids] + P                             eq. 2 of 2018; no factor sqrt(d_model)
    h = h + Attention(LN(h))                   pre-norm, causal; GPT-1: h = LN(h + Attention(h)), as in 2017
    h = h + W_2 gelu(W_1 LN(h))                GELU by tanh instead of ReLU
    log p(next id) ~ LN(h) E^T                 GPT-1: without this norm

In StarCoder all heads of queries share one head of keys and values (Shazeer 2019), for a small cache.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.attention_wrappers import NO_PAST, Past, with_cache, with_shared_heads
from transduce.family.configs import GPT2Config
from transduce.family.initialisation import initialise
from transduce.family.text_model import TextModel
from transduce.model.attention import Attention, MultiHeadAttention, fast_attention
from transduce.model.dropout import Dropout
from transduce.model.transformer import EncoderLayer, FeedForward, KeysValues, Residual


def gelu(x: Tensor) -> Tensor:
    """Return x Phi(x), with the normal distribution Phi approximated by tanh (Hendrycks and Gimpel 2016)."""
    return F.gelu(x, approximate="tanh")


def gpt2_layer(
    config: GPT2Config, activation: Callable[[Tensor], Tensor] = gelu, norm_eps: float = 1e-5, *, post: bool = False
) -> EncoderLayer:
    """Return a layer of the sizes of `config`. post: the norm after each residual, as in GPT-1."""
    d_model = config.d_model
    dropout = config.dropout
    n_kv_heads = 1 if config.multi_query else None
    attention = MultiHeadAttention(d_model, config.n_heads, n_kv_heads=n_kv_heads, dropout=dropout)
    residuals = [Residual(nn.LayerNorm(d_model, norm_eps), dropout, post=post) for _ in range(2)]
    return EncoderLayer(attention, FeedForward(d_model, config.d_ff or 4 * d_model, activation), residuals)


class GPT2(TextModel):
    """The decoder of GPT-2.

    post: True is GPT-1, with the norm after each residual, and none at the end. norm_eps: added to the variances.

    The attribute `attention` is the attention function of all layers. If it has weights, they become a part.
    """

    no_past = NO_PAST

    def __init__(self, config: GPT2Config, *, norm_eps: float = 1e-5, post: bool = False) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model = config.d_model
        self.embedding = nn.Embedding(config.vocab_size, d_model)
        self.positions = nn.Embedding(config.max_positions, d_model)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(gpt2_layer(config, gelu, norm_eps, post=post) for _ in range(config.n_layers))
        self.norm = nn.Identity() if post else nn.LayerNorm(d_model, norm_eps)
        self.output = nn.Linear(d_model, config.vocab_size, bias=False)
        self.output.weight = self.embedding.weight
        self.attention: Attention = fast_attention
        self.config = config
        self.n_positions = config.max_positions
        self.norm_eps = norm_eps
        self.post = post
        initialise(self.named_parameters(), n_residuals=1 if post else 2 * config.n_layers)

    def states(self, ids: Tensor, past: Past = NO_PAST, attention: Attention | None = None) -> tuple[Tensor, Past]:
        """Return what `output` makes logits of, (N,T,D), for new ids (N,T), and the past with them.

        attention: attention function of all layers; None: the attribute `attention`.
        """
        positions, mask = past.places(ids)
        x = self.dropout(self.embedding(ids) + self.positions(positions))
        so_far: list[KeysValues] = []
        attention = attention or self.attention
        if self.config.multi_query:
            attention = with_shared_heads(attention)
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, with_cache(past.of_layer(i), so_far, attention))
        return self.norm(x), Past(so_far, past.padding)
