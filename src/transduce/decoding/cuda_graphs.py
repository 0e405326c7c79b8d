"""Translation on a GPU: the rows of `CpuTransformer`, with each kind of decoding step recorded once (CUDA graphs).

A step of the base model is 172 kernels in fp32 and 274 in bf16, most of them small (counted without a GPU). The GPU
finishes them before the host has launched the next ones. A recorded step is launched as a whole. It has one shape, and
fixed addresses for all that it reads and writes:
- Sentences, tokens so far and source tokens are rounded up to powers of two. The padding attends to row 0 of the
  tables, and writes there.
- The tables belong to the model, not to a cache: a search must hold the `lock` of the model.

Letters as in transformer.py; B sentences, each with K adjacent ones of the N rows of a step.
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

from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.kernels import Plain, Visible
from transduce.model.transformer import Transformer, mixed_precision


class _Fused(Plain):
    """The kernels on a GPU."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, visible: Visible, n_heads: int) -> Tensor:
        """Attend as `Kernels.attend`, but query i sees line i // K: the K queries of a line are adjacent."""
        rows = visible.rows
        is_visible = torch.arange(rows.size(1), device=rows.device) < visible.lengths[:, None]  # (B, T)
        q = queries.to(keys.dtype).view(len(rows), -1, n_heads, queries.size(1) // n_heads).transpose(1, 2)
        k, v = (x[rows].unflatten(2, (n_heads, -1)).transpose(1, 2) for x in (keys, values))  # (B, H, T, ...)
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):  # cuDNN makes a new plan for each shape
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=is_visible[:, None, None])  # (B, H, N/B, W)
        return heads.transpose(1, 2).reshape(len(queries), -1).float()


@dataclass(frozen=True)
class CudaGraphCache:
    """The state of N rows between two decoding steps: rows of the model's tables. A cache is good for one step."""

    written: int  # rows of the tables in use
    past: Tensor  # (N, t) the rows that hold the tokens so far of each row
    source: Tensor  # (B, S) the rows of the tables of the encoder's output that belong to each sentence
    lengths: Tensor  # (B,) how many of the S rows of each sentence

    @property
    def length(self) -> int:
        """t, the number of tokens decoded so far."""
        return self.past.size(1)

    def select(self, rows: Tensor, sentences: Tensor) -> "CudaGraphCache":
        """Return the cache whose row i continues row rows[i] of this one, N/B of them for each of `sentences`."""
        return CudaGraphCache(self.written, self.past[rows], self.source[sentences], self.lengths[sentences])


ROOM = 1_024  # rows of a new table


class CudaGraphTransformer:
    """A trained `model`, ready to translate in `precision` ("fp32" or "bf16") on its GPU.

    It has the interface of `Transformer` that the search uses. On a CPU it makes the same steps without recording them.
    """

    def __init__(self, model: Transformer, precision: Precision) -> None:
        self.model = model
        self.config = model.config
        self.precision: Precision = precision
        self.packed = CpuTransformer(model, precision, _Fused())
        self.device = self.packed.device
        self.kernels = self.packed.kernels
        self.lock = threading.Lock()
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        empty = partial(torch.zeros, dtype=dtype, device=self.device)
        self.tables = [empty(ROOM, width) for width in self.packed.table_widths]
        self.cross = [empty(ROOM, width) for width in self.packed.table_widths]
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # to record on
        self._drop_steps()

    def _drop_steps(self) -> None:
        """Drop all recorded steps and the memory that they share for intermediate results."""
        self.steps: dict[tuple[int, int, int, int], _Step] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.stream else None

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Return the memory (R,D) of token ids (B,S) with mask (B,S): rows for the real tokens of all sentences."""
        with mixed_precision(self.precision, self.device):
            return self.model.encode(src, src_mask)[src_mask].float()

    def start(self, memory: Tensor, src_mask: Tensor) -> CudaGraphCache:
        """Return the cache of a decoding of `memory` (R,D) before its first token: one row for each sentence."""
        self._make_room(self.cross, len(memory))
        for table, keys_values in zip(self.cross, self.packed.keys_values(memory), strict=True):
            table[: len(memory)] = keys_values.to(table.dtype)
        lengths = src_mask.sum(1)
        columns = torch.arange(src_mask.size(1), device=self.device)
        source = ((lengths.cumsum(0) - lengths)[:, None] + columns).where(columns < lengths[:, None], 0)
        past = torch.zeros(len(src_mask), 0, dtype=torch.int64, device=self.device)
        return CudaGraphCache(1, past, source, lengths)

    def decode_step(self, ids: Tensor, cache: CudaGraphCache) -> tuple[Tensor, CudaGraphCache]:
        """Return the logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it."""
        n = len(ids)
        written = cache.written + n
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
        except BaseException:  # most likely out of memory: smaller steps need the memory of the recorded ones
            self._drop_steps()
            raise
        logits = self.packed.output(decoded[:n])
        return logits, CudaGraphCache(written, past, cache.source, cache.lengths)

    def _make_room(self, tables: list[Tensor], rows: int) -> None:
        """Replace the tables in the list by larger ones if they have fewer than `rows` rows.

        The recorded steps write to the old tables, so they are dropped.
        """
        if rows <= len(tables[0]):
            return
        tables[:] = [F.pad(table, (0, 0, 0, _power(rows) - len(table))) for table in tables]
        self._drop_steps()


def _power(number: int) -> int:
    """Return the next power of two."""
    return 1 << max(0, number - 1).bit_length()


class _Step:
    """A step of `count` sentences of `beam` rows each, up to `length` tokens long, over `width` source tokens."""

    def __init__(self, model: CudaGraphTransformer, count: int, beam: int, length: int, width: int) -> None:
        zeros = partial(torch.zeros, dtype=torch.int64, device=model.device)
        rows = count * beam
        self.has_run = False
        self.graph: tuple[torch.cuda.CUDAGraph, Tensor] | None = None  # with its output
        self.ids = zeros(rows)
        self.new = zeros(rows)
        self.position = zeros(1)
        self.past = Visible(zeros(rows, length), zeros(rows) + 1, zeros(0))
        self.source = Visible(zeros(count, width), zeros(count) + 1, zeros(0))
        self.positions = model.model.positions(0, min(length, model.config.max_positions or length)).clone()

    def fill(self, ids: Tensor, new: Tensor, past: Tensor, source: Tensor, lengths: Tensor) -> None:
        """Copy the inputs of the next step to their fixed addresses, with zeros as padding."""
        pairs = ((self.ids, ids), (self.new, new), (self.past.rows, past), (self.source.rows, source))
        for target, values in pairs:
            target.copy_(F.pad(values, [end for n, m in _sizes(target, values) for end in (0, n - m)]))
        self.past.lengths.fill_(1)[: len(ids)] = past.size(1)
        self.source.lengths.copy_(F.pad(lengths, (0, len(self.source.lengths) - len(lengths)), value=1))
        self.position.fill_(past.size(1) - 1)

    def __call__(self, model: CudaGraphTransformer) -> Tensor:
        """Return the decoder's output (rows, D), valid until the next step. The second call records the step."""
        if not self.has_run or model.stream is None:
            self.has_run = True
            return self._compute(model)
        if self.graph is None:
            with _exclusive_recording(), torch.cuda.device(model.device):
                self.graph = self._record(model, model.stream)
        graph, decoded = self.graph
        graph.replay()
        return decoded

    def _record(self, model: CudaGraphTransformer, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                self._compute(
                    model
                )  # libraries allocate at a first call, which cannot be recorded; the rows stay equal
        finally:
            torch.cuda.current_stream().wait_stream(stream)
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, model.pool, stream, capture_error_mode="thread_local"):
                decoded = self._compute(model)
        finally:
            torch.cuda.set_stream(before)  # a failed recording does not do this
        return graph, decoded

    def _compute(self, model: CudaGraphTransformer) -> Tensor:
        x = F.embedding(self.ids, model.model.tgt_embedding.weight) * math.sqrt(model.config.d_model)
        x = x + self.positions.index_select(0, self.position)
        return model.packed.through(x, model.tables, self.new, self.past, model.cross, self.source)


RECORDING = threading.Lock()


@contextlib.contextmanager
def _exclusive_recording() -> Iterator[None]:
    """Hold the lock of recording. A process records one step at a time, and must not drop a recorded one meanwhile."""
    with RECORDING:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def _sizes(target: Tensor, values: Tensor) -> list[tuple[int, int]]:
    """Return the sizes of both in each dimension, the last dimension first, as F.pad takes them."""
    return [*zip(reversed(target.shape), reversed(values.shape), strict=True)]


# ---- check on this machine ---------------------------------------------------------------------------------------

BOUNDS = {"fp32": 1e-3, "bf16": 0.1}  # of the relative error of logits


def checked_cuda_graphs(model: Transformer, precision: Precision) -> CudaGraphTransformer | None:
    """Return the model with recorded steps.

    Return None, and print a line to standard error, where recorded steps fail or give other logits than the model.
    """
    try:
        transformer = CudaGraphTransformer(model, precision)
        error = _relative_error(transformer)
        problem = None if error < BOUNDS[precision] else f"their logits differ by {error:.1%}"
    except RuntimeError as failure:
        transformer, problem = None, str(failure).strip().split("\n")[0]
    if problem is None:
        return transformer
    print(f"transduce: translating without recorded steps, which is slower: {problem}", file=sys.stderr)
    return None


@torch.inference_mode()
def _relative_error(transformer: CudaGraphTransformer) -> float:
    """Return the relative error of the logits of a few steps of two sentences.

    The steps run in all three ways: computed, then recorded, then replayed.
    """
    model, precision = transformer.model, transformer.precision
    device = transformer.device
    longest = min(3, model.config.max_positions or 3)
    some = torch.arange(3, 3 + 4 * longest, device=device) % model.tgt_embedding.num_embeddings
    mask = torch.tensor([[True] * longest, [True] + [False] * (longest - 1)], device=device)
    src, steps = some[: 2 * longest].view(2, -1) % model.src_embedding.num_embeddings, some.view(longest, 4)
    both, rows = torch.arange(2, device=device), torch.tensor([1, 0, 2, 2], device=device)
    with mixed_precision(precision, device):
        cache = model.start(model.encode(src, mask), mask).select(both.repeat_interleave(2), both)
    graph_cache = transformer.start(transformer.encode(src, mask), mask).select(both.repeat_interleave(2), both)
    outputs, expected = [], []
    for ids in steps:
        with mixed_precision(precision, device):
            logits, cache = model.decode_step(ids, cache)
        expected.append(logits.float())
        logits, graph_cache = transformer.decode_step(ids, graph_cache)
        outputs.append(logits)
        cache, graph_cache = cache.select(rows, both), graph_cache.select(rows, both)
    difference = torch.stack(outputs) - torch.stack(expected)
    return float(difference.norm() / torch.stack(expected).norm())
