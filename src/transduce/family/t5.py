"""T5 (Raffel et al. 2020, section 2.1), and its version 1.1, whose form Flan-T5 has.

What changed since 2017: the encoder-decoder stays. It knows positions only by a learned number for the distance of two
tokens, which is added to their score. With RMS(x) = g x / sqrt(mean of x^2), no biases, and the embedding E:

    h = E[ids]                                    no factor sqrt(d_model), no positions
    h = h + Attention(RMS(h))                     pre-norm; softmax(Q K^T + bias) V, not divided by sqrt(d_k)
    h = h + W_2 relu(W_1 RMS(h))                  1.1: W_2 (gelu(W_1 RMS(h)) * W_3 RMS(h))
    log p(next id) ~ RMS(h) d_model^-0.5 E^T      1.1: RMS(h) W^T, with a separate matrix
"""

from functools import partial

from torch import Tensor, nn

from transduce.family.attention_wrappers import causal, with_bias, without_scale
from transduce.family.configs import SENTINELS, T5Config
from transduce.family.encoder_decoder import EncoderDecoder
from transduce.family.feed_forward import GatedFeedForward
from transduce.family.gpt2 import gelu
from transduce.family.relative_bias import RelativeBias
from transduce.model.attention import Attention, MultiHeadAttention, fast_attention
from transduce.model.dropout import Dropout
from transduce.model.transformer import Cache, DecoderLayer, EncoderLayer, FeedForward, Residual


class T5(EncoderDecoder):
    """The encoder-decoder. Before the target it reads padding, id 0.

    config: gated and tied, True and False, are version 1.1; a head may have another width than d_model / n_heads. The
    last states have dropout too. n_sentinels: number of rows of the embedding after the tokenizer's rows.
    n_decoder_layers: number of layers of the decoder; None: as many as the encoder has. n_buckets, longest: sizes of
    the buckets of distances, see `RelativeBias`. norm_eps: value that is added to the mean squares.
    """

    def __init__(
        self,
        config: T5Config,
        *,
        n_sentinels: int = SENTINELS,
        n_decoder_layers: int | None = None,
        n_buckets: int = 32,
        longest: int = 128,
        norm_eps: float = 1e-6,
    ) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model = config.d_model
        n_heads = config.n_heads
        dropout = config.dropout
        n_rows = config.vocab_size + n_sentinels
        self.config = config
        self.d_k = config.d_k or d_model // n_heads
        self.d_ff = config.d_ff or 4 * d_model
        self.norm_eps = norm_eps
        width = {"d_k": self.d_k, "d_v": self.d_k}
        attention = partial(MultiHeadAttention, d_model, n_heads, **width, bias=False, dropout=dropout)

        def feed_forward() -> nn.Module:
            if config.gated:
                return GatedFeedForward(d_model, self.d_ff, gelu, dropout=dropout)
            return FeedForward(d_model, self.d_ff, bias=False, dropout=dropout)

        def residuals(n: int) -> list[Residual]:
            return [Residual(nn.RMSNorm(d_model, norm_eps), dropout, post=False) for _ in range(n)]

        self.embedding, self.dropout = nn.Embedding(n_rows, d_model), Dropout(dropout)
        self.encoder = nn.ModuleList(
            EncoderLayer(attention(), feed_forward(), residuals(2)) for _ in range(config.n_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer((attention(), attention()), feed_forward(), residuals(3))
            for _ in range(n_decoder_layers or config.n_layers)
        )
        self.encoder_bias = RelativeBias(n_heads, is_causal=False, n_buckets=n_buckets, longest=longest)
        self.decoder_bias = RelativeBias(n_heads, is_causal=True, n_buckets=n_buckets, longest=longest)
        self.encoder_norm, self.decoder_norm = nn.RMSNorm(d_model, norm_eps), nn.RMSNorm(d_model, norm_eps)
        self.output = nn.Linear(d_model, n_rows, bias=False)
        if config.tied:
            self.output.weight = self.embedding.weight
        self.initialise()

    def initialise(self) -> None:
        """Draw matrices (n,m) from N(0, 1/m), W^Q from N(0, 1/(m d_k)), the embedding from N(0, 1)."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                n_inputs = self.embedding.embedding_dim if name.endswith("table.weight") else parameter.size(1)
                nn.init.normal_(parameter, std=(n_inputs * (self.d_k if name.endswith("w_q.weight") else 1)) ** -0.5)
        nn.init.normal_(self.embedding.weight)

    def encode(self, src: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the memory (B,S,D) of token ids (B,S) with mask (B,S)."""
        x = self.dropout(self.embedding(src))
        biased = with_bias(self.encoder_bias(src.size(1), src.size(1)), without_scale(attention))
        for layer in self.encoder:
            x = layer(x, src_mask[:, None, None, :], biased)
        return self.dropout(self.encoder_norm(x))

    def decode_after(self, ids: Tensor, cache: Cache, attention: Attention = fast_attention) -> tuple[Tensor, Cache]:
        """Return the states (N,T,D) of `ids` (N,T), the tokens after those in the cache, and the cache with them."""
        n, end = ids.size(1), cache.length + ids.size(1)
        x, past = self.dropout(self.embedding(ids)), []
        masks = causal(n, end, ids.device), cache.src_mask
        unscaled = without_scale(attention)
        attentions = with_bias(self.decoder_bias(n, end), unscaled), unscaled
        for i, layer in enumerate(self.decoder):
            x, so_far = layer(x, cache.past[i] if cache.past else None, cache.cross[i], masks, attentions)
            past.append(so_far)
        return self.dropout(self.decoder_norm(x)), Cache(tuple(past), cache.cross, cache.src_mask)

    def scaled(self, decoded: Tensor) -> Tensor:
        """Return what `output` makes logits of, (...,D)."""
        return decoded * decoded.size(-1) ** -0.5 if self.config.tied else decoded

    def logits(self, decoded: Tensor) -> Tensor:
        """Return the pre-softmax scores (...,V) of decoder outputs (...,D)."""
        return self.output(self.scaled(decoded))
