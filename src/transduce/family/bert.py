"""BERT (Devlin et al. 2018, section 3 and appendix A).

What changed since 2017: there is no decoder. The encoder sees both sides of each token, so it cannot learn to predict
the next one. It learns to restore masked words, and whether one sentence follows another. With the embedding E, learned
positions P, segments S (first or second sentence), and LN for layer norm:

    h = LN(E[ids] + P + S[segments])           no factor sqrt(d_model); a norm before the first layer
    h = LN(h + Attention(h))                   post-norm, as in 2017
    h = LN(h + W_2 gelu(W_1 h))                the exact GELU instead of ReLU

`family/heads.py` has the heads, which make words, one vector or classes of the states h. Letters in shape comments are
those of `model/transformer.py`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.heads import Classifier, Pooler, WordHead
from transduce.family.initialisation import initialise
from transduce.model.attention import Attention, MultiHeadAttention, fast_attention
from transduce.model.dropout import Dropout
from transduce.model.transformer import EncoderLayer, FeedForward, Residual


class BertEncoder(nn.Module):
    """The encoder. dropout: one probability for the embedding, the attention weights and the residuals.

    The attribute `attention` is the attention function of all layers. One with weights of its own becomes a part.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        n_heads: int,
        *,
        d_ff: int | None = None,
        n_positions: int = 512,
        n_segments: int = 2,
        dropout: float = 0.1,
        norm_eps: float = 1e-12,
    ) -> None:
        super().__init__()

        def layer() -> EncoderLayer:
            residuals = [Residual(nn.LayerNorm(d_model, norm_eps), dropout, post=True) for _ in range(2)]
            feed_forward = FeedForward(d_model, d_ff or 4 * d_model, F.gelu)
            return EncoderLayer(MultiHeadAttention(d_model, n_heads, dropout=dropout), feed_forward, residuals)

        self.embedding, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(n_positions, d_model)
        self.segments, self.norm = nn.Embedding(n_segments, d_model), nn.LayerNorm(d_model, norm_eps)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layer() for _ in range(n_layers))
        self.n_heads, self.d_ff, self.norm_eps = n_heads, d_ff or 4 * d_model, norm_eps
        self.attention: Attention = fast_attention

    def forward(
        self, ids: Tensor, mask: Tensor, segments: Tensor | None = None, attention: Attention | None = None
    ) -> Tensor:
        """Return the states (B,T,D) of `ids` (B,T) with mask (B,T). segments: (B,T); None: all ids are in the first.

        attention: None is that of the model.
        """
        segments = torch.zeros_like(ids) if segments is None else segments
        x = self.embedding(ids) + self.positions.weight[: ids.size(1)] + self.segments(segments)
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :], attention or self.attention)
        return x


class Bert(nn.Module):
    """The encoder and its heads, all with new values. A head that is None is absent: each use of BERT has others.

    classifier, next_sentence: on the pooled states.

        encoder = BertEncoder(vocab_size=30_522, d_model=768, n_layers=12, n_heads=12)
        model = Bert(encoder, words=WordHead(encoder.embedding), pooler=Pooler(768)).eval()
        ids = torch.tensor([[101, 7592, 103, 102]])  # [CLS] hello [MASK] [SEP]
        states = model.encoder(ids, mask=ids != 0)
        word_logits, pooled = model.words(states), model.pooler(states)  # (1, 4, 30522), (1, 768)
    """

    def __init__(
        self,
        encoder: BertEncoder,
        *,
        words: WordHead | None = None,
        pooler: Pooler | None = None,
        next_sentence: Classifier | None = None,
        classifier: Classifier | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.words, self.pooler = encoder, words, pooler
        self.next_sentence, self.classifier = next_sentence, classifier
        initialise(self.named_parameters())
