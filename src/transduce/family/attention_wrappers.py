"""Functions around the attention function: what the descendants changed about attention, in a few lines each.

Each takes an attention function (`model.attention.Attention`) and returns another one, so that they compose. A layer of
Llama runs under `with_rotation(angles, with_cache(past, so_far, with_shared_heads()))`.

Letters as in `model/transformer.py`; S counts the positions so far, of which the last T are new.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.model.attention import Attention, Mask, fast_attention
from transduce.model.transformer import KeysValues


def with_cache(past: KeysValues | None, so_far: list[KeysValues], attention: Attention = fast_attention) -> Attention:
    """Attend also to the keys and values of earlier positions, `past`, and append the keys and values of all positions
    to `so_far`.

    The mask is (T,S), or broadcastable to (B,H,T,S).
    """

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
        so_far.append((keys, values))
        return attention(queries, keys, values, mask, dropout)

    return attend


def with_rotation(angles: Tensor, attention: Attention = fast_attention, *, amplitude: float = 1.0) -> Attention:
    """Rotate queries and keys by their positions: rotary position embedding (Su et al. 2021, eq. 14 and 34).

    angles: angles of the new positions, (T,K/2), or broadcastable to (B,H,T,K/2). The pair of the values i and i + K/2
    is rotated by angle i. amplitude: a factor of both, as YaRN has it. Outside of `with_cache`, so that the cache holds
    rotated keys.
    """
    rotate = rotation(angles, amplitude)

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        return attention(rotate(queries), rotate(keys), values, mask, dropout)

    return attend


def rotation(angles: Tensor, amplitude: float) -> Callable[[Tensor], Tensor]:
    """Return the function that rotates x (..., K) by the angles (..., K/2) of its positions; see `with_rotation`."""
    cos, sin = amplitude * angles.cos(), amplitude * angles.sin()

    def rotate(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    return rotate


def with_shared_heads(attention: Attention = fast_attention) -> Attention:
    """Let several heads of queries share one of keys and values (Shazeer 2019; Ainslie et al. 2023, 2.2).

    Head h of the queries attends to head h // (H / n_kv_heads).
    """

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        times = queries.size(1) // keys.size(1)
        keys, values = (x.repeat_interleave(times, dim=1) for x in (keys, values))
        return attention(queries, keys, values, mask, dropout)

    return attend


def with_bias(bias: Tensor, attention: Attention = fast_attention) -> Attention:
    """Add `bias` (H,T,S) to the scores where the mask is True (T5: Raffel et al. 2020, 2.1; ALiBi: Press et al. 2021).

    The scores are those after the division by sqrt(d_k).
    """

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        is_visible = explicit(mask, queries.size(2), keys.size(2), bias.device)
        masked_bias = torch.where(is_visible, bias, torch.finfo(bias.dtype).min)
        return attention(queries, keys, values, masked_bias, dropout)

    return attend


def without_scale(attention: Attention = fast_attention) -> Attention:
    """Do not divide the scores by sqrt(d_k). T5 starts with smaller W^Q instead."""

    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        return attention(queries * math.sqrt(queries.size(-1)), keys, values, mask, dropout)

    return attend


def causal(n_queries: int, n_keys: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the mask (T,S) of the last T of S positions: each sees itself and those before it.

    The mask "causal" is the same only for T = S.
    """
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


def explicit(mask: Mask, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """Return the mask as a tensor, for the last T of S positions."""
    return causal(n_queries, n_keys, device) if isinstance(mask, str) else mask


@dataclass(frozen=True)
class Past:
    """The positions so far of N rows, before which a row may have padding: a cache, and what it says about new ids.

    layers: keys (N,H,S,K) and values (N,H,S,W) of each layer; () before the first position.
    padding: (N,) of the S positions those at the beginning of each row that are not real; None: all are real.
    """

    layers: Sequence[KeysValues] = ()
    padding: Tensor | None = None

    @property
    def length(self) -> int:
        """The number S of positions so far, padding included."""
        return self.layers[0][0].size(2) if self.layers else 0

    def of_layer(self, number: int) -> KeysValues | None:
        """Return the keys and values of a layer; None before the first position."""
        return self.layers[number] if self.layers else None

    def places(self, ids: Tensor) -> tuple[Tensor, Mask]:
        """Return the positions of new ids (N,T), as (T,) or (N,T), and the mask under which they attend."""
        start, end = self.length, self.length + ids.size(1)
        positions = torch.arange(start, end, device=ids.device)
        if self.padding is None:
            return positions, causal(ids.size(1), end, ids.device) if start else "causal"
        is_real = torch.arange(end, device=ids.device) >= self.padding[:, None, None, None]  # (N,1,1,S+T)
        positions = (positions - self.padding[:, None]).clamp(min=0)
        return positions, causal(ids.size(1), end, ids.device) & is_real

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "Past":
        """Return the past whose row i is row rows[i] of this one. `sentences` has no effect."""
        layers = [(keys[rows], values[rows]) for keys, values in self.layers]
        return Past(layers, None if self.padding is None else self.padding[rows])


NO_PAST = Past()
