"""Settings that make a CPU fast: the memory of the C library, and oneDNN's matrix products."""

import contextlib
import ctypes
import functools
from collections.abc import Iterator

import torch

# ---- memory ------------------------------------------------------------------------------------------------------


def keep_freed_memory() -> None:
    """Let this process keep what it frees, for the next of the large tensors that come and go with every step.

    The C library would give it back and ask anew; each page is then filled with zeros, which takes a quarter of the
    time. For programs that do little else; does nothing without glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for setting, value in ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            library.mallopt(setting, value)


# ---- matrix products in fp32 --------------------------------------------------------------------------------------


@contextlib.contextmanager
def faster_products(device: torch.device) -> Iterator[None]:
    """Let oneDNN do the fp32 matrix products on a CPU, in place of MKL, where it rounds as little.

    On processors that MKL does not know it is twice as fast. torch's switch for it is meant to allow products in bf16,
    and on some processors it does: so it is tried first.
    """
    before = torch.get_float32_matmul_precision()
    if device.type != "cpu" or before != "highest" or not _onednn_is_exact():
        yield
        return
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@functools.cache
def _onednn_is_exact() -> bool:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(512, 512, generator=generator) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = [(x[:m] @ y).double() - x[:m].double() @ y.double() for m in (16, 512)]
    finally:
        torch.set_float32_matmul_precision(before)
    return all(error.square().mean().sqrt() < 512**0.5 * EXACT for error in found)


EXACT = 2e-6  # of a product whose sums have a standard deviation of 1: fp32 has 4e-7, TF32 3e-4, bf16 2e-3
