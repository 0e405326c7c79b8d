"""Synthesizer (Tay et al. 2020, section 3): GPT-2 with attention whose scores are no products of queries and keys.

heads = softmax(scores) V        scores: dense or random (`synthetic_scores.py`); the causal mask of 2017
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transduce.family.attention_configs import SynthesizerConfig
from transduce.family.attention_wrappers import explicit
from transduce.family.gpt2 import GPT2
from transduce.family.initialisation import initialise
from transduce.family.synthetic_scores import Dense, FactorisedDense, Random
from transduce.model.attention import Attention, Mask, MultiHeadAttention, reference_attention
from transduce.model.transformer import KeysValues


class SyntheticAttention(MultiHeadAttention):
    """Causal attention without keys. scores: of `synthetic_scores.py`; random ones need no queries either."""

    def __init__(self, d_model: int, n_heads: int, scores: nn.Module, dropout: float) -> None:
        super().__init__(d_model, n_heads, dropout=dropout)
        del self.w_k
        if isinstance(scores, Random):
            self.w_q = nn.Identity()
        self.scores = scores

    def projections(self, x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the queries (B,H,T,K) of `x` (B,T,D), and `keys_values` of it."""
        return self._split(self.w_q(x), self.n_heads), self.keys_values(x)

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Return keys of width 0, and the values (B,H,S,W) of `memory` (B,S,D)."""
        values = self._split(self.w_v(memory), self.n_heads)
        return values[..., :0], values

    def attend(
        self, queries: Tensor, keys_values: Sequence[Tensor], mask: Mask, attention: Attention = reference_attention
    ) -> Tensor:
        """Attend from the last T of S positions. attention: adds a mask of scores to products of width 0.

        The last row of the mask says which positions are real: those before them are padding.
        """
        n_new = queries.size(2)
        is_visible = explicit(mask, n_new, n_new, queries.device)
        positions = (is_visible[..., -1, :].cumsum(-1) - 1).clamp(min=0).view(-1, is_visible.size(-1))  # (N,S) or (1,S)
        shape = *queries.shape[:3], -1
        scores = self.scores(queries, positions[:, -n_new:]).expand(shape)  # (N,H,T,P)
        scores = scores.gather(-1, positions[:, None, None].expand(shape))  # (N,H,T,S)
        scores = torch.where(is_visible, scores, torch.finfo(scores.dtype).min)
        keys, values = keys_values
        heads = attention(queries[..., :0], keys, values, scores, self.dropout if self.training else 0.0)
        return self.w_o(heads.transpose(1, 2).flatten(2))


class SynthesizerGPT2(GPT2):
    """GPT-2 with this attention."""

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config.gpt2)
        n_heads = config.n_heads
        d_k = config.d_model // config.n_heads
        n_positions = config.max_positions
        scores = {
            "dense": lambda: Dense(n_heads, d_k, n_positions),
            "random": lambda: Random(n_heads, n_positions),
            "factorised_dense": lambda: FactorisedDense(n_heads, d_k, n_positions),
            "factorised_random": lambda: Random(n_heads, n_positions, config.rank),
        }[config.scores]
        for layer in self.layers:
            layer.self_attention = SyntheticAttention(config.d_model, n_heads, scores(), config.dropout)
        self.attention = reference_attention  # the fused kernel has no products of width 0
        initialise(self.named_parameters(), n_residuals=2 * config.n_layers)
