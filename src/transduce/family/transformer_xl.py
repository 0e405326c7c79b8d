"""Transformer-XL (Dai et al. 2019, section 3): a language model that remembers the segment before.

A long text is read in segments. The inputs h of each layer are kept, without gradient, as the memory of the next
segment, so that the keys and values of a layer come from both:

    k_j, v_j = W_k h_j, W_v h_j                          j over memory and segment; q_i only over the segment
    score(i,j) = ((q_i + u) k_j + (q_i + v) W_r R_(i-j)) / sqrt(K)     3.3; R_d: the sinusoids of the distance d

A distance means the same in each segment, where a position would not. u and v are vectors of a head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transduce.family.attention_wrappers import causal, with_bias
from transduce.family.configs import TransformerXLConfig
from transduce.family.positions import distances
from transduce.family.text_model import TextModel
from transduce.model.attention import Attention, Mask, MultiHeadAttention, fast_attention
from transduce.model.dropout import Dropout
from transduce.model.positions import SinusoidalPositions
from transduce.model.transformer import FeedForward, Residual


@dataclass(frozen=True)
class Memory:
    """The inputs (N,M,D) of each layer at the last M positions of N rows; () before the first segment."""

    layers: Sequence[Tensor] = ()

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "Memory":
        """Return the memory whose row i is row rows[i] of this one. `sentences` has no effect."""
        return Memory([layer[rows] for layer in self.layers])


NO_MEMORY = Memory()


def with_distances(rows: Tensor, u: Tensor, v: Tensor, attention: Attention = fast_attention) -> Attention:
    """Score keys by content and by distance, as above. rows: W_r R_d for d from 0, (S,H,K). u, v: (H,K).

    The queries are the last T of the S positions of the keys.
    """

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        scores = (queries + v[:, None]) @ rows.permute(1, 2, 0) / math.sqrt(queries.size(-1))  # (B,H,T,S), over d
        away = -distances(queries.size(2), keys.size(2), queries.device).clamp(max=0)  # 0 where the mask hides the key
        by_key = scores.gather(-1, away.expand_as(scores))
        return with_bias(by_key, attention)(queries + u[:, None], keys, values, mask, dropout)

    return attend


class TransformerXLLayer(nn.Module):
    """A layer: attention over memory and segment, then feed-forward, each with the norm after its residual."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float, norm_eps: float) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, n_heads, bias=False, dropout=dropout)
        self.w_r = nn.Linear(d_model, d_model, bias=False)
        self.u, self.v = (nn.Parameter(torch.zeros(n_heads, d_model // n_heads)) for _ in range(2))
        self.feed_forward = FeedForward(d_model, d_ff, dropout=dropout)
        norms = [nn.LayerNorm(d_model, norm_eps) for _ in range(2)]
        self.residuals = nn.ModuleList(Residual(norm, dropout, post=True) for norm in norms)

    def forward(self, x: Tensor, memory: Tensor, relative: Tensor) -> Tensor:
        """(N,T,D), the memory (N,M,D) and the sinusoids (M+T,D) of the distances from 0 -> (N,T,D)."""
        rows = self.w_r(relative).unflatten(-1, self.u.shape)
        mask, attention = causal(x.size(1), len(relative), x.device), with_distances(rows, self.u, self.v)

        def attend(y: Tensor) -> Tensor:
            keys_values = self.self_attention.keys_values(torch.cat([memory, y], dim=1))
            return self.self_attention(y, keys_values, mask, attention)

        return self.residuals[1](self.residuals[0](x, attend), self.feed_forward)


class TransformerXL(TextModel):
    """The language model, with one matrix for embedding and output instead of the paper's adaptive ones.

    norm_eps: added to the variances.
    """

    no_past = NO_MEMORY

    def __init__(self, config: TransformerXLConfig, *, norm_eps: float = 1e-5) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model = config.d_model
        self.n_memory = config.max_positions if config.n_memory is None else config.n_memory
        self.n_positions = config.max_positions
        self.embedding, self.dropout = nn.Embedding(config.vocab_size, d_model), Dropout(config.dropout)
        self.positions = SinusoidalPositions(d_model, "halves")
        sizes = d_model, config.n_heads, config.d_ff or 4 * d_model, config.dropout, norm_eps
        self.layers = nn.ModuleList(TransformerXLLayer(*sizes) for _ in range(config.n_layers))
        self.output = nn.Linear(d_model, config.vocab_size)
        self.output.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        nn.init.zeros_(self.output.bias)

    def states(self, ids: Tensor, memory: Memory = NO_MEMORY) -> tuple[Tensor, Memory]:
        """Return what `output` makes logits of, (N,T,D), for a segment (N,T), and the memory for the next one."""
        x = self.dropout(self.embedding(ids))
        layers = memory.layers or [x[:, :0]] * len(self.layers)
        n_keys = layers[0].size(1) + ids.size(1)
        relative = self.dropout(self.positions(0, n_keys).to(x))
        memories = []
        for layer, before in zip(self.layers, layers, strict=True):
            memories.append(torch.cat([before, x], dim=1)[:, max(0, n_keys - self.n_memory) :].detach())
            x = layer(x, before, relative)
        return self.dropout(x), Memory(memories)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (N,T,V) of the id after each of `ids` (N,T), in segments as long as the memory."""
        states, memory = [], NO_MEMORY
        for segment in ids.split(self.n_memory or ids.size(1), dim=1):
            of_segment, memory = self.states(segment, memory)
            states.append(of_segment)
        return self.output(torch.cat(states, dim=1))
