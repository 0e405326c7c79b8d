"""Positions of a decoder: how a model knows the order of its tokens, one class for each way.

    Positions     none; only the causal mask tells the order
    Sinusoids     added to the embedding (Vaswani et al. 2017, 3.5)
    Learned       a learned row for each position, added to the embedding
    Rotary        queries and keys rotated (Su et al. 2021); `family/rope.py` has the frequencies
    Alibi         score - slope * distance (Press et al. 2021)
    Bucketed      score + a learned number for each head and bucket of distances (Raffel et al. 2020, 2.1)
    Shaw          learned vectors for each distance, added to keys and to values (Shaw et al. 2018, 3.2)
    Skewed        the same added to keys, of each head, in the way of Music Transformer (Huang et al. 2018, 3.4)

`family/decoder_only.py` has the decoder that takes one of these. Transformer-XL is in `family/transformer_xl.py`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.attention_wrappers import with_bias, with_rotation
from transduce.family.relative_bias import RelativeBias
from transduce.family.rope import UNSCALED, Rope
from transduce.model.attention import Attention, Mask, attention_weights, fast_attention
from transduce.model.dropout import dropout as drop
from transduce.model.positions import SinusoidalPositions

WithCache = Callable[[Attention], Attention]  # `attention_wrappers.with_cache` of a layer, without its last argument


class Positions(nn.Module):
    """No positions (Kazemnejad et al. 2023), and what the other classes may replace."""

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return embeddings (N,T,D) with what depends on their positions, (T,) or (N,T)."""
        return x

    def attention_of(self, layer: int, cache: WithCache, positions: Tensor, n_keys: int) -> Attention:
        """Return the attention function of a layer: of the new positions, over `n_keys` positions so far."""
        return cache(fast_attention)


class Sinusoids(Positions):
    """The sinusoids of 2017, times `scale`.

    In 2017 embeddings have the deviation 1 after their factor sqrt(d_model). In `DecoderOnly` they have 0.02, and no
    factor, so that the sinusoids times 0.02 have the same proportion to them.
    """

    def __init__(self, d_model: int, scale: float = 0.02) -> None:
        super().__init__()
        self.sinusoids, self.scale = SinusoidalPositions(d_model), scale

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.scale * self.sinusoids(0, int(positions.max()) + 1)[positions]


class Learned(Positions):
    """A learned row for each of `n_positions`."""

    def __init__(self, n_positions: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_positions, d_model)

    def add_to(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)


class Rotary(Positions):
    """RoPE. d_k: the width of a head. A trained model may get another `rope`, with scaled frequencies."""

    def __init__(self, d_k: int, rope: Rope = UNSCALED) -> None:
        super().__init__()
        self.d_k, self.rope = d_k, rope

    def attention_of(self, layer: int, cache: WithCache, positions: Tensor, n_keys: int) -> Attention:
        angles = self.rope.angles(positions, self.d_k)
        return with_rotation(angles, cache(fast_attention), amplitude=self.rope.amplitude)


def distances(n_queries: int, n_keys: int, device: torch.device | str = "cpu") -> Tensor:
    """Return key - query, (T,S), of the last T of S positions."""
    keys = torch.arange(n_keys, device=device)
    return keys - keys[n_keys - n_queries :, None]


def alibi_slopes(n_heads: int) -> list[float]:
    """Return 2^(-8i/H) for i from 1 to H.

    Where H is no power of two: the slopes for the next lower power, then every other one for its double.
    """
    power = 1 << (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    return slopes + [2 ** (-4 * i / power) for i in range(1, 2 * (n_heads - power), 2)]


class Alibi(Positions):
    """Attention with linear biases: slope * (key - query) is added to the scores. Nothing is learned."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.slopes = nn.Buffer(torch.tensor(alibi_slopes(n_heads)), persistent=False)

    def attention_of(self, layer: int, cache: WithCache, positions: Tensor, n_keys: int) -> Attention:
        away = distances(positions.size(-1), n_keys, positions.device)
        return cache(with_bias(self.slopes[:, None, None] * away))


class Bucketed(Positions):
    """The relative bias of T5, one table for all layers."""

    def __init__(self, n_heads: int, *, n_buckets: int = 32, longest: int = 128) -> None:
        super().__init__()
        self.bias = RelativeBias(n_heads, is_causal=True, n_buckets=n_buckets, longest=longest)

    def attention_of(self, layer: int, cache: WithCache, positions: Tensor, n_keys: int) -> Attention:
        return cache(with_bias(self.bias(positions.size(-1), n_keys)))


class Shaw(Positions):
    """Learned vectors for the distances up to `reach`, of each layer, shared by its heads.

    d_k: the width of the keys and of the values of a head.
    """

    def __init__(self, n_layers: int, d_k: int, *, reach: int = 16) -> None:
        super().__init__()
        self.to_keys = nn.Parameter(0.02 * torch.randn(n_layers, 2 * reach + 1, d_k))
        self.to_values = nn.Parameter(0.02 * torch.randn(n_layers, 2 * reach + 1, d_k))

    def attention_of(self, layer: int, cache: WithCache, positions: Tensor, n_keys: int) -> Attention:
        return cache(relative_attention(self.to_keys[layer], self.to_values[layer]))


def relative_attention(to_keys: Tensor, to_values: Tensor | None = None) -> Attention:
    """Return the attention of Shaw et al. (2018, eq. 3 and 4).

        e_ij = q_i (k_j + a_(j-i)) / sqrt(K)        z_i = sum_j softmax(e_i)_j (v_j + b_(j-i))

    to_keys: a, (2R+1,K), whose row r is for the distance r - R; distances beyond R have the last rows. to_values: b,
    (2R+1,W); None: without it.
    """
    reach = len(to_keys) // 2

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        n_queries, n_keys = queries.size(2), keys.size(2)
        rows = distances(n_queries, n_keys, queries.device).clamp(-reach, reach) + reach
        rows = rows.expand(*queries.shape[:3], n_keys)  # (B,H,T,S)
        bias = (queries @ to_keys.T / math.sqrt(queries.size(-1))).gather(-1, rows)

        def weigh(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
            weights = attention_weights(queries, keys, mask)
            weights = drop(weights, dropout) if dropout else weights
            if to_values is None:
                return weights @ values
            by_distance = weights.new_zeros(*weights.shape[:3], 2 * reach + 1).scatter_add(-1, rows, weights)
            return weights @ values + by_distance @ to_values

        return with_bias(bias, weigh)(queries, keys, values, mask, dropout)

    return attend


class Skewed(Positions):
    """Learned vectors for all distances, of each layer and head: the relative attention of Music Transformer.

        e_ij = q_i (k_j + a_(j-i)) / sqrt(K)

    The last row of a table is for the distance 0, the one before it for -1, and so on.
    """

    def __init__(self, n_layers: int, n_heads: int, n_positions: int, d_k: int) -> None:
        super().__init__()
        self.to_keys = nn.Parameter(0.02 * torch.randn(n_layers, n_heads, n_positions, d_k))

    def attention_of(self, layer: int, cache: WithCache, positions: Tensor, n_keys: int) -> Attention:
        def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
            by_distance = queries @ self.to_keys[layer, :, -n_keys:].mT / math.sqrt(queries.size(-1))
            return with_bias(skewed(by_distance))(queries, keys, values, mask, dropout)

        return cache(attend)


def skewed(by_distance: Tensor) -> Tensor:
    """Return x (B,H,T,S) of which x_ij is for key j, from numbers for the distances -(S-1) to 0.

    The queries are the last T of S positions. Row i moves to the left by T-1-i, as the rows of the flat numbers do when
    they lose one column. Keys after the query get meaningless numbers, which the causal mask hides.
    """
    n_queries = by_distance.size(-2)
    return F.pad(by_distance, (1, 0)).flatten(-2)[..., n_queries:].unflatten(-1, (n_queries, -1))
