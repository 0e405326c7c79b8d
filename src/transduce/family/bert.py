"""BERT (Devlin et al. 2018, section 3 and appendix A).

What changed since 2017: there is no decoder. The encoder sees both sides of each token, so it cannot learn to predict
the next one. It learns to restore masked words, and whether one sentence follows another. With the embedding E, learned
positions P, segments S (first or second sentence), and LN for layer norm:

    h = LN(E[ids] + P + S[segments])           no factor sqrt(d_model); a norm before the first layer
    h = LN(h + Attention(h))                   post-norm, as in 2017
    h = LN(h + W_2 gelu(W_1 h))                the exact GELU instead of ReLU

`family/bert_heads.py` has the heads, which make words, one vector or classes of the states h. Letters in shape comments
are as in `model/transformer.py`.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.bert_heads import NEXT_SENTENCE, Classifier, Pooler, WordHead
from transduce.family.configs import BertClassifierConfig, BertConfig
from transduce.family.initialisation import initialise
from transduce.family.layers import layer_around
from transduce.model.attention import Attention, fast_attention
from transduce.model.dropout import Dropout
from transduce.model.transformer import EncoderLayer, FeedForward


class BertEncoder(nn.Module):
    """The encoder. n_segments: sentences of a row that it tells apart. norm_eps: added to the variances.

    The attribute `attention` is the attention function of all layers. If it has weights, they become a part.
    """

    def __init__(self, config: BertConfig, *, n_segments: int = 2, norm_eps: float = 1e-12) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model = config.d_model
        dropout = config.dropout
        self.d_ff = config.d_ff or 4 * d_model

        def layer() -> EncoderLayer:
            network = FeedForward(d_model, self.d_ff, F.gelu)
            return layer_around(network, d_model, config.n_heads, dropout=dropout, norm_eps=norm_eps, post=True)

        self.embedding = nn.Embedding(config.vocab_size, d_model)
        self.positions = nn.Embedding(config.max_positions, d_model)
        self.segments, self.norm = nn.Embedding(n_segments, d_model), nn.LayerNorm(d_model, norm_eps)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layer() for _ in range(config.n_layers))
        self.attention: Attention = fast_attention
        self.config = config
        self.norm_eps = norm_eps

    def forward(
        self, ids: Tensor, mask: Tensor, segments: Tensor | None = None, attention: Attention | None = None
    ) -> Tensor:
        """Return the states (B,T,D) of `ids` (B,T) with mask (B,T). segments: (B,T); None: all ids are in the first.

        attention: attention function of all layers; None: the attribute `attention`.
        """
        x = self.embed(ids, segments)
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :], attention or self.attention)
        return x

    def embed(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return the states (B,T,D) before the first layer."""
        segments = torch.zeros_like(ids) if segments is None else segments
        x = self.embedding(ids) + self.positions.weight[: ids.size(1)] + self.segments(segments)
        return self.dropout(self.norm(x))


class Bert(nn.Module):
    """The encoder and its heads: each use of BERT has others. A head that is absent is None.

    heads: some of words, pooler, next_sentence and classifier, which are attributes; the last two need the pooler.
    labels: names of the classes of the classifier. classifier_dropout: probability of dropout of the pooled states;
    None: as everywhere else.

        model = Bert(BertConfig(vocab_size=30_522), heads=("words", "pooler")).eval()
        ids = torch.tensor([[101, 7592, 103, 102]])  # [CLS] hello [MASK] [SEP]
        states = model.encoder(ids, mask=ids != 0)
        word_logits, pooled = model.words(states), model.pooler(states)  # (1, 4, 30522), (1, 768)
    """

    def __init__(
        self,
        config: BertConfig,
        *,
        heads: Collection[str] = ("words",),
        labels: Sequence[str] = (),
        classifier_dropout: float | None = None,
        n_segments: int = 2,
        norm_eps: float = 1e-12,
    ) -> None:
        super().__init__()
        d_model = config.d_model
        dropout = config.dropout if classifier_dropout is None else classifier_dropout
        self.encoder = BertEncoder(config, n_segments=n_segments, norm_eps=norm_eps)
        self.words = WordHead(self.encoder.embedding, norm_eps) if "words" in heads else None
        self.pooler = Pooler(d_model) if "pooler" in heads else None
        self.next_sentence = Classifier(d_model, NEXT_SENTENCE) if "next_sentence" in heads else None
        self.classifier = Classifier(d_model, labels, dropout) if "classifier" in heads else None
        initialise(self.named_parameters())

    @property
    def output(self) -> nn.Linear:
        """The layer that makes logits: of words from the states of their head, or of classes from the pooled states."""
        if self.words is not None:
            return self.words.output
        assert self.classifier is not None
        return self.classifier.linear


class BertClassifier(Bert):
    """BERT with a head for classes, which have the names LABEL_0, LABEL_1 and so on."""

    def __init__(self, config: BertClassifierConfig) -> None:
        labels = [f"LABEL_{i}" for i in range(config.tgt_vocab_size)]
        sizes = {"n_segments": config.n_segments, "norm_eps": config.norm_eps}
        super().__init__(config.bert, heads=("pooler", "classifier"), labels=labels, **sizes)
