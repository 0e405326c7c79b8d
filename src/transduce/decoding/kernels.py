"""The inner loops of translation on a CPU, each twice: in torch, and in C++ (kernels.cpp).

    compiled() -> Kernels, or None where there is no compiler, or no AVX-512 with VNNI
    PLAIN      -> the same in torch: slower, needs nothing, and is what the compiled ones are tested against

Installing needs no compiler: they are compiled when first needed, and kept in the user's cache folder, by the hash of
their source.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Int8:
    """A weight (n, k) in int8, a scale for each of its n rows: w[j] is about weight[j] * scales[j]."""

    weight: Tensor  # as its kernels like it
    scales: Tensor  # (n,) fp32
    zeros: Tensor  # (n,) int32, for the compiled kernel
    bias: Tensor  # (n,) fp32
    shape: tuple[int, int]

    @functools.cached_property
    def places(self) -> tuple[int, int, int, int]:
        """Where they lie, for the compiled kernel: it is called some hundred thousand times a file."""
        return self.weight.data_ptr(), self.scales.data_ptr(), self.zeros.data_ptr(), self.bias.data_ptr()


class Kernels(Protocol):
    """What translation spends its time on. All tensors are fp32 on the CPU, rows independent of one another."""

    def pack(self, weight: Tensor, bias: Tensor) -> Int8:
        """Quantise weight (n, k), symmetrically, to a scale for each row."""
        ...

    def linear(self, x: Tensor, packed: Int8, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        """x (m, k) -> x W^T + bias (m, n), then relu, then plus `residual`. Each row of x has a scale of its own."""
        ...

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, lengths: Tensor, which: Tensor, n_heads: int
    ) -> Tensor:
        """Attention (eq. 1) of each of N queries over rows of keys and values, wherever they lie -> (N, H*W).

        queries (N, H*K), keys (R, H*K), values (R, H*W), heads side by side; keys and values with equal strides.
        Query i sees the rows index[j, :lengths[j]], j = which[i]; index (M, T), lengths (M,) and which (N,) are int32.
        """
        ...

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The log-probabilities and ids (N, count) of the likeliest tokens by logits (N, V), the best first."""
        ...


# ---- in torch ----------------------------------------------------------------------------------------------------

GATHERED = 1 << 22  # floats of keys and values that are gathered at a time


class Plain:
    """The kernels step by step."""

    def pack(self, weight: Tensor, bias: Tensor) -> Int8:
        largest = weight.abs().amax(dim=1)
        inverse = torch.where(largest > 0, 127 / largest, 0.0)
        whole = (weight * inverse[:, None]).round().to(torch.int8)
        return Int8(whole, largest / 127, torch.zeros(0, dtype=torch.int32), bias, (weight.size(0), weight.size(1)))

    def linear(self, x: Tensor, packed: Int8, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        largest = x.abs().amax(dim=1, keepdim=True)  # NaN wins
        inverse = torch.where(largest > 0, 127 / largest, 0.0)
        whole = (x * inverse).round().nan_to_num().to(torch.int8)
        sums = torch.ops.aten._int_mm(whole, packed.weight.T)
        y = sums * (largest / 127 * packed.scales) + packed.bias
        y = y.relu() if relu else y
        return y if residual is None else y + residual

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, lengths: Tensor, which: Tensor, n_heads: int
    ) -> Tensor:
        at_once = max(1, GATHERED // max(1, index.size(1) * (keys.size(1) + values.size(1))))
        out = queries.new_empty(len(queries), values.size(1))  # small results between large ones would keep their room
        for part, q, i in zip(*(x.split(at_once) for x in (out, queries, which.long())), strict=True):
            part.copy_(self._attend(q, keys, values, index[i], lengths[i], n_heads))
        return out

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, lengths: Tensor, n_heads: int
    ) -> Tensor:
        seen = torch.arange(index.size(1)) < lengths[:, None]  # (N, T)
        rows = index.long().masked_fill(~seen, 0)
        q = queries.unflatten(1, (n_heads, 1, -1))  # (N, H, 1, K)
        k, v = (x[rows].unflatten(2, (n_heads, -1)).transpose(1, 2) for x in (keys, values))  # (N, H, T, ...)
        scores = (q @ k.transpose(2, 3)) / q.size(-1) ** 0.5
        weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(dim=-1)
        return (weights @ v).flatten(1)

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        values, ids = logits.topk(count, dim=1)
        return values - logits.logsumexp(dim=1, keepdim=True), ids


PLAIN = Plain()

# ---- in C++ ------------------------------------------------------------------------------------------------------


POINTER, WHOLE = ctypes.c_void_p, ctypes.c_long
ARGUMENTS = {  # of the functions of kernels.cpp
    "pack_int8": [POINTER, WHOLE, WHOLE, POINTER, POINTER, POINTER],
    "linear_int8": [POINTER, WHOLE, WHOLE, *[POINTER] * 4, WHOLE, WHOLE, POINTER, POINTER],
    "attend": [POINTER, WHOLE, POINTER, POINTER, WHOLE, POINTER, WHOLE, POINTER, POINTER, *[WHOLE] * 4, POINTER],
    "best": [POINTER, WHOLE, WHOLE, WHOLE, POINTER, POINTER],
}


class Compiled:
    """The kernels of kernels.cpp; calls of several threads run side by side."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        for name, arguments in ARGUMENTS.items():
            getattr(library, name).argtypes, getattr(library, name).restype = arguments, None

    def pack(self, weight: Tensor, bias: Tensor) -> Int8:
        n, k = weight.shape
        packed = torch.empty(-(-n // 64), -(-k // 4), 64, 4, dtype=torch.int8)
        scales, zeros = torch.empty(n), torch.empty(n, dtype=torch.int32)
        places = packed.data_ptr(), scales.data_ptr(), zeros.data_ptr()
        weight = weight.contiguous()  # named, so that it outlives the call
        self.library.pack_int8(weight.data_ptr(), n, k, *places)
        return Int8(packed, scales, zeros, bias.contiguous(), (n, k))

    def linear(self, x: Tensor, packed: Int8, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        (n, k), m = packed.shape, x.size(0)
        assert x.is_contiguous() and x.size(1) == k and (residual is None or residual.is_contiguous())
        y = torch.empty(m, n)
        added = None if residual is None else residual.data_ptr()
        self.library.linear_int8(x.data_ptr(), m, k, *packed.places, n, relu, added, y.data_ptr())
        return y

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, index: Tensor, lengths: Tensor, which: Tensor, n_heads: int
    ) -> Tensor:
        n, apart = len(which), keys.stride(0)
        d_k, d_v = queries.size(1) // n_heads, values.size(1) // n_heads
        assert apart == values.stride(0) and index.is_contiguous()
        out = torch.empty(n, n_heads * d_v)
        rows = queries.data_ptr(), queries.stride(0), keys.data_ptr(), values.data_ptr(), apart
        seen = index.data_ptr(), index.size(1), lengths.data_ptr(), which.data_ptr()
        self.library.attend(*rows, *seen, n, n_heads, d_k, d_v, out.data_ptr())
        return out

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        n, v = logits.shape
        values, ids = torch.empty(n, count), torch.empty(n, count, dtype=torch.int64)
        logits = logits.contiguous()
        self.library.best(logits.data_ptr(), n, v, count, values.data_ptr(), ids.data_ptr())
        return values, ids


# ---- compiling ---------------------------------------------------------------------------------------------------

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")
NEEDED = ("avx512f", "avx512bw", "avx512_vnni")


@functools.cache
def compiled() -> Compiled | None:
    """The compiled kernels; None where they cannot be had."""
    compiler = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
    if compiler is None or not _has_instructions():
        return None
    try:
        return Compiled(ctypes.CDLL(str(_library(compiler))))
    except (OSError, subprocess.SubprocessError):
        return None


def _has_instructions() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return all(name in flags for name in NEEDED)


def _library(compiler: str) -> Path:
    """Where the library is, compiled now if it is not there yet."""
    key = hashlib.sha256(SOURCE.read_bytes() + "\0".join((compiler, *FLAGS, *_processor())).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transduce"
    path = cache / f"kernels-{key}.so"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = Path(folder) / path.name
            command = [compiler, *FLAGS, "-w", str(SOURCE), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            os.replace(made, path)
    return path


def _processor() -> Sequence[str]:
    """What -march=native hangs on: a cache folder may be shared by machines."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return sorted({line for line in lines if line.startswith(("model name", "flags"))})
