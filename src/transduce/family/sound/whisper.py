"""Whisper (Radford et al. 2022, section 2.2).

What changed since 2017: the source is sound. Two convolutions make a token of 20 ms from two frames of its log-mel
features, and the encoder-decoder behind them is the one of 2017, with the norm before each part:

    x = gelu(conv_2(gelu(conv_1(features)))) + P      P: sinusoids; conv_2 has a stride of 2
    h = h + Attention(LN(h))                          pre-norm; the keys have no bias, which softmax would cancel
    h = h + W_2 gelu(W_1 LN(h))                       the exact GELU instead of ReLU
    y = E[ids] + P'                                   P': learned; no factor sqrt(d_model)
    log p(next id) ~ LN(y) E^T

In shape comments M counts mel bands, F frames of 10 ms, and S = F / 2, rounded up, tokens of the encoder; the other
letters are as in `model/transformer.py`.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.attention_wrappers import causal
from transduce.family.configs import WhisperConfig
from transduce.family.encoder_decoder import EncoderDecoder
from transduce.family.initialisation import initialise
from transduce.model.attention import Attention, MultiHeadAttention, fast_attention
from transduce.model.dropout import Dropout
from transduce.model.positions import LearnedPositions, sinusoids
from transduce.model.transformer import Cache, DecoderLayer, EncoderLayer, FeedForward, Residual


class Whisper(EncoderDecoder):
    """The encoder-decoder."""

    def __init__(self, config: WhisperConfig) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model = config.d_model

        def attention() -> MultiHeadAttention:
            heads = MultiHeadAttention(d_model, config.n_heads, dropout=config.dropout)
            heads.w_k = nn.Linear(d_model, d_model, bias=False)
            return heads

        def feed_forward() -> FeedForward:
            return FeedForward(d_model, config.d_ff or 4 * d_model, F.gelu)

        def residuals(n: int) -> list[Residual]:
            return [Residual(nn.LayerNorm(d_model), config.dropout, post=False) for _ in range(n)]

        self.config = config
        self.conv_1 = nn.Conv1d(config.n_mels, d_model, kernel_size=3, padding=1)
        self.conv_2 = nn.Conv1d(d_model, d_model, kernel_size=3, stride=2, padding=1)
        table = sinusoids(config.max_frames, d_model, "tensor2tensor")
        self.src_positions = nn.Parameter(table, requires_grad=False)
        self.encoder = nn.ModuleList(
            EncoderLayer(attention(), feed_forward(), residuals(2)) for _ in range(config.n_layers)
        )
        self.tgt_embedding = nn.Embedding(config.vocab_size, d_model)
        self.positions = LearnedPositions(config.max_positions, d_model)
        self.decoder = nn.ModuleList(
            DecoderLayer((attention(), attention()), feed_forward(), residuals(3))
            for _ in range(config.n_decoder_layers or config.n_layers)
        )
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(d_model, config.vocab_size, bias=False)
        self.output.weight = self.tgt_embedding.weight
        initialise((name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad)

    def embed(self, src: Tensor) -> Tensor:
        """Return what the first layer of the encoder reads, (B,S,D), of log-mel features (B,M,F)."""
        x = F.gelu(self.conv_2(F.gelu(self.conv_1(src)))).mT
        return self.dropout(x + self.src_positions[: x.size(1)])

    def encode(self, src: Tensor, src_mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the memory (B,S,D) of log-mel features (B,M,F). src_mask: which of the S tokens are heard, (B,S)."""
        x = self.embed(src)
        for layer in self.encoder:
            x = layer(x, src_mask[:, None, None, :], attention)
        return self.encoder_norm(x)

    def decode_after(self, ids: Tensor, cache: Cache, attention: Attention = fast_attention) -> tuple[Tensor, Cache]:
        """Return the states (N,T,D) of `ids` (N,T), the tokens after those in the cache, and the cache with them."""
        end, past = cache.length + ids.size(1), []
        x = self.dropout(self.tgt_embedding(ids) + self.positions(cache.length, end))
        masks = causal(ids.size(1), end, ids.device), cache.src_mask
        for i, layer in enumerate(self.decoder):
            earlier = cache.past[i] if cache.past else None
            x, so_far = layer(x, earlier, cache.cross[i], masks, (attention, attention))
            past.append(so_far)
        return self.decoder_norm(x), Cache(tuple(past), cache.cross, cache.src_mask)
