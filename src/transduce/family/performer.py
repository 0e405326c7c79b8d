"""Performer (Choromanski et al. 2020, section 2): attention whose weights are never computed, in time linear in n.

The exponential of a product is the mean of products of random features, one of the query and one of the key:

    e^(q k)  =  E phi(q) phi(k),   phi(x) = e^(w x - |x|^2 / 2) / sqrt(m)       lemma 1; w: m random directions

with q and k divided by d_k^(1/4), so that q k is a score of eq. 1. The sums over keys are taken before the product:

    output = phi(Q) (phi(K)^T V)  /  phi(Q) (phi(K)^T 1)                        eq. 4

m features estimate one weight with a relative variance of (e^(|q + k|^2) - 1) / m: large queries and keys need many.
"""

import torch
from torch import Tensor, nn

from transduce.family.attention_configs import PerformerConfig
from transduce.family.attention_wrappers import NO_PAST, Past, causal
from transduce.family.gpt2 import GPT2
from transduce.model.attention import Attention, Mask

BLOCK = 128  # positions at once under the causal mask
LARGEST = 60.0  # of the exponents of keys: e^60 times 10^12 is below the largest fp32


class Performer(nn.Module):
    """An attention function with its own random directions: `forward` is an `Attention`.

    The directions are a buffer of the model, which checkpoints and model folders have too.

    d_k: width of queries and keys. n_features: number m of random features. seed: seed of the directions.
    """

    directions: Tensor

    def __init__(self, d_k: int, n_features: int = 256, *, seed: int = 0) -> None:
        super().__init__()
        self.register_buffer("directions", torch.empty(n_features, d_k))
        self.redraw(seed)

    def redraw(self, seed: int) -> None:
        """Draw new directions, as the paper does from time to time during a training (section 4.2)."""
        n_features, d_k = self.directions.shape
        if not self.directions.is_meta:  # there, it would take the memory that a model on it is without
            self.directions.copy_(orthogonal_directions(n_features, d_k, seed))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        """Attend under a mask that is "causal", or of padding, (B,1,1,S), in time linear in n.

        Another boolean mask costs n^2. There are no weights that could have dropout, and no scores to which a bias
        could be added: raises ValueError for a floating mask, such as the mask of `with_bias`.
        """
        is_causal = isinstance(mask, str)
        if not is_causal and mask.dtype != torch.bool:
            raise ValueError('mask: expected a boolean one, or "causal"; Performer has no scores, and can add no bias')
        scale = queries.size(-1) ** -0.25
        query_features = self._features(queries * scale, is_query=True)
        key_features = self._features(keys * scale, is_query=False)
        ones = torch.ones_like(values[..., :1])
        values = torch.cat([values, ones], dim=-1)  # the last column sums the weights
        if is_causal:
            sums = _causal_sums(query_features, key_features, values)
        elif mask.size(-2) == 1:
            sums = query_features @ (key_features.mT @ (values * mask.mT))
        else:
            sums = (query_features @ key_features.mT * mask) @ values
        return sums[..., :-1] / sums[..., -1:].clamp(min=torch.finfo(sums.dtype).tiny)  # 0 without a visible key

    def _features(self, x: Tensor, *, is_query: bool) -> Tensor:
        """Return phi(x) of (B,H,S,K), times a factor that cancels in the quotient: (B,H,S,m).

        The factor of a query is one over its largest feature. The factor of keys must be the same for all of them, and
        must not depend on later keys: the exponent is at most |w|^2 / 2, a limit that no key changes.
        """
        exponents = x @ self.directions.T - x.square().sum(dim=-1, keepdim=True) / 2
        if is_query:
            return (exponents - exponents.amax(dim=-1, keepdim=True).detach()).exp()
        limit = self.directions.square().sum(dim=-1).amax() / 2
        return (exponents - (limit - LARGEST).clamp(min=0)).exp()


class PerformerGPT2(GPT2):
    """GPT-2 with this attention, whose directions all heads and layers share."""

    def __init__(self, config: PerformerConfig) -> None:
        super().__init__(config.gpt2)
        self.performer = Performer(config.d_model // config.n_heads, config.n_features)

    def states(self, ids: Tensor, past: Past = NO_PAST, attention: Attention | None = None) -> tuple[Tensor, Past]:
        return super().states(ids, past, attention or self.performer)


def orthogonal_directions(n_features: int, d_k: int, seed: int) -> Tensor:
    """Return rows w (m,K), each of a normal distribution, and orthogonal within groups of K (section 2.4)."""
    generator = torch.Generator().manual_seed(seed)
    n_groups = -(-n_features // d_k)
    q, r = torch.linalg.qr(torch.randn(n_groups, d_k, d_k, generator=generator))
    rows = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]).mT.flatten(
        0, 1
    )  # with these signs, uniform on the sphere
    lengths = torch.randn(n_features, d_k, generator=generator).norm(dim=-1, keepdim=True)
    return rows[:n_features] * lengths


def _causal_sums(query_features: Tensor, key_features: Tensor, values: Tensor) -> Tensor:
    """Return for each query the sum of values times weights over the keys up to its own: (B,H,S,W).

    The sums over all blocks before the query's block come from products of features; within its block there are
    weights.
    """
    state = values.new_zeros(*values.shape[:2], key_features.size(-1), values.size(-1))  # (B,H,m,W)
    sums = []
    blocks = (x.split(BLOCK, dim=2) for x in (query_features, key_features, values))
    for queries, keys, part in zip(*blocks, strict=True):
        weights = queries @ keys.mT * causal(queries.size(2), queries.size(2), queries.device)
        sums.append(queries @ state + weights @ part)
        state = state + keys.mT @ part
    return torch.cat(sums, dim=2)
