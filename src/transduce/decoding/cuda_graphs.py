"""Translation on a GPU: the rows of `CpuTransformer`, with each kind of decoding step recorded once (CUDA graphs).

A step of the base model is 131 kernels in bf16, most of them small. 14 more find the best tokens (counted without a
GPU). The GPU finishes them before the host has launched the next ones. A recorded step is launched as a whole. It has
one shape, and fixed addresses for all that it reads and writes:
- Sentences, tokens so far and source tokens are rounded up to powers of two. The padding attends to row 0 of the
  tables, which is zero.
- The tables belong to the model, not to a cache: a search must hold the `lock` of the model.
- The weights are read where they are, or from copies. `encode` makes the copies again when the weights have changed in
  place. So recorded steps stay good, and belong to the model: all translators of it share them.

A cache is on the host, and so are the arguments of all methods: the host sends them to a step in one copy.

Letters as in transformer.py; B sentences, each with K adjacent ones of the N rows of a step.
"""

import contextlib
import gc
import math
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.decoder import Decoder, Searchable, in_order, padded, send
from transduce.decoding.gpu_kernels import GpuKernels
from transduce.decoding.kernels import Visible
from transduce.model.transformer import Transformer, mixed_precision


@dataclass(frozen=True)
class CudaGraphCache:
    """The state of N rows between two decoding steps, on the host. A cache is good for one step."""

    written: int  # rows of the tables in use
    past: Tensor  # (N, t) int32, the rows of the tables that hold the tokens so far of each row
    source: Tensor  # (B, 2) int32, the first row of the encoder's output of each sentence, and the number of its rows
    width: int  # S, the most of these numbers

    @property
    def length(self) -> int:
        """t, the number of tokens decoded so far."""
        return self.past.size(1)

    def select(self, rows: Tensor, sentences: Tensor) -> "CudaGraphCache":
        """Return the cache whose row i continues row rows[i] of this one, N/B of them for each of `sentences`."""
        return CudaGraphCache(self.written, self.past[rows.cpu()], self.source[sentences.cpu()], self.width)


class _Shape(NamedTuple):
    """The shape of a step: B sentences of K rows each, up to T tokens long, over S source tokens."""

    sentences: int
    beam: int
    length: int
    width: int

    @property
    def rows(self) -> int:
        return self.sentences * self.beam

    def parts(self, inputs: Tensor) -> Sequence[Tensor]:
        """Return the inputs of a step, one vector, as the parts that the host writes and the GPU reads.

        Of each row its token (N,), the row of the tables that it gets (N,), and the rows of its tokens so far (N, T);
        `CudaGraphCache.source` as two parts (B,); and the position of the token (1,).
        """
        n, count = self.rows, self.sentences
        ids, new, past, first, lengths, position = inputs.split([n, n, n * self.length, count, count, 1])
        return ids, new, past.view(n, self.length), first, lengths, position

    @property
    def size(self) -> int:
        """The length of the vector."""
        return self.rows * (2 + self.length) + 2 * self.sentences + 1


ROOM = 1 << 16  # most rows of a new table: a growth costs all recordings
SHARE = 1 / 64  # of the memory of the GPU, at most that a new table takes
MOST_RECORDINGS = 128  # the ones that were not used for the longest time give way


class CudaGraphTransformer(Searchable):
    """A trained `model`, ready to translate in "fp32" or "bf16" on its GPU. On a CPU it records no steps."""

    def __init__(self, model: Transformer, precision: Precision) -> None:
        self.model = model
        self.config = model.config
        self.precision: Precision = precision
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.kernels = GpuKernels(self.dtype, model.output.weight.device)
        self.packed = CpuTransformer(model, precision, self.kernels)
        self.positions = self.packed.positions.clone()  # (positions, D)
        self.device = self.packed.device
        self.lock = threading.Lock()
        empty = partial(torch.empty, dtype=self.dtype, device=self.device)
        shape = len(self.packed.decoder), self._room(), self.packed.table_widths[0]
        self.tables = empty(shape)  # (layers, rows, H*K + H*W) of the tokens so far
        self.cross = empty(shape)  # of the encoder's output
        for table in (self.tables, self.cross):
            table[:, 0] = 0
        self.decoded = torch.zeros(1, max(1, shape[1] // 8), self.config.d_model, device=self.device)  # of a step
        self.weights = [*model.parameters()]
        self.versions = self._versions()
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # to record on
        self._drop_recordings()

    def _room(self) -> int:
        """Return the number of rows of a new table."""
        if self.device.type != "cuda":
            return ROOM
        n_bytes = sum(self.packed.table_widths) * self.dtype.itemsize
        total = torch.cuda.get_device_properties(self.device).total_memory
        return min(ROOM, max(1, int(SHARE * total / n_bytes)))

    def _drop_recordings(self) -> None:
        """Drop all recordings and the memory that they share for intermediate results."""
        self.recordings: dict[Hashable, _Recording] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.stream else None

    def _versions(self) -> list[tuple[int, int]]:
        """Return of each weight its address, and a number of its changes; always 0 if it was made in inference mode."""
        return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in self.weights]

    def _read_weights(self) -> None:
        """Copy the weights of the model again if they have changed. Recordings stay, unless the weights have moved."""
        versions = self._versions()
        if versions == self.versions:
            return
        if any(before[0] != now[0] for before, now in zip(self.versions, versions, strict=True)):
            self._drop_recordings()
        kernels = GpuKernels(self.dtype, self.device)
        CpuTransformer(self.model, self.precision, kernels)
        self.positions.copy_(self.model.positions(0, len(self.positions)))
        for old, new in zip(self.kernels.linears, kernels.linears, strict=True):
            old.weight.copy_(new.weight)
            old.bias.copy_(new.bias)
        self.versions = versions  # not before: memory may not suffice for the copies

    # ---- the source ----------------------------------------------------------------------------------------------

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Return the memory (B*S,D) of token ids (B,S) with mask (B,S), padding included."""
        self._read_weights()
        count, width = src.shape
        inputs = torch.cat([src.flatten().cpu(), src_mask.sum(1).cpu()]).int()
        ids, lengths = send(inputs, self.device).split([count * width, count])
        embedded = F.embedding(ids.view(count, width), self.model.src_embedding.weight)
        self._need_positions(width)
        x = (self.positions[:width] + embedded * math.sqrt(self.config.d_model)).flatten(0, 1)
        columns = torch.arange(width, device=self.device)
        rows = torch.arange(count * width, device=self.device).view(count, width)
        visible = Visible(rows, lengths, lengths, self.kernels.bias_of(columns < lengths[:, None]))
        for layer in self.packed.encoder:
            x = layer.feed_forward(layer.attend_self(x, visible))
        return self.packed.last_norms[0](x)

    def start(self, memory: Tensor, src_mask: Tensor) -> CudaGraphCache:
        """Return the cache of a decoding of `memory` (B*S,D) before its first token: one row for each sentence."""
        count, width = src_mask.shape
        end = 1 + count * width
        self.cross = self._with_room(self.cross, end)
        for table, keys_values in zip(self.cross, self.packed.keys_values(memory.to(self.dtype)), strict=True):
            table[1:end] = keys_values
        source = torch.stack([torch.arange(1, end, width), src_mask.sum(1).cpu()], dim=1).int()
        return CudaGraphCache(1, torch.zeros(count, 0, dtype=torch.int32), source, width)

    # ---- a step --------------------------------------------------------------------------------------------------

    def decode_step(self, ids: Tensor, cache: CudaGraphCache) -> tuple[Tensor, CudaGraphCache]:
        """Return the logits (N,V) after one more token `ids` (N,) for each row, and the cache that includes it."""
        decoded, cache = self.decode(ids, cache)
        return self.logits(decoded), cache

    def decode(self, ids: Tensor, cache: CudaGraphCache) -> tuple[Tensor, CudaGraphCache]:
        """Return the decoder's output (N,D) after one more token `ids` (N,) for each row, and the cache with it.

        The output is valid until the next step. `log_probs` and `best` turn it into log-probabilities.
        """
        n = len(ids)
        count = len(cache.source)
        shape = _Shape(_power(count), n // count, max(16, _power(cache.length + 1)), max(16, _power(cache.width)))
        self.tables = self._with_room(self.tables, cache.written + shape.rows)
        self.decoded = self._with_room(self.decoded, _power(shape.rows))
        self._need_positions(cache.length + 1)
        new = torch.arange(cache.written, cache.written + shape.rows, dtype=torch.int32)
        past = torch.cat([cache.past, new[:n, None]], dim=1)
        inputs = torch.zeros(shape.size, dtype=torch.int32)
        of_ids, of_new, of_past, first, lengths, position = shape.parts(inputs)
        of_ids[:n] = ids
        of_new[:] = new
        of_past[:n, : past.size(1)] = past
        first[:count], lengths[:count] = cache.source.unbind(dim=1)
        position.fill_(cache.length)
        recording = self._recording(shape, inputs, partial(self._compute, shape))
        recording.inputs.copy_(inputs, non_blocking=True)
        self._run(recording)
        return self.decoded[0, :n], CudaGraphCache(cache.written + n, past, cache.source, cache.width)

    def _compute(self, shape: _Shape, inputs: Tensor) -> Tensor:
        """Return the decoder's output (rows, D) of a step, and write it to `decoded`."""
        ids, new, past, first, lengths, position = shape.parts(inputs.long())
        embedded = F.embedding(ids, self.model.tgt_embedding.weight)
        x = self.positions.index_select(0, position).add(embedded, alpha=math.sqrt(self.config.d_model))
        columns = torch.arange(max(shape.length, shape.width), device=self.device)
        is_past = columns[: shape.length] <= position
        is_source = columns[: shape.width] < lengths[:, None]  # (B, S)
        source = (first[:, None] + columns[: shape.width]) * is_source
        visible = Visible(past, lengths, lengths, self.kernels.bias_of(is_past))
        of_source = Visible(source, lengths, lengths, self.kernels.bias_of(is_source))
        x = self.packed.through(x, [*self.tables], new, visible, [*self.cross], of_source)
        return self.decoded[0, : shape.rows].copy_(x)

    def as_decoder(self) -> Decoder[CudaGraphCache]:
        """Return a decoding step of the model as a decoder, whose arguments are on the host."""
        return Decoder(self.decode, "cpu", self.log_probs, self.best, logits=self.logits)

    # ---- the scores of a step ------------------------------------------------------------------------------------

    def logits(self, decoded: Tensor) -> Tensor:
        """Return the logits (N,V) of all tokens by the decoder's output (N,D)."""
        return self.packed.output(decoded).float()

    def log_probs(self, decoded: Tensor) -> Tensor:
        """Return the log-probabilities (N,V) of all tokens by the decoder's output (N,D)."""
        return self.logits(decoded).log_softmax(dim=-1)

    def best(self, decoded: Tensor, count: int, barred: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return `Decoder.best` of the decoder's output (N,D) of the last step."""
        n = len(decoded)
        key = _power(n), count, *barred
        barred_ids = torch.tensor(barred, dtype=torch.int64)
        best = self._run(self._recording(key, barred_ids, partial(self._best, _power(n), count)))
        values, ids = best[:n].cpu().chunk(2, dim=1)
        return padded(values.view(torch.float32), ids.long(), count)

    def _best(self, rows: int, count: int, barred: Tensor) -> Tensor:
        """Return the best tokens in one tensor (rows, 2C): log-probabilities as integers of the same bits, then ids."""
        log_probs = self.log_probs(self.decoded[0, :rows])
        log_probs, ids = log_probs.topk(min(count + len(barred), log_probs.size(1)), dim=1)
        is_barred = (ids[:, :, None] == barred).any(dim=2)
        log_probs, ids = in_order(log_probs.masked_fill(is_barred, -math.inf), ids)
        return torch.cat([log_probs[:, :count].view(torch.int32), ids[:, :count].int()], dim=1)

    # ---- recordings ----------------------------------------------------------------------------------------------

    def _recording(self, key: Hashable, inputs: Tensor, compute: Callable[[Tensor], Tensor]) -> "_Recording":
        """Return the recording of `compute`, or a new one with these inputs. key: of all that is fixed in it."""
        recording = self.recordings.pop(key, None)
        if recording is None:
            recording = _Recording(send(inputs, self.device), compute)
        self.recordings[key] = recording
        if len(self.recordings) > MOST_RECORDINGS:
            del self.recordings[next(iter(self.recordings))]
        return recording

    def _run(self, recording: "_Recording") -> Tensor:
        try:
            return recording.run(self)
        except BaseException:  # most likely out of memory: smaller steps need the memory of the recorded ones
            self._drop_recordings()
            raise

    def _with_room(self, tables: Tensor, rows: int) -> Tensor:
        """Return the tables (..., rows, D) with at least as many rows. Recordings write to the old ones, and go."""
        if rows <= tables.size(1):
            return tables
        self._drop_recordings()
        return F.pad(tables, (0, 0, 0, _power(rows) - tables.size(1)))

    def _need_positions(self, end: int) -> None:
        """Have at least `end` positions."""
        if end > len(self.positions):
            self._drop_recordings()
            self.positions = self.model.positions(0, _power(end)).clone()


def _power(number: int) -> int:
    """Return the next power of two."""
    return 1 << max(0, number - 1).bit_length()


class _Prepared(dict[str, CudaGraphTransformer]):
    """A model with recorded steps, by precision. A copy of the model has none."""

    def __reduce__(self) -> "tuple[type[_Prepared], tuple[()]]":
        return _Prepared, ()


class _Recording:
    """A computation of inputs at a fixed address. Its first call computes, the second one records it."""

    def __init__(self, inputs: Tensor, compute: Callable[[Tensor], Tensor]) -> None:
        self.inputs = inputs
        self.compute = compute
        self.has_run = False
        self.graph: tuple[torch.cuda.CUDAGraph, Tensor] | None = None  # with its result

    def run(self, model: CudaGraphTransformer) -> Tensor:
        """Return the result, valid until the next call."""
        if not self.has_run or model.stream is None:
            self.has_run = True
            return self.compute(self.inputs)
        if self.graph is None:
            with _exclusive_recording(), torch.cuda.device(model.device):
                self.graph = self._record(model, model.stream)
        graph, result = self.graph
        graph.replay()
        return result

    def _record(self, model: CudaGraphTransformer, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                self.compute(self.inputs)  # libraries allocate at a first call, which cannot be recorded
        finally:
            torch.cuda.current_stream().wait_stream(stream)
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, model.pool, stream, capture_error_mode="thread_local"):
                result = self.compute(self.inputs)
        finally:
            torch.cuda.set_stream(before)  # a failed recording does not do this
        return graph, result


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


# ---- check on this machine ---------------------------------------------------------------------------------------

BOUNDS = {"fp32": 1e-3, "bf16": 0.1}  # of the relative error of logits


def checked_cuda_graphs(model: Transformer, precision: Precision) -> CudaGraphTransformer | None:
    """Return the model with recorded steps, the same one in each call.

    Return None, and print a line to standard error, where recorded steps fail or give other logits than the model.
    """
    transformers = vars(model).setdefault("prepared_for_gpu", _Prepared())
    transformer = transformers.get(precision)
    if transformer is not None and transformer.device == model.output.weight.device:
        return transformer
    try:
        transformer = CudaGraphTransformer(model, precision)
        error = _relative_error(transformer)
        problem = None if error < BOUNDS[precision] else f"their logits differ by {error:.1%}"
    except RuntimeError as failure:
        transformer, problem = None, str(failure).strip().split("\n")[0]
    if transformer is not None and problem is None:
        transformers[precision] = transformer
        return transformer
    print(f"transduce: translating without recorded steps, which is slower: {problem}", file=sys.stderr)
    return None


@torch.inference_mode()
def _relative_error(transformer: CudaGraphTransformer) -> float:
    """Return the relative error of the logits of two sentences, in steps that compute, then record, then replay."""
    model, precision = transformer.model, transformer.precision
    longest = min(3, model.config.max_positions or 3)
    some = torch.arange(3, 3 + 4 * longest) % model.tgt_embedding.num_embeddings
    mask = torch.tensor([[True] * longest, [True] + [False] * (longest - 1)])
    src, steps = some[: 2 * longest].view(2, -1) % model.src_embedding.num_embeddings, some.view(longest, 4)
    both, rows = torch.arange(2), torch.tensor([1, 0, 2, 2])
    with mixed_precision(precision, transformer.device):
        inputs = src.to(transformer.device), mask.to(transformer.device)
        cache = model.start(model.encode(*inputs), inputs[1]).select(both.repeat_interleave(2), both)
    graph_cache = transformer.start(transformer.encode(src, mask), mask).select(both.repeat_interleave(2), both)
    outputs, expected = [], []
    for ids in steps:
        with mixed_precision(precision, transformer.device):
            logits, cache = model.decode_step(ids.to(transformer.device), cache)
        expected.append(logits.float())
        logits, graph_cache = transformer.decode_step(ids, graph_cache)
        outputs.append(logits)
        cache, graph_cache = cache.select(rows, both), graph_cache.select(rows, both)
    difference = torch.stack(outputs) - torch.stack(expected)
    return float(difference.norm() / torch.stack(expected).norm())
