"""The Transformer for translation on a CPU: weights packed once, no padding, a cache that is never copied.

`CpuTransformer` has the interface of `Transformer` that the search uses, and returns the same logits: equal except for
rounding in fp32, and approximately equal in bf16 and int8. It differs in how it computes them (`cpu_layers`).

Letters as in transformer.py; R rows of all tokens of all source sentences, N rows of a decoding step.
"""

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.decoding.compiled_kernels import Compiled, CompiledStack, StackSizes, compiled
from transduce.decoding.compiled_search import CompiledSearch
from transduce.decoding.cpu_cache import CpuCache, Tables
from transduce.decoding.cpu_layers import CpuLayer, Precision, best_of, norm_of, pack_linear, packed_of
from transduce.decoding.decoder import Decoder, Searchable
from transduce.decoding.kernels import PLAIN, Kernels, Visible
from transduce.model.transformer import DecoderLayer, EncoderLayer, Transformer

LEAST_ROOM = 256  # rows of a new table: more than one sentence needs in most searches


class CpuTransformer(Searchable):
    """A trained `model`, ready to translate in `precision` on a CPU.

    kernels: None takes the compiled ones if they are installed, else those in torch.
    """

    gains_by_threads = True

    def __init__(self, model: Transformer, precision: Precision, kernels: Kernels | None = None) -> None:
        self.kernels = kernels or compiled() or PLAIN
        self.config = model.config
        self.model = model
        self.device = model.output.weight.device
        layers = cast(Iterable[EncoderLayer], model.encoder), cast(Iterable[DecoderLayer], model.decoder)
        self.encoder, self.decoder = ([CpuLayer(x, precision, self.kernels) for x in stack] for stack in layers)
        self.table_widths = [sum(layer.widths[1:]) for layer in self.decoder]  # H*K + H*W of each
        self.output = pack_linear([model.output], precision, self.kernels)
        self.best = best_of(self.output, self.kernels)  # see `Decoder`, by the decoder's output
        self.last_norms = norm_of(model.encoder_norm, self.kernels), norm_of(model.decoder_norm, self.kernels)
        # (positions, D). To be read once in a call: another thread may replace it by a table of another length.
        self.positions = model.positions(0, model.config.max_positions or 256)
        self.tgt_embedding = model.tgt_embedding.weight, math.sqrt(model.config.d_model)  # (V, D), and its scale
        self.stacks = self._stacks()
        self.search: CompiledSearch | None = None  # see `Decoder`
        self.packed_output = packed_of(self.output)
        if self.stacks is not None and self.packed_output:
            self.search = CompiledSearch(self.stacks[1], self.packed_output, self.tgt_embedding, self._positions)

    def _stacks(self) -> tuple[CompiledStack, CompiledStack] | None:
        """Return the layers of encoder and decoder as one call each; None where the compiled kernels lack a part."""
        encoder, decoder = ([layer.packed() for layer in layers] for layers in (self.encoder, self.decoder))
        if not isinstance(self.kernels, Compiled) or None in encoder or None in decoder:
            return None
        first = self.encoder[0]
        query, _, value = first.widths
        n = first.n_heads
        sizes = StackSizes(self.config.d_model, self.config.d_ff, n, query // n, value // n, first.post)
        ends = (encoder, self.model.encoder_norm), (decoder, self.model.decoder_norm)
        of_encoder, of_decoder = (CompiledStack(self.kernels, [*filter(None, x)], last, sizes) for x, last in ends)
        return of_encoder, of_decoder

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Return the memory (R,D) of token ids (B,S) with mask (B,S): rows for the real tokens of all sentences."""
        positions, scale = self._positions(src.size(1)), math.sqrt(self.config.d_model)
        embedded = F.embedding(src, self.model.src_embedding.weight) * scale + positions[: src.size(1)]
        x = embedded[src_mask]
        visible = _sources(src_mask)
        visible = Visible(visible.rows, visible.lengths, visible.row_of_query.repeat_interleave(visible.lengths))
        if self.stacks is not None:
            return self.stacks[0].encode(x, visible)
        for layer in self.encoder:
            x = layer.feed_forward(layer.attend_self(x, visible))
        return self.last_norms[0](x)

    def start(self, memory: Tensor, src_mask: Tensor) -> CpuCache:
        """Return the cache of a decoding of `memory` (R,D) before its first token: one row for each sentence."""
        n, source = len(src_mask), _sources(src_mask)
        past, ages = torch.empty(n, 0, dtype=torch.int32), torch.zeros(n, dtype=torch.int32)
        room = max(n * src_mask.size(1), LEAST_ROOM)  # for as many steps as the longest source has tokens
        tables = Tables([torch.empty(room, width) for width in self.table_widths])
        free = torch.arange(room, dtype=torch.int32)
        return CpuCache(tables, free, 0, past, ages, 0, Tables(self.keys_values(memory)), source)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values (R, H*K + H*W) of `memory` (R,D) for the cross-attention of each layer."""
        return tuple(layer.cross_memory(memory) for layer in self.decoder if layer.cross_memory)

    def decode_step(self, ids: Tensor, cache: CpuCache) -> tuple[Tensor, CpuCache]:
        """Return the logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it."""
        decoded, cache = self.decode(ids, cache)
        return self.output(decoded), cache

    def decode(self, ids: Tensor, cache: CpuCache) -> tuple[Tensor, CpuCache]:
        """Return the decoder's output (N,D) after one more token `ids` (N,) for each row, and the cache with it.

        `log_probs` and `best` turn the output into log-probabilities.
        """
        n = ids.numel()
        if cache.written + n > cache.free.numel():
            cache = cache.with_room(n)
        positions = self.positions
        if cache.length >= len(positions):
            cache = cache.gathered()  # for its exact length
            if cache.length >= len(positions):
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

    @property
    def is_compiled(self) -> bool:
        return self.stacks is not None

    def as_decoder(self) -> Decoder[CpuCache]:
        """Return a decoding step of the model as a decoder."""
        scores = self.log_probs, self.best, CpuCache.join, self.logits
        return Decoder(self.decode, self.device, *scores, self.search)

    def logits(self, decoded: Tensor) -> Tensor:
        """Return the logits (N,V) of all tokens by the decoder's output (N,D)."""
        return self.output(decoded)

    def log_probs(self, decoded: Tensor) -> Tensor:
        """Return the log-probabilities (N,V) of all tokens by the decoder's output (N,D)."""
        return self.logits(decoded).log_softmax(dim=-1)

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
            x = layer.attend_self(x, visible, table, new)
            x = layer.feed_forward(layer.attend_cross(x, memory, source))
        return self.last_norms[1](x)

    def _positions(self, end: int) -> Tensor:
        """Return at least `end` positions (P,D). They replace a shorter table."""
        positions = self.positions
        if end > len(positions):
            self.positions = positions = self.model.positions(0, end)
        return positions


def _sources(src_mask: Tensor) -> Visible:
    """Return the rows of each of B sentences with mask (B,S), for one query each."""
    lengths = src_mask.sum(1)
    rows = (lengths.cumsum(0) - lengths)[:, None] + torch.arange(src_mask.size(1))
    return Visible(rows.int().contiguous(), lengths.int(), torch.arange(len(src_mask), dtype=torch.int32))
