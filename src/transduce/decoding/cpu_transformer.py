"""The Transformer for translation on a CPU: weights packed once, no padding, a cache that is never copied.

It has the interface of `model.Transformer` that the search uses, and its answers: exactly in fp32 but for rounding, and
in int8 about. What differs is how: tokens of all sentences lie one below the other, and every attention, of encoder,
decoder and across, is one kernel that finds its keys and values by an index.

Letters as in model.py; R rows of all tokens of all source sentences, N rows of a decoding step.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.decoding.kernels import PLAIN, Kernels, compiled
from transduce.model.attention import MultiHeadAttention
from transduce.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual, Transformer

Precision = Literal["fp32", "bf16", "int8"]

# x (m, k), whether relu follows, a residual (m, n) to add -> (m, n)
Linear = Callable[[Tensor, bool, Tensor | None], Tensor]


def _linear(parts: Sequence[nn.Linear], precision: Precision, kernels: Kernels) -> Linear:
    """Linear layers of one input as one, their outputs side by side."""
    weight = torch.cat([part.weight.detach().float() for part in parts])
    biases = [part.bias if part.bias is not None else weight.new_zeros(part.out_features) for part in parts]
    bias = torch.cat([one.detach().float() for one in biases])
    if precision == "int8":
        int8 = kernels.pack(weight, bias)
        return lambda x, relu, residual: kernels.linear(x, int8, relu=relu, residual=residual)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    weight, bias = weight.to(dtype), bias.to(dtype)
    if weight.device.type != "cpu":

        def on_device(x: Tensor, relu: bool, residual: Tensor | None) -> Tensor:
            y = F.linear(x.to(dtype), weight, bias)
            y = (y.relu() if relu else y).float()
            return y if residual is None else y + residual

        return on_device
    onednn = torch.ops.mkldnn  # in fp32 twice as fast as MKL on some machines, and not slower on any we know
    packed = onednn._reorder_linear_weight(weight, 256)

    def linear(x: Tensor, relu: bool, residual: Tensor | None) -> Tensor:
        rows, missing = x.to(dtype), round_up(len(x)) - len(x)
        rows = F.pad(rows, (0, 0, 0, missing)) if missing else rows
        y = onednn._linear_pointwise(rows, packed, bias, "relu" if relu else "none", [], "").float()
        y = y[: len(x)] if missing else y
        return y if residual is None else y + residual

    return linear


def round_up(rows: int) -> int:
    """The next number that is a multiple of a power of two at most an eighth of it.

    oneDNN makes code for every number of rows that it meets and keeps it, half a megabyte each: over the lines of a
    file these would be hundreds.
    """
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


class _Attention:
    """Multi-head attention in rows: queries, keys and values of self-attention from one product."""

    def __init__(self, layer: MultiHeadAttention, precision: Precision, kernels: Kernels, *, cross: bool) -> None:
        self.kernels, self.n_heads = kernels, layer.n_heads
        self.widths = [part.out_features for part in (layer.w_q, layer.w_k, layer.w_v)]  # H*K, H*K, H*W
        first = [layer.w_q] if cross else [layer.w_q, layer.w_k, layer.w_v]
        self.project = _linear(first, precision, kernels)
        self.project_memory = _linear([layer.w_k, layer.w_v], precision, kernels) if cross else None
        self.w_o = _linear([layer.w_o], precision, kernels)

    def __call__(self, queries: Tensor, keys_values: Tensor, seen: "Seen", residual: Tensor) -> Tensor:
        """queries (N, H*K) over the rows of keys_values (R, H*K + H*W) that each has `seen`; plus residual (N, D)."""
        keys, values = keys_values.split(self.widths[1:], dim=1)
        heads = self.kernels.attend(queries, keys, values, seen.index, seen.lengths, seen.which, self.n_heads)
        return self.w_o(heads, False, residual)


@dataclass(frozen=True)
class Seen:
    """The rows that each of N queries may attend to: index[j, :lengths[j]], j = which[i], all int32.

    The tokens of a sentence share its line of the index: one for each of n tokens would be n x n.
    """

    index: Tensor  # (M, T)
    lengths: Tensor  # (M,)
    which: Tensor  # (N,)

    def __getitem__(self, rows: Tensor) -> "Seen":
        return replace(self, which=self.which[rows])


class _Norm:
    """A residual connection's norm, before its sub-layer or after the sum."""

    def __init__(self, residual: Residual) -> None:
        layer = cast(nn.LayerNorm, residual.norm)
        shape, weight, bias, eps = layer.normalized_shape, layer.weight, layer.bias, layer.eps

        def norm(x: Tensor) -> Tensor:  # what else calling a module does takes as long, where rows are few
            return torch.layer_norm(x, shape, weight, bias, eps)

        self.before, self.after = (_same, norm) if residual.post else (norm, _same)


def _same(x: Tensor) -> Tensor:
    return x


class _Layer:
    """A layer of the encoder or of the decoder."""

    def __init__(self, layer: EncoderLayer | DecoderLayer, precision: Precision, kernels: Kernels) -> None:
        decoder = isinstance(layer, DecoderLayer)
        self.self_attention = _Attention(layer.self_attention, precision, kernels, cross=False)
        self.cross_attention = _Attention(layer.cross_attention, precision, kernels, cross=True) if decoder else None
        feed_forward = cast(FeedForward, layer.feed_forward)
        self.w_1 = _linear([feed_forward.w_1], precision, kernels)
        self.relu = feed_forward.activation is F.relu
        self.activation = _same if self.relu else feed_forward.activation
        self.w_2 = _linear([feed_forward.w_2], precision, kernels)
        self.norms = [_Norm(cast(Residual, residual)) for residual in layer.residuals]

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, D) -> what self-attention makes of it: queries (N, H*K), and keys and values (N, H*K + H*W)."""
        attention = self.self_attention
        projected = attention.project(self.norms[0].before(x), False, None)
        return projected[:, : attention.widths[0]], projected[:, attention.widths[0] :]

    def attend_self(self, x: Tensor, queries: Tensor, keys_values: Tensor, seen: Seen) -> Tensor:
        return self.norms[0].after(self.self_attention(queries, keys_values, seen, x))

    def attend_cross(self, x: Tensor, cross: Tensor, seen: Seen) -> Tensor:
        attention = self.cross_attention
        assert attention is not None
        queries = attention.project(self.norms[1].before(x), False, None)
        return self.norms[1].after(attention(queries, cross, seen, x))

    def feed_forward(self, x: Tensor) -> Tensor:
        norm = self.norms[-1]
        inner = self.activation(self.w_1(norm.before(x), self.relu, None))
        return norm.after(self.w_2(inner, False, x))


@dataclass(frozen=True)
class PackedCache:
    """What a decoding step needs of the steps before it, for N rows.

    Every step writes the projections of its rows below those of earlier steps, in tables that grow; `past` says which
    of them lead to each row, so that nothing is copied when rows are selected, repeated or dropped. A cache is
    therefore good for one step: the next one writes where this one would have.
    """

    tables: list[Tensor]  # for each layer (rows, H*K + H*W): keys and values of all steps
    written: int  # rows in use
    past: Tensor  # (N, t) int32, which of them are the tokens so far of each row
    cross: tuple[Tensor, ...]  # for each layer (R, H*K + H*W)
    source: Seen  # the rows of `cross` that belong to each of the N rows

    @property
    def length(self) -> int:
        """t, the number of tokens decoded so far."""
        return self.past.size(1)

    def select(self, rows: Tensor, sentences: Tensor) -> "PackedCache":
        """The cache whose row i goes on from row rows[i] of this one."""
        return replace(self, past=self.past[rows], source=self.source[rows])


class PackedTransformer:
    """A trained `model`, ready to translate in `precision` on a CPU.

    kernels: None takes the compiled ones if they can be had, else those in torch.
    """

    def __init__(self, model: Transformer, precision: Precision, kernels: Kernels | None = None) -> None:
        self.kernels = kernels or compiled() or PLAIN
        self.config, self.model, self.device = model.config, model, model.output.weight.device
        layers = cast(Iterable[EncoderLayer], model.encoder), cast(Iterable[DecoderLayer], model.decoder)
        self.encoder, self.decoder = ([_Layer(one, precision, self.kernels) for one in stack] for stack in layers)
        self.output = _linear([model.output], precision, self.kernels)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Token ids (B,S) with mask (B,S) -> memory (R,D), the real tokens of all sentences one below the other."""
        x = self._embed(self.model.src_embedding, src, 0)[src_mask]
        seen = _sources(src_mask)
        seen = seen[seen.which.repeat_interleave(seen.lengths)]
        for layer in self.encoder:
            x = layer.feed_forward(layer.attend_self(x, *layer.project(x), seen))
        return self.model.encoder_norm(x)

    def start(self, memory: Tensor, src_mask: Tensor) -> PackedCache:
        """The cache of a decoding of `memory` (R,D) before its first token: one row for each sentence."""
        nothing = torch.empty(len(src_mask), 0, dtype=torch.int32)
        return PackedCache([], 0, nothing, self.keys_values(memory), _sources(src_mask))

    def keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:
        """What the cross-attention of each layer makes of `memory` (R,D): keys and values (R, H*K + H*W)."""
        attentions = [layer.cross_attention for layer in self.decoder]
        return tuple(one.project_memory(memory, False, None) for one in attentions if one and one.project_memory)

    def decode_step(self, ids: Tensor, cache: PackedCache) -> tuple[Tensor, PackedCache]:
        """The logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it."""
        n, begin, length = len(ids), cache.written, cache.length + 1
        x = self._embed(self.model.tgt_embedding, ids[:, None], cache.length)[:, 0]
        new = torch.arange(begin, begin + n, dtype=torch.int32)
        past = torch.cat([cache.past, new[:, None]], dim=1)
        seen = Seen(past, torch.full((n,), length, dtype=torch.int32), torch.arange(n, dtype=torch.int32))
        room = n * cache.source.index.size(1)  # for as many steps as the longest source has tokens
        tables = cache.tables or [x.new_empty(room, width) for width in self.table_widths]
        tables = [_with_room(table, begin + n) for table in tables]
        x = self.through(x, tables, slice(begin, begin + n), seen, cache.cross, cache.source)
        return self.output(x, False, None), PackedCache(tables, begin + n, past, cache.cross, cache.source)

    @property
    def table_widths(self) -> list[int]:
        """H*K + H*W of each layer of the decoder."""
        return [sum(layer.self_attention.widths[1:]) for layer in self.decoder]

    def through(
        self,
        x: Tensor,
        tables: Sequence[Tensor],
        new: slice | Tensor,
        seen: Seen,
        cross: Sequence[Tensor],
        source: Seen,
    ) -> Tensor:
        """Embedded tokens (N,D) through the decoder -> (N,D), which `output` turns into logits.

        Their keys and values are written to the rows `new` of `tables`, of which they may attend to those `seen`, and
        of `cross` to those of `source`.
        """
        for layer, table, memory in zip(self.decoder, tables, cross, strict=True):
            queries, keys_values = layer.project(x)
            table[new] = keys_values.to(table.dtype)
            x = layer.attend_self(x, queries, table, seen)
            x = layer.feed_forward(layer.attend_cross(x, memory, source))
        return self.model.decoder_norm(x)

    def _embed(self, embedding: nn.Embedding, ids: Tensor, start: int) -> Tensor:
        positions = self.model.positions(start, start + ids.size(1))
        return F.embedding(ids, embedding.weight) * math.sqrt(self.config.d_model) + positions


def _sources(src_mask: Tensor) -> Seen:
    """The rows of each of B sentences, for one query each."""
    lengths = src_mask.sum(1)
    index = (lengths.cumsum(0) - lengths)[:, None] + torch.arange(src_mask.size(1))
    return Seen(index.int().contiguous(), lengths.int(), torch.arange(len(src_mask), dtype=torch.int32))


def _with_room(table: Tensor, rows: int) -> Tensor:
    """The table, or a larger one that begins with it."""
    if rows <= len(table):
        return table
    larger = table.new_empty(max(rows, 2 * len(table)), table.size(1))
    larger[: len(table)] = table
    return larger
