"""DETR, detection as translation (Carion et al. 2020, section 3 and appendix A.4).

What changed since 2017: the source is a grid of features, which convolutions make of an image. The target is a set of
objects, all at once and without an order: N learned queries, each of which becomes an object or nothing. Positions p
and the queries q join only queries and keys of attention, in each layer:

    encoder:  Attention(x + p, x + p, x)                                       post-norm, as in 2017
    decoder:  Attention(y + q, y + q, y), then Attention(y + q, x + p, x)      y starts as zeros; no mask
    class ~ LN(y) W^T + b        V classes, and one for no object
    box = sigmoid(MLP(LN(y)))    centre, width and height, as shares of the image

W (x + p) = W x + W p, so this is a function around attention. `detr_loss.py` has what it learns.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from transduce.family.images.configs import DetrConfig
from transduce.model.attention import Attention, Mask, MultiHeadAttention, fast_attention
from transduce.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual

ALL = torch.ones(1, 1, 1, 1, dtype=torch.bool)


def with_places(module: MultiHeadAttention, query_places: Tensor, key_places: Tensor) -> Attention:
    """Attend with queries of x + query_places and keys of memory + key_places, (T,D) and (S,D)."""

    def heads(places: Tensor, layer: nn.Linear) -> Tensor:  # (H,T,K)
        return (places @ layer.weight.T).unflatten(-1, (module.n_heads, -1)).transpose(0, 1)

    query_parts, key_parts = heads(query_places, module.w_q), heads(key_places, module.w_k)

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        return fast_attention(queries + query_parts, keys + key_parts, values, mask, dropout)

    return attend


def sines_of_grid(n_rows: int, n_columns: int, d_model: int) -> Tensor:
    """Return the positions (RC,D) of a grid: sines and cosines of the row, from 0 to 2 pi, then of the column."""
    width = d_model // 2
    rates = 10_000 ** -(2 * (torch.arange(width, dtype=torch.float64) // 2) / width)
    is_sine = torch.arange(width) % 2 == 0

    def sines(n: int) -> Tensor:
        angles = 2 * math.pi * torch.arange(1, n + 1)[:, None] / (n + 1e-6) * rates
        return torch.where(is_sine, angles.sin(), angles.cos())

    return torch.cat([sines(n_rows).repeat_interleave(n_columns, 0), sines(n_columns).repeat(n_rows, 1)], dim=1)


class Detr(nn.Module):
    """The detector. backbone: makes features (B,F,R,C) of images. labels: names of the V classes of objects."""

    def __init__(self, config: DetrConfig, backbone: nn.Module, labels: Sequence[str]) -> None:
        super().__init__()
        d_model, dropout = config.d_model, config.dropout

        def parts(n: int) -> tuple[FeedForward, list[Residual]]:
            residuals = [Residual(nn.LayerNorm(d_model), dropout, post=True) for _ in range(n)]
            return FeedForward(d_model, config.d_ff), residuals

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(d_model, config.n_heads, dropout=dropout)

        self.backbone, self.projection = backbone, nn.Conv2d(config.n_features, d_model, 1)
        self.queries = nn.Parameter(torch.randn(config.n_queries, d_model))
        self.encoder = nn.ModuleList(EncoderLayer(attention(), *parts(2)) for _ in range(config.n_layers))
        self.decoder = nn.ModuleList(
            DecoderLayer((attention(), attention()), *parts(3)) for _ in range(config.n_layers)
        )
        self.norm, self.output = nn.LayerNorm(d_model), nn.Linear(d_model, len(labels) + 1)
        layers = [nn.Linear(d_model, d_model), nn.ReLU(), nn.Linear(d_model, d_model), nn.ReLU()]
        self.boxes = nn.Sequential(*layers, nn.Linear(d_model, 4), nn.Sigmoid())
        self.config, self.labels = config, tuple(labels)
        for parameter in [*self.encoder.parameters(), *self.decoder.parameters()]:
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def states(self, features: Tensor) -> Iterator[Tensor]:
        """Yield the states (B,N,D) of the queries after each layer of the decoder. features: (B,F,R,C)."""
        x = self.projection(features)
        places = sines_of_grid(x.size(2), x.size(3), x.size(1)).to(x)
        mask, x = ALL.to(x.device), x.flatten(2).mT
        for layer in cast(Iterable[EncoderLayer], self.encoder):
            x = layer(x, mask, with_places(layer.self_attention, places, places))
        y = torch.zeros_like(self.queries).expand(len(x), -1, -1)
        for layer in cast(Iterable[DecoderLayer], self.decoder):
            within = with_places(layer.self_attention, self.queries, self.queries)
            across = with_places(layer.cross_attention, self.queries, places)
            y, _ = layer(y, None, layer.cross_attention.keys_values(x), (mask, mask), (within, across))
            yield self.norm(y)

    def forward(self, images: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return for each layer of the decoder, the last one last, logits (B,N,V+1) and boxes (B,N,4)."""
        return [(self.output(y), self.boxes(y)) for y in self.states(self.backbone(images))]
