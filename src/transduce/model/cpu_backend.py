"""CPU settings for speed: memory of the C library, and matrix products by oneDNN or in bf16."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator

import torch

# ---- memory ------------------------------------------------------------------------------------------------------


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, so that the large tensors of the next step reuse it.

    Otherwise the library returns the memory to the system and requests it again, and the system fills each page with
    zeros. This takes a quarter of the time. Use it in a process that does little else. Without glibc it has no effect.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # the last: Windows has no library without a name
        library = ctypes.CDLL(None)
        for setting, value in ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            library.mallopt(setting, value)


CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # of oneDNN; of torch's layer above it
SHAPES = "64"


def limit_kept_code() -> None:
    """Let oneDNN keep the code of 64 products instead of 1,024. Call it before the first product of a process.

    oneDNN compiles code for each shape, of 0.1 to 0.5 MB. Batches of a training have hundreds of shapes: after a
    hundred steps of multi30k-tiny the process had 1,380 MB, and has 850 MB with this limit, at the same speed.
    A user's own setting of the variables stays.
    """
    for name in CAPACITIES:
        os.environ.setdefault(name, SHAPES)


HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")  # torch for macOS is built without it

# ---- matrix products in bf16 --------------------------------------------------------------------------------------


def has_fast_bf16(device: torch.device) -> bool:
    """Check whether `device` has instructions for products in bf16.

    NVIDIA's GPUs have them from Ampere on; torch computes such products on older ones too, more slowly. Of Apple's GPUs
    we do not know. A CPU without them (an x86-64 processor without AVX-512) takes 25 to 55 times as long for a product
    in bf16 as in fp32 (matrices of 128 and 256 rows, on an AMD EPYC with AVX2).
    """
    if device.type == "cuda":
        return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and HAS_ONEDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()


# ---- matrix products in fp32 --------------------------------------------------------------------------------------


# Only the settings of oneDNN's products: the settings of other devices are the user's.
PRODUCTS = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def faster_products(device: torch.device) -> Iterator[None]:
    """Let oneDNN compute the fp32 matrix products on a CPU instead of MKL, if it is as exact.

    On processors that MKL does not know, oneDNN is twice as fast. torch's switch for it also permits products in bf16,
    which some processors then use. oneDNN is therefore used only if trial products are exact.
    """
    if device.type != "cpu" or PRODUCTS.fp32_precision not in ("none", "ieee") or not _onednn_is_exact():
        yield
        return
    with _onednn():
        yield


@contextlib.contextmanager
def _onednn() -> Iterator[None]:
    before = PRODUCTS.fp32_precision
    PRODUCTS.fp32_precision = "bf16"
    try:
        yield
    finally:
        PRODUCTS.fp32_precision = before


@functools.cache
def _onednn_is_exact() -> bool:
    """Check whether torch has oneDNN, and its rounding error in products with few rows and with many."""
    if not HAS_ONEDNN:
        return False
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(512, 512, generator=generator) for _ in range(2))
    with _onednn():
        errors = [(x[:m] @ y).double() - x[:m].double() @ y.double() for m in (16, 512)]
    return all(error.square().mean().sqrt() < 512**0.5 * EXACT for error in errors)


EXACT = 2e-6  # maximum error of a product whose sums have standard deviation 1: fp32 has 4e-7, TF32 3e-4, bf16 2e-3
