"""The parts of torch that ask for a GPU, made to find the pretend one."""

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from support.pretend_gpu import compiler, record
from support.pretend_gpu.tensors import GpuTensor, Tape, home

ATTENTION = F.scaled_dot_product_attention
NAME = "Pretend GPU"
MEMORY = 80 << 30  # bytes
_library = torch.library.Library("aten", "IMPL")


def install() -> None:
    """Let torch find one GPU, sm90, from now on."""
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)  # so that tied parameters stay tied
    _replace_factories()
    _replace_functions()
    F.scaled_dot_product_attention = attention
    torch.inference_mode = _InferenceMode  # type: ignore[misc]
    torch.compile = compiler.compile  # type: ignore[assignment]


def _replace_factories() -> None:
    """Let the functions that make a tensor on a GPU make a pretended one."""

    def register(name: str) -> None:
        packet, _, overload = name.partition(".")
        function = getattr(getattr(torch.ops.aten, packet), overload or "default")

        def make(*args: Any, pin_memory: bool | None = None, **options: Any) -> Tensor:
            if "empty" not in packet:
                record.add_kernel(packet, 0)
            return GpuTensor(function(*args, **{**options, "device": home()}))

        _library.impl(name, make, "CUDA")

    for name in (
        "empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "linspace", "eye",
        "eye.m", "randperm",
    ):  # fmt: skip
        register(name)


class _InferenceMode(torch.no_grad):
    """Stands for torch.inference_mode, in which a tensor of this kind cannot be a view."""

    def __new__(cls, mode: bool = True) -> Any:
        return super().__new__(cls) if mode else torch.enable_grad()

    def __init__(self, mode: bool = True) -> None:
        super().__init__()


class Stream:
    """A stream whose work is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, stream: "Stream") -> None: ...

    def synchronize(self) -> None:
        record.add_wait("Stream.synchronize")


class Graph:
    """A recorded sequence of kernels."""

    def __init__(self) -> None:
        self.tape = Tape()

    def replay(self) -> None:
        record.add_replay(self.tape.kernels)
        self.tape.replay()


@contextlib.contextmanager
def graph(recorded: Graph, pool: object = None, stream: object = None, capture_error_mode: str = "global") -> Any:
    """Record the kernels of the block."""
    assert Tape.current is None
    Tape.current = recorded.tape
    try:
        with record.not_recording():
            yield
    finally:
        Tape.current = None


def _replace_functions() -> None:
    cuda: Any = torch.cuda
    main = Stream()
    properties = SimpleNamespace(total_memory=MEMORY, major=9, minor=0, name=NAME)
    for name, value in {
        "is_available": True, "device_count": 1, "current_device": 0, "is_initialized": True, "_lazy_init": None,
        "_is_in_bad_fork": False, "is_bf16_supported": True, "manual_seed": None, "manual_seed_all": None,
        "get_rng_state_all": (), "get_device_capability": (9, 0), "get_device_name": NAME,
        "get_device_properties": properties, "max_memory_allocated": 0, "memory_allocated": 0, "memory_reserved": 0,
        "mem_get_info": (MEMORY, MEMORY), "reset_peak_memory_stats": None, "empty_cache": None,
        "set_per_process_memory_fraction": None, "current_stream": main, "set_stream": None,
        "graph_pool_handle": (0, 0), "stream": contextlib.nullcontext(), "device": contextlib.nullcontext(),
    }.items():  # fmt: skip
        setattr(cuda, name, lambda *_, value=value, **__: value)
    cuda.set_device = _set_device
    cuda.Stream = Stream
    cuda.CUDAGraph = Graph
    cuda.graph = graph
    cuda.set_sync_debug_mode = record.set_sync_debug_mode
    cuda.synchronize = lambda *_: record.add_wait("synchronize")
    torch.accelerator.synchronize = cuda.synchronize
    torch.Tensor.pin_memory = _pinned  # type: ignore[method-assign, assignment]
    torch.Tensor.is_pinned = lambda self, device=None: hasattr(self, "in_pinned_memory")  # type: ignore[method-assign]
    for module in (torch.utils._foreach_utils, torch.nn.utils.clip_grad):  # type: ignore[attr-defined]
        module._has_foreach_support = lambda tensors, device: True


def _set_device(device: torch.device | int) -> None:
    if isinstance(device, torch.device) and device.index is None:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")


def _pinned(tensor: Tensor, device: object = None) -> Tensor:
    copied = tensor.clone()
    copied.in_pinned_memory = True  # type: ignore[attr-defined]
    return copied


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Stand for torch's function, with the memory-efficient kernel where an H100 has one that fits."""
    tensors = [query, key, value]
    if not isinstance(query, GpuTensor):
        return ATTENTION(*tensors, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.is_autocast_enabled("cuda"):
        tensors = [x.to(torch.get_autocast_dtype("cuda")) for x in tensors]
    query, key, value = tensors
    if len({x.dtype for x in tensors}) > 1:
        raise RuntimeError(f"Expected query, key, and value to have the same dtype: {[x.dtype for x in tensors]}")
    kernel = _kernel(query, key, value, has_mask=attn_mask is not None)
    record.add_attention(kernel, has_mask=attn_mask is not None)
    if kernel == "math":
        return ATTENTION(*tensors, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    keeps_normalizers = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    attend = torch.ops.aten._scaled_dot_product_efficient_attention
    return attend(query, key, value, bias, keeps_normalizers, dropout_p, is_causal, scale=scale)[0]


def _kernel(query: Tensor, key: Tensor, value: Tensor, *, has_mask: bool) -> str:
    """Return the name of the kernel that torch takes on an H100 unless the program chooses."""
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    widths = {x.size(-1) for x in (query, key, value)}
    if is_half and len(widths) == 1 and query.size(-1) <= 256:
        if query.size(-1) % 8 == 0 and torch.backends.cuda.cudnn_sdp_enabled():
            return "cudnn"
        if not has_mask and torch.backends.cuda.flash_sdp_enabled():
            return "flash"
    multiple = 8 if is_half else 4
    fits = query.size(1) == key.size(1) and not any(width % multiple for width in widths)
    return "efficient" if fits else "math"


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return a mask as what is added to the scores, in rows at multiples of 16 bytes, as the kernel reads it."""
    if mask.dtype == torch.bool:
        record.add_mask_conversion()
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    if torch.is_autocast_enabled("cuda"):
        mask = mask.to(query.dtype)
    if mask.dtype != query.dtype:
        raise RuntimeError(f"Expected attn_mask to be bool or to have the query's dtype, not {mask.dtype}")
    if mask.size(-1) == 1 < key.size(2):
        raise RuntimeError("(*bias): last dimension must be contiguous")
    if any(stride % 8 for stride in mask.stride()[:-1]):
        width = mask.size(-1)
        mask = F.pad(mask, (0, 8 - width % 8))[..., :width]
    return mask.expand(*query.shape[:3], key.size(2))
