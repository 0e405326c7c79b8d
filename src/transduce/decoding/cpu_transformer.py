"""The Transformer for translation on a CPU: weights packed once, no padding, a cache that is never copied.

`CpuTransformer` has the interface of `Transformer` that the search uses, and returns the same logits: equal but for
rounding in fp32, and approximately equal in bf16 and int8. It differs in how it computes them. The tokens of all
sentences are rows of one matrix. Every attention, of encoder, decoder and across, is one kernel that finds its keys and
values by an index.

Letters as in transformer.py; R rows of all tokens of all source sentences, N rows of a decoding step.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.decoding.compiled_stack import CompiledStack, Sizes, StackLayer
from transduce.decoding.cpu_cache import CpuCache, Tables, sources
from transduce.decoding.decoder import reordered
from transduce.decoding.kernels import PLAIN, Compiled, Kernels, Packed, Visible, compiled
from transduce.model.attention import MultiHeadAttention
from transduce.model.cpu_backend import has_fast_bf16
from transduce.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual, Transformer

Precision = Literal["fp32", "bf16", "int8"]

# x (m, k), True to apply relu, a residual (m, n) to add or None -> (m, n)
Linear = Callable[[Tensor, bool, Tensor | None], Tensor]


@dataclass(frozen=True)
class PackedLinear:
    """Linear layers by the product of the kernels."""

    kernels: Kernels
    packed: Packed

    def __call__(self, x: Tensor, relu: bool, residual: Tensor | None) -> Tensor:
        return self.kernels.linear(x, self.packed, relu=relu, residual=residual)


def pack_linear(layers: Sequence[nn.Linear], precision: Precision, kernels: Kernels) -> Linear:
    """Return one function for linear layers of one input, with their outputs side by side."""
    weight = torch.cat([layer.weight.detach().float() for layer in layers])
    biases = [layer.bias if layer.bias is not None else weight.new_zeros(layer.out_features) for layer in layers]
    bias = torch.cat([one.detach().float() for one in biases])
    if precision == "int8" or (precision == "fp32" and isinstance(kernels, Compiled)):
        return PackedLinear(kernels, kernels.pack(weight, bias, int8=precision == "int8"))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    weight, bias = weight.to(dtype), bias.to(dtype)
    if weight.device.type != "cpu" or (precision == "bf16" and not has_fast_bf16(weight.device)):

        def linear_of_torch(x: Tensor, relu: bool, residual: Tensor | None) -> Tensor:
            y = F.linear(x.to(dtype), weight, bias)
            y = (y.relu() if relu else y).float()
            return y if residual is None else y + residual

        return linear_of_torch
    onednn = torch.ops.mkldnn  # in fp32 twice as fast as MKL on some machines, and slower on none that was measured
    packed = onednn._reorder_linear_weight(weight, 256)

    def linear(x: Tensor, relu: bool, residual: Tensor | None) -> Tensor:
        n_missing = round_up(len(x)) - len(x)
        rows = F.pad(x.to(dtype), (0, 0, 0, n_missing)) if n_missing else x.to(dtype)
        y = onednn._linear_pointwise(rows, packed, bias, "relu" if relu else "none", [], "").float()
        y = y[: len(x)] if n_missing else y
        return y if residual is None else y + residual

    return linear


def round_up(rows: int) -> int:
    """Return the next number that is a multiple of a power of two at most an eighth of it.

    oneDNN compiles code for every number of rows and keeps it, half a megabyte each. The lines of a file would have
    hundreds of them.
    """
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


class _Attention:
    """Multi-head attention over rows. Self-attention gets queries, keys and values from one product."""

    def __init__(self, layer: MultiHeadAttention, precision: Precision, kernels: Kernels, *, cross: bool) -> None:
        self.kernels = kernels
        self.n_heads = layer.n_heads
        self.widths = [part.out_features for part in (layer.w_q, layer.w_k, layer.w_v)]  # H*K, H*K, H*W
        first = [layer.w_q] if cross else [layer.w_q, layer.w_k, layer.w_v]
        self.project = pack_linear(first, precision, kernels)
        self.project_memory = pack_linear([layer.w_k, layer.w_v], precision, kernels) if cross else None
        self.w_o = pack_linear([layer.w_o], precision, kernels)

    def __call__(self, queries: Tensor, keys_values: Tensor, visible: Visible, residual: Tensor) -> Tensor:
        """Return residual (N, D) plus the attention of queries (N, H*K) over rows of keys_values (R, H*K + H*W)."""
        keys, values = keys_values.split(self.widths[1:], dim=1)
        heads = self.kernels.attend(queries, keys, values, visible, self.n_heads)
        return self.w_o(heads, False, residual)


class _Norm:
    """A residual connection's norm: `before` its sub-layer or `after` the sum; the other one changes nothing."""

    def __init__(self, residual: Residual, kernels: Kernels) -> None:
        self.layer = cast(nn.LayerNorm, residual.norm)
        self.post = residual.post
        norm = partial(kernels.norm, layer=self.layer)
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
        self.w_1 = pack_linear([feed_forward.w_1], precision, kernels)
        self.relu = feed_forward.activation is F.relu
        self.activation = _same if self.relu else feed_forward.activation
        self.w_2 = pack_linear([feed_forward.w_2], precision, kernels)
        self.norms = [_Norm(cast(Residual, residual), kernels) for residual in layer.residuals]

    def packed(self) -> StackLayer:
        """Return the weights for a `CompiledStack`."""
        own, cross = self.self_attention, self.cross_attention
        linears = own.project, own.w_o, cross and cross.project, cross and cross.w_o, self.w_1, self.w_2
        packed = [one.packed if isinstance(one, PackedLinear) else None for one in linears]
        return StackLayer(*packed, norms=[norm.layer for norm in self.norms])  # pyright: ignore[reportArgumentType]

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries (N, H*K), and the keys and values (N, H*K + H*W), of self-attention over x (N, D)."""
        attention = self.self_attention
        projected = attention.project(self.norms[0].before(x), False, None)
        return projected[:, : attention.widths[0]], projected[:, attention.widths[0] :]

    def attend_self(self, x: Tensor, queries: Tensor, keys_values: Tensor, visible: Visible) -> Tensor:
        """Return the output (N, D) of the self-attention sub-layer."""
        return self.norms[0].after(self.self_attention(queries, keys_values, visible, x))

    def attend_cross(self, x: Tensor, cross: Tensor, visible: Visible) -> Tensor:
        """Return the output (N, D) of the cross-attention sub-layer over the rows of `cross` (R, H*K + H*W)."""
        attention = self.cross_attention
        assert attention is not None
        queries = attention.project(self.norms[1].before(x), False, None)
        return self.norms[1].after(attention(queries, cross, visible, x))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Return the output (N, D) of the feed-forward sub-layer."""
        norm = self.norms[-1]
        inner = self.activation(self.w_1(norm.before(x), self.relu, None))
        return norm.after(self.w_2(inner, False, x))


LEAST_ROOM = 256  # rows of a new table: more than one sentence needs in most searches


class CpuTransformer:
    """A trained `model`, ready to translate in `precision` on a CPU.

    kernels: None takes the compiled ones if this machine can compile and run them, else those in torch.
    """

    def __init__(self, model: Transformer, precision: Precision, kernels: Kernels | None = None) -> None:
        self.kernels = kernels or compiled() or PLAIN
        self.config = model.config
        self.model = model
        self.device = model.output.weight.device
        layers = cast(Iterable[EncoderLayer], model.encoder), cast(Iterable[DecoderLayer], model.decoder)
        self.encoder, self.decoder = ([_Layer(one, precision, self.kernels) for one in stack] for stack in layers)
        self.output = pack_linear([model.output], precision, self.kernels)
        self.positions = model.positions(0, model.config.max_positions or 256)  # (positions, D)
        self.tgt_embedding = model.tgt_embedding.weight, math.sqrt(model.config.d_model)  # (V, D), and its scale
        self.stacks = self._stacks()

    def _stacks(self) -> tuple[CompiledStack, CompiledStack] | None:
        """Return the layers of encoder and decoder as one call each; None where the compiled kernels lack a part."""
        kernels = self.kernels
        if not isinstance(kernels, Compiled) or not isinstance(self.output, PackedLinear):
            return None
        if not all(layer.relu for layer in (*self.encoder, *self.decoder)):
            return None
        attention, first = self.encoder[0].self_attention, self.encoder[0]
        query, _, value = attention.widths
        heads, post = attention.n_heads, first.norms[0].post
        sizes = Sizes(self.config.d_model, self.config.d_ff, heads, query // heads, value // heads, post)
        ends = (self.encoder, self.model.encoder_norm), (self.decoder, self.model.decoder_norm)
        encoder, decoder = (
            CompiledStack(kernels, [layer.packed() for layer in layers], last, sizes) for layers, last in ends
        )
        return encoder, decoder

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Return the memory (R,D) of token ids (B,S) with mask (B,S): rows for the real tokens of all sentences."""
        x = self._embed(self.model.src_embedding, src, 0)[src_mask]
        visible = sources(src_mask)
        visible = Visible(visible.rows, visible.lengths, visible.row_of_query.repeat_interleave(visible.lengths))
        if self.stacks is not None:
            return self.stacks[0].encode(x, visible)
        for layer in self.encoder:
            x = layer.feed_forward(layer.attend_self(x, *layer.project(x), visible))
        return self._last_norm(x, self.model.encoder_norm)

    def start(self, memory: Tensor, src_mask: Tensor) -> CpuCache:
        """Return the cache of a decoding of `memory` (R,D) before its first token: one row for each sentence."""
        n, source = len(src_mask), sources(src_mask)
        past, ages = torch.empty(n, 0, dtype=torch.int32), torch.zeros(n, dtype=torch.int32)
        room = max(n * src_mask.size(1), LEAST_ROOM)  # for as many steps as the longest source has tokens
        tables, free = Tables.empty(room, self.table_widths), torch.arange(room, dtype=torch.int32)
        return CpuCache(tables, free, 0, past, ages, 0, Tables(self.keys_values(memory)), source)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values (R, H*K + H*W) of `memory` (R,D) for the cross-attention of each layer."""
        attentions = [layer.cross_attention for layer in self.decoder]
        return tuple(one.project_memory(memory, False, None) for one in attentions if one and one.project_memory)

    def decode_step(self, ids: Tensor, cache: CpuCache) -> tuple[Tensor, CpuCache]:
        """Return the logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it."""
        decoded, cache = self.decode(ids, cache)
        return self.output(decoded, False, None), cache

    def decode(self, ids: Tensor, cache: CpuCache) -> tuple[Tensor, CpuCache]:
        """Return the decoder's output (N,D) after one more token `ids` (N,) for each row, and the cache with it.

        `log_probs` and `best` turn the output into log-probabilities.
        """
        n = ids.numel()
        cache = cache.with_room(n)
        if cache.length >= self.positions.size(0):
            cache = cache.gathered()  # for its exact length
        positions = self._positions(cache.length + 1)
        if self.stacks is not None:
            return self.stacks[1].decode_step(ids, self.tgt_embedding, positions, cache)
        cache = cache.gathered()
        ages, added = cache.ages, cache.free[cache.written : cache.written + n].long()
        past = F.pad(cache.past, (0, 1))
        past[torch.arange(n), ages.long()] = added.int()
        matrix, scale = self.tgt_embedding
        x = F.embedding(ids, matrix) * scale + positions[ages.long()]
        visible = Visible(past, ages + 1, torch.arange(n, dtype=torch.int32))
        x = self.through(x, cache.tables.layers, added, visible, cache.cross.layers, cache.source)
        return x, cache._replace(written=cache.written + n, past=past, ages=ages + 1, length=past.size(1))

    def logits(self, decoded: Tensor) -> Tensor:
        """Return the logits (N,V) of all tokens by the decoder's output (N,D)."""
        return self.output(decoded, False, None)

    def log_probs(self, decoded: Tensor) -> Tensor:
        """Return the log-probabilities (N,V) of all tokens by the decoder's output (N,D)."""
        return self.logits(decoded).log_softmax(dim=-1)

    @property
    def packed_output(self) -> tuple[Compiled, Packed] | None:
        """The compiled kernels, and the output matrix packed for them; None where other ones compute the logits."""
        if isinstance(self.kernels, Compiled) and isinstance(self.output, PackedLinear):
            return self.kernels, self.output.packed
        return None

    def best(self, decoded: Tensor, count: int, barred: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and ids of the most likely tokens by the decoder's output; see `Decoder`."""
        if isinstance(self.kernels, Compiled) and isinstance(self.output, PackedLinear):
            return self.kernels.best_of(decoded, self.output.packed, count, barred)
        logits = self.logits(decoded)
        return reordered(*self.kernels.best(logits, min(count + len(barred), logits.size(1))), count, barred)

    @property
    def table_widths(self) -> list[int]:
        """H*K + H*W of each layer of the decoder."""
        return [sum(layer.self_attention.widths[1:]) for layer in self.decoder]

    def through(
        self,
        x: Tensor,
        tables: Sequence[Tensor],
        new: slice | Tensor,
        visible: Visible,
        cross: Sequence[Tensor],
        source: Visible,
    ) -> Tensor:
        """Return the decoder's output (N,D) for embedded tokens (N,D); `output` turns it into logits.

        The keys and values of the tokens are written to the rows `new` of `tables`. The tokens attend to the rows
        `visible` of `tables` and to the rows `source` of `cross`.
        """
        for layer, table, memory in zip(self.decoder, tables, cross, strict=True):
            queries, keys_values = layer.project(x)
            table[new] = keys_values.to(table.dtype)
            x = layer.attend_self(x, queries, table, visible)
            x = layer.feed_forward(layer.attend_cross(x, memory, source))
        return self._last_norm(x, self.model.decoder_norm)

    def _last_norm(self, x: Tensor, layer: nn.Module) -> Tensor:
        return self.kernels.norm(x, layer) if isinstance(layer, nn.LayerNorm) else x

    def _embed(self, embedding: nn.Embedding, ids: Tensor, start: int) -> Tensor:
        end = start + ids.size(1)
        positions = self._positions(end)[start:end]
        return F.embedding(ids, embedding.weight) * math.sqrt(self.config.d_model) + positions

    def _positions(self, end: int) -> Tensor:
        """Return a table of at least `end` positions, (positions, D)."""
        positions = self.positions  # read once: another thread may replace it by a table of another length
        if end > len(positions):
            positions = self.positions = self.model.positions(0, end)
        return positions
