"""The heads of an encoder: words, one vector or classes from its states h (Devlin et al. 2018, section 3.1).

With the embedding E and LN for layer norm:

    log p(masked id) ~ LN(gelu(W h)) E^T + b   `WordHead`
    pooled = tanh(W h_0)                       `Pooler`: the state of [CLS], the first id
    log p(class) ~ pooled W^T + b              `Classifier`: next sentence or not, and any classes of a fine-tuning
    mean of h, divided by its length           `sentence_vectors`, without a weight; or another of `POOLINGS`

In shape comments C counts classes; the other letters are as in `model/transformer.py`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.dropout import Dropout

NEXT_SENTENCE = ("is_next", "is_random")  # of the second sentence of a pair


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
    """One vector (B,D) for each row, from the states (B,T,D): the state of its first id, through a layer."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, states: Tensor) -> Tensor:
        return self.linear(states[:, 0]).tanh()


class Classifier(nn.Module):
    """The logits (B,C) of classes with the names `labels`, from pooled states (B,D). dropout: probability of dropout of
    these states."""

    def __init__(self, d_model: int, labels: Sequence[str], dropout: float = 0.0) -> None:
        super().__init__()
        self.labels, self.dropout = tuple(labels), Dropout(dropout)
        self.linear = nn.Linear(d_model, len(self.labels))

    def forward(self, pooled: Tensor) -> Tensor:
        return self.linear(self.dropout(pooled))


# Names of sentence-transformers: how the states (B,T,D) of sentences become one vector each, (B,D).
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda states: states.mean(dim=1),
    "cls": lambda states: states[:, 0],
    "max": lambda states: states.amax(dim=1),
    "mean_sqrt_len": lambda states: states.sum(dim=1) / states.size(1) ** 0.5,
    "weightedmean": lambda states: torch.arange(1.0, states.size(1) + 1, device=states.device) @ states,
    "lasttoken": lambda states: states[:, -1],
}


def sentence_vectors(states: Tensor, pooling: str = "mean") -> Tensor:
    """Return a vector (B,D) of the states (B,T,D), divided by its length. pooling: a key of `POOLINGS`.

    The product of two is the cosine of their angle, a measure of likeness (Reimers and Gurevych 2019, section 3).
    """
    return F.normalize(POOLINGS[pooling](states), dim=-1)
