"""BERT (Devlin et al. 2018, section 3 and appendix A).

What changed since 2017: there is no decoder. The encoder sees both sides of each token, so it cannot learn to predict
the next one. It learns to restore masked words, and whether one sentence follows another. With the embedding E, learned
positions P, segments S (first or second sentence), and LN for layer norm:

    h = LN(E[ids] + P + S[segments])           no factor sqrt(d_model); a norm before the first layer
    h = LN(h + Attention(h))                   post-norm, as in 2017
    h = LN(h + W_2 gelu(W_1 h))                the exact GELU instead of ReLU

    log p(masked id) ~ LN(gelu(W h)) E^T + b   `WordHead`
    pooled = tanh(W h_0)                       `Pooler`: the state of [CLS], the first id
    log p(class) ~ pooled W^T + b              `Classifier`: next sentence or not, and any classes of a fine-tuning

In shape comments C counts classes; the other letters are those of `model/transformer.py`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.attention import Attention, MultiHeadAttention, fast_attention
from transduce.model.dropout import Dropout
from transduce.model.transformer import EncoderLayer, FeedForward, Residual

NEXT_SENTENCE = ("is_next", "is_random")  # of the second sentence of a pair


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


class WordHead(nn.Module):
    """The logits (...,V) of the words at masked places, from their states (...,D). embedding: the encoder's, tied."""

    def __init__(self, embedding: nn.Embedding, norm_eps: float = 1e-12) -> None:
        super().__init__()
        vocab_size, d_model = embedding.weight.shape
        self.linear, self.norm = nn.Linear(d_model, d_model), nn.LayerNorm(d_model, norm_eps)
        self.output = nn.Linear(d_model, vocab_size)
        self.output.weight = embedding.weight

    def states(self, states: Tensor) -> Tensor:
        """Return what `output` makes logits of, (...,D)."""
        return self.norm(F.gelu(self.linear(states)))

    def forward(self, states: Tensor) -> Tensor:
        return self.output(self.states(states))


class Pooler(nn.Module):
    """One vector (B,D) for each row, from the states (B,T,D): that of its first id, through a layer."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, states: Tensor) -> Tensor:
        return self.linear(states[:, 0]).tanh()


class Classifier(nn.Module):
    """The logits (B,C) of classes with the names `labels`, from pooled states (B,D). dropout: on those."""

    def __init__(self, d_model: int, labels: Sequence[str], dropout: float = 0.0) -> None:
        super().__init__()
        self.labels, self.dropout = tuple(labels), Dropout(dropout)
        self.linear = nn.Linear(d_model, len(self.labels))

    def forward(self, pooled: Tensor) -> Tensor:
        return self.linear(self.dropout(pooled))


class Bert(nn.Module):
    """The encoder and its heads, all with new values. A head that is None is absent: each use of BERT has others.

    classifier, next_sentence: on the pooled states.
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
        self.initialise()

    def initialise(self) -> None:
        """Draw matrices from N(0, 0.02); biases are 0."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def sentence_vectors(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the states (B,T,D) where `mask` (B,T) is True, divided by its length: (B,D).

    The product of two is the cosine of their angle, a measure of likeness (Reimers and Gurevych 2019, section 3).
    """
    real = mask[..., None].to(states.dtype)
    return F.normalize((states * real).sum(dim=1) / real.sum(dim=1), dim=-1)
