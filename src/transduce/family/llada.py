"""LLaDA (Nie et al. 2025, section 2): diffusion of text by masks. A Llama that sees both sides restores masked tokens.

A line x of n tokens loses some of them, and the model learns to give them back. A number t ~ U(0,1) is drawn for the
line, and each token is masked with probability t, independently:

    loss(x) = E [1/t * sum over the masked i of -log p(x_i | the tokens that are left)]        eq. 3
    -log p(x) <= loss(x)                                                                       eq. 4

If k ~ U{1..n} is drawn instead, k of the n tokens are masked, and n/k replaces 1/t, the expectation is the same (eq.
6). It varies less: the weight depends on the masked tokens, and is at most n. `inference/diffusion.py` writes text.

LLaDA is given n. Here a table has a probability for each n, so that a line has one, its end included, as in a decoder.
"""

import numpy as np
import torch
from torch import Tensor, nn

from transduce.family.configs import LladaConfig
from transduce.family.llama import Llama
from transduce.family.rope import UNSCALED, Rope
from transduce.model.attention import Attention, Mask, fast_attention

LOWEST_RATE = 0.001  # of masked tokens; 1/t grows without limit below it


class Llada(nn.Module):
    """The model: a Llama under another mask, and a table of lengths.

    n_lengths: maximum number of tokens of a line that has a probability; None: max_positions - 2, because a line has
    two ends; 0: no table. rope, norm_eps: of the Llama.
    """

    def __init__(
        self,
        config: LladaConfig,
        *,
        n_lengths: int | None = None,
        rope: Rope = UNSCALED,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.llama = Llama(config.llama, rope=rope, norm_eps=norm_eps)
        n_lengths = config.max_positions - 2 if n_lengths is None else n_lengths
        self.lengths = nn.Parameter(torch.zeros(n_lengths)) if n_lengths else None

    @property
    def output(self) -> nn.Linear:
        """The layer that makes logits of states."""
        return self.llama.output

    def states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what `output` makes logits of, (B,T,D), for ids (B,T) with mask (B,T): True for a real token."""
        return self.llama.states(ids, attention=with_both_sides(mask))[0]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the logits (B,T,V) of the token at each place of `ids` (B,T)."""
        return self.output(self.states(ids, mask))

    def length_log_probs(self, lengths: Tensor) -> Tensor:
        """Return the log-probability of each number of tokens of a line, (B,), from 1 on."""
        assert self.lengths is not None
        return self.lengths.log_softmax(dim=0)[lengths - 1]


def with_both_sides(mask: Tensor, attention: Attention = fast_attention) -> Attention:
    """Attend to all positions that are real by `mask` (B,S), before and after a query, instead of the given mask."""

    def attend(queries: Tensor, keys: Tensor, values: Tensor, _: Mask, dropout: float) -> Tensor:
        return attention(queries, keys, values, mask[:, None, None, :], dropout)

    return attend


# ---- the loss: the sum of weight * -log p over the tokens of a line; a token that is not masked has the weight 0 -----


def weights_by_rate(n: int, generator: np.random.Generator) -> np.ndarray:
    """Return the weights (n,) of the tokens of a line by eq. 3: 1/t if masked, which none may be."""
    t = (1 - LOWEST_RATE) * generator.random() + LOWEST_RATE
    return (generator.random(n) < t) / t


def weights_by_count(n: int, generator: np.random.Generator) -> np.ndarray:
    """Return the weights (n,) of the tokens of a line by eq. 6: n/k for the k that are masked."""
    return weights_of_count(n, int(generator.integers(1, n + 1)), generator)


def weights_of_count(n: int, k: int, generator: np.random.Generator) -> np.ndarray:
    """Return the weights of `weights_by_count` with k of the n tokens masked."""
    weights = np.zeros(n)
    weights[generator.choice(n, k, replace=False)] = n / k
    return weights
