"""Longformer's attention (Beltagy et al. 2020, section 3.1): a window for all, and a few global positions.

    local     each position attends to a window around it, and to the global positions
    global    the global positions attend to all, by their own queries, keys and values

The other positions see a global one by their own projections. A text needs time linear in its length.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from transduce.family.attention_configs import LongformerConfig
from transduce.family.attention_patterns import check_at_least
from transduce.family.bert import Bert
from transduce.family.window import with_window
from transduce.model.attention import Attention, Mask, MultiHeadAttention, fast_attention


class LongformerAttention(nn.Module):
    """Self-attention of an encoder, in place of a layer's `MultiHeadAttention`.

    reach: half of the paper's window, in tokens. n_global: number of positions at the beginning of a text that are
    global, such as [CLS], or a question. dropout: probability of dropout of an attention weight.
    """

    def __init__(self, d_model: int, n_heads: int, reach: int, *, n_global: int = 1, dropout: float = 0.0) -> None:
        check_at_least(0, reach=reach, n_global=n_global)
        super().__init__()
        self.local, self.of_global = (MultiHeadAttention(d_model, n_heads, dropout=dropout) for _ in range(2))
        self.of_global.load_state_dict(self.local.state_dict())  # the paper begins with equal projections
        self.of_global.w_o = self.local.w_o
        self.reach, self.n_global = reach, n_global

    def projections(self, x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return `x` (B,S,D), of which `attend` makes two kinds of queries, and `keys_values` of it."""
        return x, self.keys_values(x)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:
        """Return local keys and values of `memory` (B,S,D), and global ones, each (B,H,S,K)."""
        return (*self.local.keys_values(memory), *self.of_global.keys_values(memory))

    def attend(
        self, x: Tensor, keys_values: Sequence[Tensor], mask: Mask, attention: Attention = fast_attention
    ) -> Tensor:
        """(B,S,D) with the mask of padding, (B,1,1,S) -> (B,S,D)."""
        window = with_window(self.reach, attention, n_first=self.n_global)
        local = self.local(x, keys_values[:2], mask, window)
        of_global = self.of_global(x[:, : self.n_global], keys_values[2:], mask, attention)
        return torch.cat([of_global, local[:, self.n_global :]], dim=1)


class LongformerBert(Bert):
    """BERT with this attention."""

    def __init__(self, config: LongformerConfig) -> None:
        super().__init__(config.bert)
        for layer in cast(Iterable[Any], self.encoder.layers):
            attention = LongformerAttention(config.d_model, config.n_heads, config.reach, dropout=config.dropout)
            for part in (attention.local, attention.of_global):  # as the paper makes one of a trained BERT
                part.load_state_dict(layer.self_attention.state_dict())
            layer.self_attention = attention
