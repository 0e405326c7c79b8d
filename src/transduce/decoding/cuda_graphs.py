"""Translation on a GPU: the packed Transformer, each kind of decoding step recorded once and replayed (CUDA graphs).

A step is some hundred small kernels, and most of them are done before the host has asked for the next one. A recorded
step is asked for as a whole. It has one shape, and one place in memory for all that it reads and writes:
- sentences, tokens so far and source tokens are rounded up to powers of two. What nobody needs attends to row 0 of the
  tables, and writes there;
- the tables belong to the model, not to a cache: a search must have the model for itself (`alone`).

Letters as in model.py; B sentences, each with K adjacent ones of the N rows of a step.
"""

import contextlib
import gc
import math
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from transduce.decoding.cpu_transformer import PackedTransformer, Precision, Seen
from transduce.decoding.kernels import Plain
from transduce.model.transformer import Transformer, mixed_precision


class _Fused(Plain):
    """The kernels on a GPU."""

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, lengths: Tensor, which: Tensor, n_heads: int
    ) -> Tensor:
        """As in `Kernels`, but which[i] must be i // K: the K queries that share a line of the index are adjacent."""
        seen = torch.arange(index.size(1), device=index.device) < lengths[:, None]  # (B, T)
        q = queries.to(keys.dtype).view(len(index), -1, n_heads, queries.size(1) // n_heads).transpose(1, 2)
        k, v = (x[index].unflatten(2, (n_heads, -1)).transpose(1, 2) for x in (keys, values))  # (B, H, T, ...)
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):  # cuDNN would plan anew for each shape
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


ROOM = 1_024  # rows of a table at first


class RecordedTransformer:
    """A trained `model`, ready to translate in `precision` ("fp32" or "bf16") on the GPU where it is.

    It has the interface of `model.Transformer` that the search uses. On a CPU, where there is nothing to record, it
    makes the same steps.
    """

    def __init__(self, model: Transformer, precision: Precision) -> None:
        self.model, self.config, self.precision = model, model.config, precision
        self.packed = PackedTransformer(model, precision, _Fused())
        self.device, self.kernels = self.packed.device, self.packed.kernels
        self.alone = threading.Lock()
        empty = partial(torch.zeros, dtype=torch.bfloat16 if precision == "bf16" else torch.float32, device=self.device)
        self.tables = [empty(ROOM, width) for width in self.packed.table_widths]
        self.cross = [empty(ROOM, width) for width in self.packed.table_widths]
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # to record on
        self._forget()

    def _forget(self) -> None:
        """No step is recorded yet, and nothing kept of what recordings share: memory for what a step computes."""
        self.steps: dict[tuple[int, int, int, int], _Step] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.stream else None

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
        """The logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it."""
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
        try:
            decoded = step(self)
        except BaseException:  # memory, most likely: smaller steps need what the recordings hold
            self._forget()
            raise
        logits = self.packed.output(decoded[:n], False, None)
        return logits, RecordedCache(written, past, cache.source, cache.lengths)

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
        self.used = False
        self.recording: tuple[torch.cuda.CUDAGraph, Tensor] | None = None
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

    def __call__(self, model: RecordedTransformer) -> Tensor:
        """The decoder's output (rows, D), there until the next step. What is needed a second time is recorded."""
        if not self.used or model.stream is None:
            self.used = True
            return self._make(model)
        if self.recording is None:
            with _recording_alone(), torch.cuda.device(model.device):
                self.recording = self._record(model, model.stream)
        graph, decoded = self.recording
        graph.replay()
        return decoded

    def _record(self, model: RecordedTransformer, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                self._make(model)  # libraries set up what they need, which cannot be recorded; the rows come once more
        finally:
            torch.cuda.current_stream().wait_stream(stream)
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, model.pool, stream, capture_error_mode="thread_local"):
                decoded = self._make(model)
        finally:
            torch.cuda.set_stream(before)  # which a recording that failed does not do
        return graph, decoded

    def _make(self, model: RecordedTransformer) -> Tensor:
        x = F.embedding(self.ids, model.model.tgt_embedding.weight) * math.sqrt(model.config.d_model)
        x = x + self.positions.index_select(0, self.position)
        return model.packed.through(x, model.tables, self.new, self.past, model.cross, self.source)


RECORDING = threading.Lock()


@contextlib.contextmanager
def _recording_alone() -> Iterator[None]:
    """A process records one thing at a time, and may not meanwhile drop what it recorded before."""
    with RECORDING:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


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
        made, problem = None, str(failed).strip().split("\n")[0]
    if problem is None:
        return made
    print(f"transduce: translating without recorded steps, which is slower: {problem}", file=sys.stderr)
    return None


@torch.inference_mode()
def _error(recorded: RecordedTransformer) -> float:
    """The relative error of the logits of a few steps of two sentences: made, then recorded, then replayed."""
    model, device, precision = recorded.model, recorded.device, recorded.precision
    longest = min(3, model.config.max_positions or 3)
    some = torch.arange(3, 3 + 4 * longest, device=device) % model.tgt_embedding.num_embeddings
    mask = torch.tensor([[True] * longest, [True] + [False] * (longest - 1)], device=device)
    src, steps = some[: 2 * longest].view(2, -1) % model.src_embedding.num_embeddings, some.view(longest, 4)
    both, rows = torch.arange(2, device=device), torch.tensor([1, 0, 2, 2], device=device)
    found, expected = [], []
    with mixed_precision(precision, device):
        cache = model.start(model.encode(src, mask), mask).select(both.repeat_interleave(2), both)
    packed = recorded.start(recorded.encode(src, mask), mask).select(both.repeat_interleave(2), both)
    for ids in steps:
        with mixed_precision(precision, device):
            logits, cache = model.decode_step(ids, cache)
        expected.append(logits.float())
        logits, packed = recorded.decode_step(ids, packed)
        found.append(logits)
        cache, packed = cache.select(rows, both), packed.select(rows, both)
    difference = torch.stack(found) - torch.stack(expected)
    return float(difference.norm() / torch.stack(expected).norm())
