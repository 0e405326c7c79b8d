"""Layers of Transformers on a CPU: weights packed once, no padding. Translation and language models share them.

The tokens of all sentences are rows of one matrix. Every attention is one kernel that finds its keys and values by an
index, so no row depends on another one.

Letters as in `model/transformer.py`; R rows, G heads of keys and values.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.decoding.compiled_kernels import PackedLinear, StackLayer
from transduce.decoding.decoder import Best, reordered
from transduce.decoding.kernels import Kernels, Linear, Visible
from transduce.model.cpu_backend import HAS_ONEDNN, has_fast_bf16
from transduce.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual

Precision = Literal["fp32", "bf16", "int8"]
Rotation = Callable[[Tensor], Tensor]  # queries or keys (R,H,K) -> the same, turned by their positions


def pack_linear(layers: Sequence[nn.Linear], precision: Precision, kernels: Kernels) -> Linear:
    """Return one function for linear layers of one input, with their outputs side by side."""
    weight = torch.cat([layer.weight.detach().float() for layer in layers])
    biases = [layer.bias if layer.bias is not None else weight.new_zeros(layer.out_features) for layer in layers]
    bias = torch.cat([of_layer.detach().float() for of_layer in biases])
    if precision in kernels.precisions:
        return kernels.pack(weight, bias, int8=precision == "int8")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    weight, bias = weight.to(dtype), bias.to(dtype)
    if not (has_fast_bf16(weight.device) if precision == "bf16" else HAS_ONEDNN):

        def linear_of_torch(x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
            y = F.linear(x.to(dtype), weight, bias)
            y = (y.relu() if relu else y).float()
            return y if residual is None else y + residual

        return linear_of_torch
    onednn = torch.ops.mkldnn  # in fp32 twice as fast as MKL on some machines, and slower on none that was measured
    packed = onednn._reorder_linear_weight(weight, 256)

    def linear(x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
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


def packed_of(linear: Linear | None) -> PackedLinear | None:
    """Return the layer if it is packed for the compiled kernels, else None."""
    return linear if isinstance(linear, PackedLinear) else None


def best_of(output: Linear, kernels: Kernels) -> Best:
    """Return `Decoder.best` of the states (N,D) that the output matrix turns into logits."""
    packed = packed_of(output)
    return packed.best_of if packed else partial(_best_of_logits, output, kernels)


def _best_of_logits(
    output: Linear, kernels: Kernels, states: Tensor, count: int, barred: Sequence[int]
) -> tuple[Tensor, Tensor]:
    logits = output(states)
    return reordered(*kernels.best(logits, min(count + len(barred), logits.size(1))), count, barred)


def norm_of(norm: nn.Module, kernels: Kernels) -> Callable[[Tensor], Tensor]:
    """Return a norm of rows: layer norm by the kernels, another module as it is."""
    return partial(kernels.norm, layer=norm) if isinstance(norm, nn.LayerNorm) else norm


class CpuLayer:
    """A layer of an encoder, of a decoder, or of a language model.

    Queries, keys and values of self-attention are one product, and so are both inputs of a gated network.
    gate: the second input of a gated feed-forward network; None: the network is not gated.
    """

    def __init__(
        self,
        layer: EncoderLayer | DecoderLayer,
        precision: Precision,
        kernels: Kernels,
        gate: nn.Linear | None = None,
    ) -> None:
        pack = partial(pack_linear, precision=precision, kernels=kernels)
        attention, network = layer.self_attention, cast(FeedForward, layer.feed_forward)
        cross = layer.cross_attention if isinstance(layer, DecoderLayer) else None
        residuals = [cast(Residual, residual) for residual in layer.residuals]
        self.kernels = kernels
        self.n_heads = attention.n_heads
        self.n_kv_heads = attention.n_kv_heads
        projections = [attention.w_q, attention.w_k, attention.w_v]
        self.widths = [projection.out_features for projection in projections]  # H*K, G*K, G*W
        self.project = pack(projections)
        self.out = pack([attention.w_o])
        self.cross_query = pack([cross.w_q]) if cross else None
        self.cross_memory = pack([cross.w_k, cross.w_v]) if cross else None
        self.cross_out = pack([cross.w_o]) if cross else None
        self.is_gated = gate is not None
        self.relu = network.activation is F.relu and gate is None
        self.activation = network.activation
        self.inner = pack([network.w_1] if gate is None else [network.w_1, gate])
        self.outer = pack([network.w_2])
        self.norm_layers = [residual.norm for residual in residuals]
        self.norms = [norm_of(norm, kernels) for norm in self.norm_layers]
        self.post = residuals[0].post  # norms after the residual sums

    def packed(self) -> StackLayer | None:
        """Return the weights for a `CompiledStack`; None where the compiled kernels lack a part."""
        linears = [self.project, self.out, self.cross_query, self.cross_out, self.inner, self.outer]
        packed = [packed_of(linear) for linear in linears]
        is_whole = self.relu and packed.count(None) == linears.count(None)
        return StackLayer(packed, self.norm_layers) if is_whole else None

    def attend_self(
        self,
        x: Tensor,
        visible: Visible,
        table: Tensor | None = None,
        new: Tensor | slice = slice(None),
        rotate: Rotation | None = None,
    ) -> Tensor:
        """Return the output (R,D) of the self-attention sub-layer over x (R,D).

        The tokens see the rows `visible` of `table` (rows, G*K + G*W), whose rows `new` get their keys and values.
        None: they see one another. rotate: turns queries and keys by their positions.
        """
        projected = self.project(x if self.post else self.norms[0](x))
        queries, keys_values = projected[:, : self.widths[0]], projected[:, self.widths[0] :]
        if rotate is not None:
            queries, keys, values = projected.split(self.widths, dim=1)
            queries = rotate(queries.unflatten(1, (self.n_heads, -1))).flatten(1)
            keys = rotate(keys.unflatten(1, (self.n_kv_heads, -1))).flatten(1)
            keys_values = torch.cat([keys, values], dim=1)
        if table is None:
            table = keys_values
        else:
            table[new] = keys_values.to(table.dtype)
        y = self.out(self._heads(queries, table, visible), False, x)
        return self.norms[0](y) if self.post else y

    def _heads(self, queries: Tensor, table: Tensor, visible: Visible) -> Tensor:
        """Return the heads (R,H*W) of queries (R,H*K) over the `visible` rows of keys and values."""
        if self.n_kv_heads == self.n_heads:
            return self.kernels.attend(queries, table, visible, self.n_heads)
        # The heads that share keys attend as separate queries: (R,H*K) -> (R*H/G, G*K), and back.
        n_sharing = self.n_heads // self.n_kv_heads
        visible = visible._replace(row_of_query=visible.row_of_query.repeat_interleave(n_sharing))
        shared = queries.unflatten(1, (self.n_kv_heads, n_sharing, -1)).transpose(1, 2).flatten(2).flatten(0, 1)
        heads = self.kernels.attend(shared, table, visible, self.n_kv_heads)
        return heads.view(len(queries), n_sharing, self.n_kv_heads, -1).transpose(1, 2).flatten(1)

    def attend_cross(self, x: Tensor, memory: Tensor, visible: Visible) -> Tensor:
        """Return the output (R,D) of the cross-attention sub-layer over the rows of `memory`, keys and values."""
        assert self.cross_query is not None and self.cross_out is not None
        queries = self.cross_query(x if self.post else self.norms[1](x))
        y = self.cross_out(self.kernels.attend(queries, memory, visible, self.n_heads), False, x)
        return self.norms[1](y) if self.post else y

    def feed_forward(self, x: Tensor) -> Tensor:
        """Return the output (R,D) of the feed-forward sub-layer."""
        inner = self.inner(x if self.post else self.norms[-1](x), self.relu)
        if self.is_gated:
            gated, factor = inner.chunk(2, dim=1)
            inner = self.activation(gated) * factor
        elif not self.relu:
            inner = self.activation(inner)
        y = self.outer(inner, False, x)
        return self.norms[-1](y) if self.post else y
