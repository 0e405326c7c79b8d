"""Shared by the parts of gpu.py: random sentences, the clock and counts."""

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gpu_setup  # noqa: F401  before the package
import numpy as np
import torch
from support.kernels import Operations
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from transduce.config.schema import ModelConfig
from transduce.data.batches import Batch, collate
from transduce.model import devices

DEVICE = devices.device() if torch.cuda.is_available() else torch.device("cpu")


@dataclass(frozen=True)
class Scale:
    """The sizes of all parts."""

    sizes: dict[str, ModelConfig]
    batch_tokens: int
    longest: int  # tokens of the longest sentence
    steps: int
    rounds: int
    product: int  # rows and columns of the matrices of the ceiling
    sentences: int  # translated in one call


BASE = ModelConfig(vocab_size=37_000)
BIG = replace(BASE, d_model=1024, d_ff=4096, n_heads=16, dropout=0.3)
SMALL = ModelConfig(vocab_size=101, d_model=32, n_layers=2, n_heads=4, d_ff=64)
FULL = Scale({"base": BASE, "big": BIG}, 25_000, 100, 8, 5, 8_192, 512)
TINY = Scale({"base": SMALL, "big": replace(SMALL, d_model=48)}, 300, 20, 1, 1, 64, 6)


def sentences(count: int, longest: int, vocab_size: int, seed: int) -> list[np.ndarray]:
    """Return random ids with the lengths of news sentences: many of 10 to 40 tokens, some long."""
    generator = np.random.default_rng(seed)
    lengths = np.clip(generator.lognormal(3.1, 0.55, count), 1, longest - 1).astype(int)
    return [generator.integers(4, vocab_size, length) for length in np.sort(lengths)]


def batch_of(tokens: int, longest: int, vocab_size: int, seed: int) -> Batch:
    """Return a batch of about `tokens` on each side, of sentences of similar length."""
    src, tgt = (sentences(4 * tokens // 10, longest, vocab_size, seed + side) for side in range(2))
    start = int(np.random.default_rng(seed).integers(len(src) // 4, len(src) // 2))
    end = start
    while end < len(src) and max(sum(len(s) + 1 for s in side[start : end + 1]) for side in (src, tgt)) <= tokens:
        end += 1
    return collate(src[start:end], tgt[start:end])


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Return the median time of `work`, after a first call that warms up."""
    times = []
    for _ in range(repeats + 1):
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def waits(work: Callable[[], Any]) -> int | None:
    """Return the number of times that `work` waits for the GPU, or None without one."""
    if DEVICE.type != "cuda":
        return None
    wait()
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in messages)  # not the notice of the mode


def counts(work: Callable[[], Any], steps: int = 1) -> dict[str, Any]:
    """Return what each of the `steps` of `work` gives to the device.

    operations, gb_moved, copies_to_gpu: as gpu_counts.py counts them; what is recorded or compiled is not among them.
    kernels: all that have run, from torch's profiler; None without a real GPU.
    """
    with Operations(DEVICE.type) as operations:
        work()
    kernels = None
    if DEVICE.type == "cuda" and torch.version.cuda is not None:
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            work()
            wait()
        on_gpu = [event.name for event in profiler.events() if event.device_type == DeviceType.CUDA]
        kernels = sum(not name.startswith(("Memcpy", "Memset")) for name in on_gpu)
    n_waits = waits(work)
    return {
        "kernels": kernels and round(kernels / steps, 1),
        "operations": round(operations.count / steps, 1),
        "gb_moved": round(operations.bytes_moved / steps / 1e9, 3),
        "copies_to_gpu": round(operations.copies_to_gpu / steps, 1),
        "waits": n_waits and round(n_waits / steps, 2),
    }


def or_problem(work: Callable[[], dict[str, Any]]) -> dict[str, Any] | str:
    """Return the result of `work`, or one line with its error, so that the other sides still run."""
    try:
        return work()
    except (RuntimeError, ImportError, TypeError, ValueError, AttributeError) as problem:
        return f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0][:200]}"
    finally:
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
