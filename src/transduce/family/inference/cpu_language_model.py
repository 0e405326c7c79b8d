"""A language model of the family on a CPU: weights packed once, no padding, and a cache that is never copied.

`CpuLanguageModel` computes what `GPT2` or `Llama` computes, by the kernels of translation: equal except rounding in
fp32, and approximately equal in bf16 and int8. The tokens of all texts are rows of one matrix, whatever the lengths of
the texts. Attention finds its keys and values by an index, so no row depends on another one.

Letters as in `model/transformer.py`; R rows of new tokens, N texts, G heads of keys and values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.decoding.cpu_cache import CpuCache, Tables
from transduce.decoding.cpu_transformer import PackedLinear, Precision, pack_linear
from transduce.decoding.kernels import PLAIN, Compiled, Kernels, Visible, compiled
from transduce.family.attention_wrappers import rotation
from transduce.family.feed_forward import GatedFeedForward
from transduce.family.gpt2 import GPT2
from transduce.family.llama import Llama
from transduce.model.transformer import EncoderLayer, FeedForward, Residual

CHUNK = 1_024  # maximum number of new tokens of a single text in one pass: each has an index of all tokens before it
ROOM = 64  # new tokens of each text that the first tables have room for


@dataclass(frozen=True)
class _Tokens:
    """The R new tokens of one call: the rows of the tables for their keys and values, and the rows that they see."""

    added: Tensor  # (R,)
    visible: Visible
    rotate: Callable[[Tensor], Tensor] | None  # queries and keys (R,H,K) by their positions


class _Layer:
    """A layer over rows. Queries, keys and values are one product, and so are both inputs of a gated network."""

    def __init__(self, layer: EncoderLayer, precision: Precision, kernels: Kernels) -> None:
        attention = layer.self_attention
        network = cast(FeedForward | GatedFeedForward, layer.feed_forward)
        self.kernels = kernels
        self.n_heads = attention.n_heads
        self.n_kv_heads = attention.n_kv_heads
        projections = [attention.w_q, attention.w_k, attention.w_v]
        self.widths = [linear.out_features for linear in projections]  # H*K, G*K, G*W
        self.project = pack_linear(projections, precision, kernels)
        self.w_o = pack_linear([attention.w_o], precision, kernels)
        self.is_gated = isinstance(network, GatedFeedForward)
        inner = [network.w_1, network.w_3] if isinstance(network, GatedFeedForward) else [network.w_1]
        self.inner = pack_linear(inner, precision, kernels)
        self.outer = pack_linear([network.w_2], precision, kernels)
        self.activation = network.activation
        residuals = [cast(Residual, residual) for residual in layer.residuals]
        self.norms = [norm_of(residual.norm, kernels) for residual in residuals]
        self.post = residuals[0].post

    def __call__(self, x: Tensor, table: Tensor, tokens: _Tokens) -> Tensor:
        """Return the output (R,D) for x (R,D); the new keys and values go to `table` (rows, G*K + G*W)."""
        x = self._residual(x, 0, lambda y: self._attend(y, x, table, tokens))
        return self._residual(x, 1, lambda y: self.outer(self._inner(y), False, x))

    def _residual(self, x: Tensor, number: int, with_sum: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the output of a sub-layer with its norm, before or after. with_sum: function of an input that also
        adds x."""
        norm = self.norms[number]
        return norm(with_sum(x)) if self.post else with_sum(norm(x))

    def _attend(self, y: Tensor, x: Tensor, table: Tensor, tokens: _Tokens) -> Tensor:
        """Return x plus the self-attention of y, both (R,D)."""
        queries, keys, values = self.project(y, False, None).split(self.widths, dim=1)
        if tokens.rotate is not None:
            heads = queries.unflatten(1, (self.n_heads, -1)), keys.unflatten(1, (self.n_kv_heads, -1))
            queries, keys = (tokens.rotate(x).flatten(1) for x in heads)
        table[tokens.added] = torch.cat([keys, values], dim=1)
        # The heads that share keys attend as separate queries: (R,H*K) -> (R*H/G, G*K), and back.
        n_sharing, visible = self.n_heads // self.n_kv_heads, tokens.visible
        visible = visible._replace(row_of_query=visible.row_of_query.repeat_interleave(n_sharing))
        queries = queries.unflatten(1, (self.n_kv_heads, n_sharing, -1)).transpose(1, 2).flatten(2).flatten(0, 1)
        keys, values = table.split(self.widths[1:], dim=1)
        heads = self.kernels.attend(queries, keys, values, visible, self.n_kv_heads)
        heads = heads.view(len(y), n_sharing, self.n_kv_heads, -1).transpose(1, 2).flatten(1)
        return self.w_o(heads, False, x)

    def _inner(self, y: Tensor) -> Tensor:
        inner = self.inner(y, False, None)
        if not self.is_gated:
            return self.activation(inner)
        gate, other = inner.chunk(2, dim=1)
        return self.activation(gate) * other


def norm_of(norm: nn.Module, kernels: Kernels) -> Callable[[Tensor], Tensor]:
    """Return a norm of rows: layer norm by the kernels, another one as it is."""
    return partial(kernels.norm, layer=norm) if isinstance(norm, nn.LayerNorm) else norm


class CpuLanguageModel:
    """A trained `model`, prepared to continue texts in `precision` on a CPU.

    kernels: None takes the compiled ones if this machine can compile and run them, else those in torch.
    """

    def __init__(self, model: GPT2 | Llama, precision: Precision, kernels: Kernels | None = None) -> None:
        self.kernels, self.model = kernels or compiled() or PLAIN, model
        self.n_positions, self.vocab_size = model.n_positions, model.output.out_features
        self.layers = [_Layer(cast(EncoderLayer, layer), precision, self.kernels) for layer in model.layers]
        self.norm = norm_of(model.norm, self.kernels)
        self.project = pack_linear([model.output], precision, self.kernels)

    def start(self, n_texts: int, n_tokens: int) -> CpuCache:
        """Return the cache of N texts before their first token. n_tokens: number of tokens of all their prompts."""
        none, zeros = torch.empty(n_texts, 0, dtype=torch.int32), torch.zeros(n_texts, dtype=torch.int32)
        free = torch.arange(n_tokens + ROOM * n_texts, dtype=torch.int32)
        tables = Tables.empty(len(free), [sum(layer.widths[1:]) for layer in self.layers])
        return CpuCache(tables, free, 0, none, zeros, 0, Tables(()), Visible(none, zeros, zeros))

    def states(self, ids: Tensor, lengths: Tensor, cache: CpuCache) -> tuple[Tensor, CpuCache]:
        """Return the state (N,D) after the last token of each of N texts, and the cache with the new tokens.

        ids: new tokens, text after text, (R,). lengths: number of new tokens of each text, (N,) int64, at least 1.
        """
        while len(lengths) == 1 and len(ids) > CHUNK:
            _, cache = self.states(ids[:CHUNK], torch.tensor([CHUNK]), cache)
            ids, lengths = ids[CHUNK:], lengths - CHUNK
        n_rows, cache = len(ids), cache.with_room(len(ids)).gathered()
        texts, ends = torch.arange(len(lengths)).repeat_interleave(lengths), lengths.cumsum(0)
        ages, added = cache.ages + lengths, cache.free[cache.written : cache.written + n_rows]
        positions = torch.arange(n_rows) - (ends - ages)[texts]
        past = F.pad(cache.past, (0, int(ages.max()) - cache.past.size(1)))
        past[texts, positions] = added
        visible = Visible(past[texts], positions.int() + 1, torch.arange(n_rows, dtype=torch.int32))
        x, rotate = self.model.embedding(ids), None
        if isinstance(self.model, GPT2):
            x = x + self.model.positions(positions)
        else:
            rope, d_k = self.model.rope, self.model.d_k
            angles = positions[:, None] * rope.frequencies(d_k, ages[texts])
            rotate = rotation(angles[:, None], rope.amplitude)
        tokens = _Tokens(added.long(), visible, rotate)
        for layer, table in zip(self.layers, cache.tables.layers, strict=True):
            x = layer(x, table, tokens)
        cache = cache._replace(written=cache.written + n_rows, past=past, ages=ages.int(), length=past.size(1))
        return self.norm(x[ends - 1]), cache

    def output(self, states: Tensor) -> Tensor:
        """Return the logits (N,V) of the next tokens by the states (N,D)."""
        return self.project(states, False, None)

    def best(self, states: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and ids (N, count) of the most likely next tokens by the states (N,D)."""
        if isinstance(self.kernels, Compiled) and isinstance(self.project, PackedLinear):
            return self.kernels.best_of(states, self.project.packed, count, ())
        return self.kernels.best(self.output(states), count)
