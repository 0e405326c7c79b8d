"""Linformer (Wang et al. 2020, section 4): keys and values are k mixtures of the n positions.

    softmax(Q (E K)^T / sqrt(d_k)) F V         E, F: learned, (k,n)

The weights are (n,k) instead of (n,n). A mixture holds all positions, so there is no causal form, and n has a maximum.
"""

import torch
from torch import Tensor, nn

from transduce.family.attention_configs import LinformerConfig
from transduce.family.bert import Bert
from transduce.model.attention import Attention, Mask, fast_attention


class Linformer(nn.Module):
    """An attention function with its own weights: `forward` is an `Attention`.

    Heads and layers share the weights (the paper's "headwise" and "layerwise" sharing), if layers share the module.
    n_positions: maximum number of tokens of a text. rank: number k of mixtures. attention: attention function of the
    queries to the mixtures.
    """

    def __init__(self, n_positions: int, rank: int, attention: Attention = fast_attention) -> None:
        super().__init__()
        self.keys, self.values = (nn.Linear(n_positions, rank, bias=False) for _ in range(2))  # E and F
        self.attention = attention

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        """Attend to all real positions. The mask says what is padding, (B,1,1,S), or broadcastable to it.

        Raises ValueError for a mask which differs between queries, such as the causal one, for a floating one, such as
        a bias, and for a longer text.
        """
        n = keys.size(2)
        if isinstance(mask, str) or mask.size(-2) > 1 or mask.dtype != torch.bool:
            raise ValueError("mask: expected a boolean one of padding, (B,1,1,S); Linformer mixes all positions")
        if n > self.keys.in_features:
            raise ValueError(f"keys: expected at most {self.keys.in_features:,} positions, not {n:,}")
        is_real = mask.mT
        keys = self.keys.weight[:, :n] @ (keys * is_real)  # (B,H,k,K)
        values = self.values.weight[:, :n] @ (values * is_real)
        everything = torch.ones(1, keys.size(2), dtype=torch.bool, device=keys.device)
        return self.attention(queries, keys, values, everything, dropout)


class LinformerBert(Bert):
    """BERT with this attention, whose mixtures all heads and layers share."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config.bert)
        self.encoder.attention = Linformer(config.max_positions, config.rank)
