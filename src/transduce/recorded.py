"""Translation on a GPU: the packed Transformer, each kind of decoding step recorded once and replayed (CUDA graphs).

A step is some hundred small kernels, and most of them are done before the host has asked for the next one. A recorded
step is asked for as a whole. It has one shape, and one place in memory for all that it reads and writes:
- sentences, tokens so far and source tokens are rounded up to powers of two. What nobody needs attends to row 0 of the
  tables, and writes there;
- the tables belong to the model, not to a cache: a search must have the model for itself (`alone`).

Letters as in model.py; B sentences, each with K adjacent ones of the N rows of a step.
"""

import math
import sys
import threading
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.errors import is_out_of_memory
from transduce.kernels import Plain
from transduce.model import Transformer, mixed_precision
from transduce.packed import PackedTransformer, Precision, Seen


class _Fused(Plain):
    """The kernels on a GPU."""

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, lengths: Tensor, which: Tensor, n_heads: int
    ) -> Tensor:
        """As in `Kernels`, but which[i] must be i // K: the K queries that share a line of the index are adjacent."""
        seen = torch.arange(index.size(1), device=index.device) < lengths[:, None]  # (B, T)
        q = queries.to(keys.dtype).view(len(index), -1, n_heads, queries.size(1) // n_heads).transpose(1, 2)
        k, v = (x[index].unflatten(2, (n_heads, -1)).transpose(1, 2) for x in (keys, values))  # (B, H, T, ...)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None])  # (B, H, N/B, W)
        return heads.transpose(1, 2).reshape(len(queries), -1).float()


@dataclass(frozen=True)
class RecordedCache:
    """What a decoding step needs of the steps before it: which rows of the model's tables. Good for one step."""

    written: int  # rows of the tables in use
    past: Tensor  # (N, t) which of them are the tokens so far of each row
    source: Tensor  # (B, S) which rows of the tables of the encoder's output belong to each sentence,
    lengths: Tensor  # (B,) of them the first so many

    @property
    def length(self) -> int:
        """t, the number of tokens decoded so far."""
        return self.past.size(1)

    def select(self, rows: Tensor, sentences: Tensor) -> "RecordedCache":
        """The cache whose row i goes on from row rows[i] of this one, N/B of them for each of `sentences`."""
        return RecordedCache(self.written, self.past[rows], self.source[sentences], self.lengths[sentences])


class RecordedTransformer:
    """A trained `model`, ready to translate in `precision` ("fp32" or "bf16") on the GPU where it is.

    It has the interface of `model.Transformer` that the search uses. On a CPU, where there is nothing to record, it
    makes the same steps.
    """

    def __init__(self, model: Transformer, precision: Precision) -> None:
        self.model, self.config, self.precision = model, model.config, precision
        self.device = model.output.weight.device
        self.packed = PackedTransformer(model, precision, _Fused())
        self.alone = threading.Lock()
        empty = partial(torch.zeros, dtype=torch.bfloat16 if precision == "bf16" else torch.float32, device=self.device)
        self.tables = [empty(1, width) for width in self.packed.table_widths]
        self.cross = [empty(1, width) for width in self.packed.table_widths]
        self._forget()

    def _forget(self) -> None:
        """No step is recorded yet, and nothing kept of what recordings share: memory for what a step computes."""
        self.steps: dict[tuple[int, int, int, int], _Step] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Token ids (B,S) with mask (B,S) -> memory (R,D), the real tokens of all sentences one below the other."""
        with mixed_precision(self.precision, self.device):
            return self.model.encode(src, src_mask)[src_mask].float()

    def start(self, memory: Tensor, src_mask: Tensor) -> RecordedCache:
        """The cache of a decoding of `memory` (R,D) before its first token: one row for each sentence."""
        self._make_room(self.cross, len(memory))
        for table, keys_values in zip(self.cross, self.packed.keys_values(memory), strict=True):
            table[: len(memory)] = keys_values.to(table.dtype)
        lengths = src_mask.sum(1)
        places = torch.arange(src_mask.size(1), device=self.device)
        source = ((lengths.cumsum(0) - lengths)[:, None] + places).where(places < lengths[:, None], 0)
        return RecordedCache(1, torch.zeros(len(src_mask), 0, dtype=torch.int64, device=self.device), source, lengths)

    def decode_step(self, ids: Tensor, cache: RecordedCache) -> tuple[Tensor, RecordedCache]:
        """The logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it.

        The logits are there until the next step.
        """
        n, written = len(ids), cache.written + len(ids)
        self._make_room(self.tables, written)
        new = torch.arange(cache.written, written, device=self.device)
        past = torch.cat([cache.past, new[:, None]], dim=1)
        count, width = cache.source.shape
        key = (_power(count), n // count, max(16, _power(past.size(1))), max(16, _power(width)))
        if key not in self.steps:
            self.steps[key] = _Step(self, *key)
        step = self.steps[key]
        step.fill(ids, new, past, cache.source, cache.lengths)
        return step.logits()[:n], RecordedCache(written, past, cache.source, cache.lengths)

    def _make_room(self, tables: list[Tensor], rows: int) -> None:
        """Tables of at least so many rows, in place of those in the list. What was recorded wrote to the old ones."""
        if rows <= len(tables[0]):
            return
        tables[:] = [F.pad(table, (0, 0, 0, _power(rows) - len(table))) for table in tables]
        self._forget()


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()


class _Step:
    """A step of `count` sentences of `beam` rows each, up to `length` tokens long, over `width` source tokens."""

    def __init__(self, model: RecordedTransformer, count: int, beam: int, length: int, width: int) -> None:
        zeros = partial(torch.zeros, dtype=torch.int64, device=model.device)
        rows = count * beam
        self.model = model
        self.ids, self.new, self.position = zeros(rows), zeros(rows), zeros(1)
        self.past = Seen(zeros(rows, length), zeros(rows) + 1, zeros(0))
        self.source = Seen(zeros(count, width), zeros(count) + 1, zeros(0))
        self.positions = model.model.positions(0, min(length, model.config.max_positions or length)).clone()

    def fill(self, ids: Tensor, new: Tensor, past: Tensor, source: Tensor, lengths: Tensor) -> None:
        """Put in what the next step is about, and zeros around it."""
        given = ((self.ids, ids), (self.new, new), (self.past.index, past), (self.source.index, source))
        for place, values in given:
            place.copy_(F.pad(values, [end for n, m in _sizes(place, values) for end in (0, n - m)]))
        self.past.lengths.fill_(1)[: len(ids)] = past.size(1)
        self.source.lengths.copy_(F.pad(lengths, (0, len(self.source.lengths) - len(lengths)), value=1))
        self.position.fill_(past.size(1) - 1)

    def logits(self) -> Tensor:
        """(rows, V); the step is recorded when it is made for the first time."""
        if self.model.device.type != "cuda":
            return self._make()
        graph, logits = self._recording
        graph.replay()
        return logits

    @cached_property
    def _recording(self) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        before = torch.cuda.Stream()
        before.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(before):
            self._make()  # libraries set up what they need, which cannot be recorded; the rows are written again
        torch.cuda.current_stream().wait_stream(before)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.model.pool):
            logits = self._make()
        return graph, logits

    def _make(self) -> Tensor:
        model = self.model
        x = F.embedding(self.ids, model.model.tgt_embedding.weight) * math.sqrt(model.config.d_model)
        x = x + self.positions.index_select(0, self.position)
        return model.packed.through(x, model.tables, self.new, self.past, model.cross, self.source)


def _sizes(place: Tensor, values: Tensor) -> list[tuple[int, int]]:
    """The sizes of both in each dimension, the last first, as F.pad takes them."""
    return [*zip(reversed(place.shape), reversed(values.shape), strict=True)]


# ---- is it right here? -------------------------------------------------------------------------------------------

BOUNDS = {"fp32": 1e-3, "bf16": 0.1}  # of the relative error of logits


def recorded(model: Transformer, precision: Precision) -> RecordedTransformer | None:
    """The model with recorded steps; None, and a line on standard error, where they do not say what the model says."""
    try:
        made = RecordedTransformer(model, precision)
        error = _error(made)
        problem = None if error < BOUNDS[precision] else f"their logits differ by {error:.1%}"
    except RuntimeError as failed:
        if is_out_of_memory(failed):
            raise
        made, problem = None, str(failed).splitlines()[0]
    if problem is None:
        return made
    print(f"transduce: translating without recorded steps, which is slower, for {problem}", file=sys.stderr)
    return None


@torch.inference_mode()
def _error(recorded: RecordedTransformer) -> float:
    """The relative error of the logits of a few steps of two sentences."""
    model, device, precision = recorded.model, recorded.device, recorded.precision
    src = torch.tensor([[4, 5, 6, 2], [5, 2, 0, 0]], device=device) % model.src_embedding.num_embeddings
    mask, both = torch.tensor([[True] * 4, [True, True, False, False]], device=device), torch.arange(2, device=device)
    rows, found, expected = both.repeat_interleave(2), [], []
    with mixed_precision(precision, device):
        cache = model.start(model.encode(src, mask), mask).select(rows, both)
    packed = recorded.start(recorded.encode(src, mask), mask).select(rows, both)
    for ids in torch.tensor([[1, 1, 1, 1], [4, 5, 6, 4], [5, 5, 4, 6]], device=device):
        with mixed_precision(precision, device):
            logits, cache = model.decode_step(ids % model.tgt_embedding.num_embeddings, cache)
        expected.append(logits.float())
        logits, packed = recorded.decode_step(ids % model.tgt_embedding.num_embeddings, packed)
        found.append(logits.clone())
        rows = torch.tensor([1, 0, 2, 2], device=device)
        cache, packed = cache.select(rows, both), packed.select(rows, both)
    difference = torch.stack(found) - torch.stack(expected)
    return float(difference.norm() / torch.stack(expected).norm())
