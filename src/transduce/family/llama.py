"""Llama (Touvron et al. 2023, section 2.2), with the shared key heads of Llama 2 and 3.

What changed since GPT-2: each part is another one, and no linear map has a bias.

    N(x) = x / sqrt(mean(x^2) + eps) * g       RMSNorm (Zhang and Sennrich 2019, eq. 4) instead of layer norm
    q_m, k_n turned by m theta_i, n theta_i    RoPE (Su et al. 2021, eq. 34): only m - n counts; no table of positions
    h = h + Attention(N(h))                    with fewer heads of keys and values (Ainslie et al. 2023, 2.2)
    h = h + W_2 (silu(W_1 N(h)) * W_3 N(h))    SwiGLU (Shazeer 2020, eq. 6)
    log p(next id) ~ W N(h)                    W is the embedding, or a separate matrix
"""

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.attention_wrappers import NO_PAST, Past, with_cache, with_rotation, with_shared_heads
from transduce.family.configs import LlamaConfig
from transduce.family.feed_forward import GatedFeedForward
from transduce.family.initialisation import initialise
from transduce.family.rope import UNSCALED, Rope
from transduce.family.text_model import TextModel
from transduce.model.attention import Attention, MultiHeadAttention, fast_attention
from transduce.model.transformer import EncoderLayer, KeysValues, Residual


class Llama(TextModel):
    """The decoder of Llama.

    d_k: width of a head; None: d_model / n_heads. rope: how the frequencies of RoPE follow from its base theta
    (`family/rope.py`). norm_eps: added to the mean squares.
    """

    no_past = NO_PAST

    def __init__(
        self, config: LlamaConfig, *, d_k: int | None = None, rope: Rope = UNSCALED, norm_eps: float = 1e-5
    ) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model = config.d_model
        self.config = config
        self.n_positions = config.max_positions
        self.d_k = d_k or d_model // config.n_heads
        self.rope = rope
        self.norm_eps = norm_eps

        def layer() -> EncoderLayer:
            width = {"d_k": self.d_k, "d_v": self.d_k, "n_kv_heads": config.n_kv_heads}
            attention = MultiHeadAttention(d_model, config.n_heads, **width, bias=False)
            residuals = [Residual(nn.RMSNorm(d_model, norm_eps), dropout=0.0, post=False) for _ in range(2)]
            return EncoderLayer(attention, GatedFeedForward(d_model, config.d_ff, F.silu), residuals)

        self.embedding = nn.Embedding(config.vocab_size, d_model)
        self.layers = nn.ModuleList(layer() for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(d_model, norm_eps)
        self.output = nn.Linear(d_model, config.vocab_size, bias=False)
        if config.tied:
            self.output.weight = self.embedding.weight
        initialise(self.named_parameters())

    def states(self, ids: Tensor, past: Past = NO_PAST, attention: Attention = fast_attention) -> tuple[Tensor, Past]:
        """Return what `output` makes logits of, (N,T,D), for new ids (N,T), and the past with them."""
        positions, mask = past.places(ids)
        x, angles = self.embedding(ids), self.rope.angles(positions, self.d_k)
        so_far: list[KeysValues] = []
        for i, layer in enumerate(self.layers):
            cache = with_cache(past.of_layer(i), so_far, with_shared_heads(attention))
            x = layer(x, mask, with_rotation(angles, cache, amplitude=self.rope.amplitude))
        return self.norm(x), Past(so_far, past.padding)
