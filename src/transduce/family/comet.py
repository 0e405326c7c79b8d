"""COMET (Rei et al. 2020, 2022): the quality of a translation, as an encoder and a regression learned it from people.

With the states h_0 .. h_L of an encoder, XLM-RoBERTa (h_0: of the embedding), for each text:

    x = gamma sum_l p_l h_l                    p = softmax(w) or sparsemax(w): a mix of all layers
    v = mean over the tokens of x              one vector for the source s, the translation m and the reference r
    score = W_3 tanh(W_2 tanh(W_1 f))          f = [m; r; m*r; |m-r|; m*s; |m-s|], or [m; s; m*s; |m-s|] without r

CometKiwi (`unified`) needs no reference: it encodes `<s> m </s></s> s </s>` as one text, and f is the state of its <s>.

XLM-RoBERTa is BERT with one segment, and with positions that begin at 2. Letters in shape comments are as in
`model/transformer.py`; f has F numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transduce.family.bert import BertEncoder

ACTIVATIONS: dict[str, type[nn.Module]] = {"Tanh": nn.Tanh, "Sigmoid": nn.Sigmoid}
POOLINGS = ("avg", "max", "cls")
FEATURES = {"regression_metric": 6, "referenceless_regression_metric": 4, "unified_metric": 1}
"""The classes of COMET's library, with the number of vectors in f."""


@dataclass(frozen=True)
class CometConfig:
    """The parts of a COMET model besides its encoder.

    kind: one of `FEATURES`. layer: the layer whose states are used, 0 for the embedding; None: a mix of all.
    is_sparse: sparsemax instead of softmax. normalises: each layer's states of a text have mean 0 and variance 1 before
    the mix. pooling: one of `POOLINGS`. hidden: inner widths of the regression. final: its last activation, or None.
    """

    kind: str
    layer: int | None
    is_sparse: bool
    normalises: bool
    pooling: str
    hidden: Sequence[int]
    activation: str
    final: str | None


def sparsemax(weights: Tensor) -> Tensor:
    """Return the distribution (L,) nearest to `weights` (L,) (Martins and Astudillo 2016): small ones get 0."""
    ordered = weights.sort(descending=True).values
    sums = ordered.cumsum(0)
    numbers = torch.arange(1, len(weights) + 1, device=weights.device)
    n_positive = int((1 + numbers * ordered > sums).sum())
    return (weights - (sums[n_positive - 1] - 1) / n_positive).clamp(min=0)


class LayerMix(nn.Module):
    """A mix of the states of all layers. n_layers: with the embedding."""

    def __init__(self, n_layers: int, *, is_sparse: bool, normalises: bool) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(1) for _ in range(n_layers))
        self.gamma = nn.Parameter(torch.ones(1))
        self.is_sparse, self.normalises = is_sparse, normalises

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Return the mix (B,T,D) of the states (B,T,D) of each layer, of rows without padding."""
        weights = torch.cat([*self.weights])
        shares = sparsemax(weights) if self.is_sparse else weights.softmax(0)
        if self.normalises:
            layers = [(x - x.mean((1, 2), True)) / (x.var((1, 2), False, True) + 1e-12).sqrt() for x in layers]
        return self.gamma * sum(share * x for share, x in zip(shares, layers, strict=True))


class Comet(nn.Module):
    """An encoder, the mix of its layers, and the regression."""

    def __init__(self, encoder: BertEncoder, config: CometConfig) -> None:
        super().__init__()
        self.encoder, self.config = encoder, config
        n_layers, d_model = len(encoder.layers) + 1, encoder.config.d_model
        mix = LayerMix(n_layers, is_sparse=config.is_sparse, normalises=config.normalises)
        self.mix = mix if config.layer is None else None
        widths = [FEATURES[config.kind] * d_model, *config.hidden]
        parts: list[nn.Module] = []
        for width, following in zip(widths, widths[1:], strict=False):
            parts += [nn.Linear(width, following), ACTIVATIONS[config.activation](), nn.Identity()]  # theirs: dropout
        final = [] if config.final is None else [ACTIVATIONS[config.final]()]
        self.estimator = nn.Sequential(*parts, nn.Linear(widths[-1], 1), *final)

    def vectors(self, ids: Tensor) -> Tensor:
        """Return the vector (B,D) of each text of ids (B,T), without padding."""
        mask = torch.ones_like(ids, dtype=torch.bool)[:, None, None, :]
        layers = [self.encoder.embed(ids)]
        for layer in self.encoder.layers:
            layers.append(layer(layers[-1], mask, self.encoder.attention))
        x = self.mix(layers) if self.mix is not None else layers[self.config.layer or 0]
        if self.config.pooling == "cls":
            return x[:, 0]
        return x.mean(1) if self.config.pooling == "avg" else x.amax(1)

    def forward(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the score (B,) of each translation.

        vectors: (B,D) of translations, sources and references; of translations and sources without references; or of
        only the joined texts.
        """
        first, *others = vectors
        features = [first]
        if len(others) == 2:
            source, reference = others
            features += [
                reference,
                first * reference,
                (first - reference).abs(),
                first * source,
                (first - source).abs(),
            ]
        elif others:
            features += [others[0], first * others[0], (first - others[0]).abs()]
        return self.estimator(torch.cat(features, dim=1))[:, 0]
