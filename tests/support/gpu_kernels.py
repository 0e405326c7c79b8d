"""The kernels that torch.compile writes for an H100. With fake tensors that needs neither a GPU nor Triton."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config, scheduler
from torch._inductor.fx_passes import fuse_attention, misc_patterns, pad_mm
from torch._inductor.graph import GraphLowering
from torch._subclasses import fake_tensor
from torch.utils import _triton

H100 = SimpleNamespace(
    name="H100", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132, warp_size=32,
    max_threads_per_multi_processor=2_048, max_threads_per_block=1_024, regs_per_multiprocessor=65_536,
    L2_cache_size=50 << 20, gcnArchName=None,
)  # fmt: skip
CUDA = {
    "is_available": True, "device_count": 1, "current_device": 0, "get_device_properties": H100,
    "get_device_capability": (9, 0), "_lazy_init": None, "_exchange_device": 0, "_maybe_exchange_device": 0,
    "get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None, "set_device": None,
}  # fmt: skip


class _CodeError(Exception):
    """Ends the compilation when the code, the argument, is complete."""


def kernels(function: Callable[..., Any], make_args: Callable[[], tuple[Any, ...]]) -> list[str]:
    """Return the Triton code of the kernels of `function`. make_args: returns its arguments, tensors of "cuda"."""
    torch._dynamo.reset()  # it may have code of the function for another device, and sizes that are variables
    with _h100(), fake_tensor.FakeTensorMode():
        try:
            torch.compile(function)(*make_args())
        except Exception as problem:
            cause: BaseException | None = problem
            while not isinstance(cause, _CodeError):
                if cause is None:
                    raise
                cause = cause.__cause__ or cause.__context__
            return re.findall(r"async_compile\.triton\('\w+', '''(.*?)'''", cause.args[0], re.DOTALL)
    raise AssertionError("torch.compile wrote no code")


@contextmanager
def _h100() -> Iterator[None]:
    """Let torch.compile find an H100, and stop when it has written the code."""

    def stop(code: str) -> None:
        raise _CodeError(code)

    returned = [
        (fake_tensor, "init_gpu_context", None),
        (CudaInterface, "get_compute_capability", 90),
        (CudaInterface, "get_device_properties", H100),
        (CudaInterface.Worker, "get_device_properties", H100),
        (scheduler, "has_triton", True),
        (_triton, "triton_hash_with_backend", ""),
        (fuse_attention, "_sfdp_init", None),  # patterns that need tensors with values
        (pad_mm, "_pad_mm_init", None),
        (misc_patterns, "_misc_patterns_init", None),
        *((torch.cuda, name, value) for name, value in CUDA.items()),
    ]
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # torch warns of its own old code
        stack.enter_context(config.patch(compile_threads=1))
        stack.enter_context(mock.patch.object(GraphLowering, "save_output_code", staticmethod(stop)))
        for module, name, value in returned:
            stack.enter_context(mock.patch.object(module, name, lambda *_, value=value: value))
        yield
