"""Tensors that say they are on a GPU, and have their values in a tensor on the CPU.

An operation on them computes on the CPU. First it is refused where a GPU would refuse it: tensors of two devices, a
generator of the CPU, a wait during a recording. Speed, memory and streams are not imitated. After `keep_no_values`
nothing is computed, and every value that the host reads is 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from support.kernels import VIEWS, n_bytes
from support.pretend_gpu import record

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
_home = [CPU]  # the device of the values
# Operations whose result depends on values, so that the host waits for them.
READS = {
    "_local_scalar_dense", "_unique2", "equal", "is_nonzero", "masked_select", "nonzero", "unique_consecutive",
    "unique_dim",
}  # fmt: skip
PLAIN = {"_local_scalar_dense", "equal", "is_nonzero"}  # of these, the result is no tensor
INDEXINGS = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
NO_NUMPY = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."


def home() -> torch.device:
    """Return the device of the values of new tensors: the CPU, or "meta" for none."""
    return _home[0]


def keep_no_values() -> None:
    """Give new tensors only a shape, to count the work of sizes that a CPU cannot compute."""
    _home[0] = torch.device("meta")
    KERNELS.clear()  # torch knows the shapes of their outputs
    KERNELS["_local_scalar_dense"] = lambda x: torch.zeros((), dtype=x.dtype).item()


class GpuTensor(torch.Tensor):
    """A tensor of the pretend GPU. values: the tensor that holds its values."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "GpuTensor":
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=GPU,
        )
        tensor.values = values
        return tensor

    def __repr__(self, *, tensor_contents: None = None) -> str:
        return f"GpuTensor({self.values})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = GpuTensor(self.values.detach().clone()).requires_grad_(self.requires_grad)
            memo[id(self)] = torch.nn.Parameter(copied) if isinstance(self, torch.nn.Parameter) else copied
        return memo[id(self)]

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(NO_NUMPY)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(NO_NUMPY)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


# ---- a recording of kernels (CUDA graph) -------------------------------------------------------------------------


class Tape:
    """The operations of a recording, with the tensors that they read and write."""

    current: "Tape | None" = None

    def __init__(self) -> None:
        self.operations: list[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Any]] = []
        self.kernels = 0  # how many of the operations are kernels

    def add(self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], to: Any) -> None:
        """Record an operation. to: its outputs."""
        self.operations.append((func, args, kwargs, to))
        self.kernels += name not in VIEWS

    def replay(self) -> None:
        """Compute all operations again, into the tensors of the recording."""
        for func, args, kwargs, outputs in self.operations:
            for old, new in zip(tree_leaves(outputs), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.numel() and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _wait(name: str) -> None:
    """Let the host wait for the GPU, which a recording forbids."""
    if Tape.current is not None:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({name})")
    record.add_wait(name)


# ---- one operation -----------------------------------------------------------------------------------------------


def compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an operation of torch with at least one tensor of the GPU."""
    name = func.overloadpacket.__name__
    if name == "_to_copy":
        return _copy_to_device(func, args[0], kwargs)
    if name == "copy_" and type(args[0]) is not type(args[1]):
        return _copy_between_devices(*args, **kwargs)
    _refuse_cpu_generators(args, kwargs)
    _check_devices(name, func, args, kwargs)
    if name in READS:
        _wait(name)
    if name in INDEXINGS and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
        _wait(f"{name} with a mask")
    if name in INDEXINGS and len(args) > 2 and not isinstance(args[2], GpuTensor):
        record.add_copy_to_gpu()
        _wait(f"{name} of a number on the CPU")
    own = {**kwargs}
    own.pop("pin_memory", None)
    is_read = torch.device(kwargs.get("device") or GPU).type == "cpu"
    if own.get("device") is not None:
        own["device"] = CPU if is_read else home()
    inputs, options = tree_map(values_of, args), tree_map(values_of, own)
    kernel = KERNELS.get(name, func)
    outputs = kernel(*inputs, **options)
    if name not in VIEWS:
        record.add_kernel(name, n_bytes(tree_leaves((inputs, options, outputs))))
    if Tape.current is not None and not func.is_view and name not in ("alias", "detach"):
        Tape.current.add(name, kernel, inputs, options, outputs)
    if name in PLAIN or is_read:
        return outputs
    return return_and_correct_aliasing(func, tuple(args), dict(kwargs), tree_map(on_gpu, outputs))


KERNELS: dict[str, Callable[..., Any]] = {}  # of operations that a CPU lacks


def on_gpu(value: Any) -> Any:
    """Return a tensor of the GPU with these values; anything else as it is."""
    return GpuTensor(value) if isinstance(value, Tensor) and not isinstance(value, GpuTensor) else value


def values_of(value: Any) -> Any:
    if isinstance(value, Tensor) and not isinstance(value, GpuTensor):
        return value.to(home())  # a number, or an index
    return value.values if isinstance(value, GpuTensor) else value


def _read(values: Tensor) -> Tensor:
    """Return the values as the host reads them."""
    return torch.zeros(values.shape, dtype=values.dtype) if values.is_meta else values


def _copy_to_device(func: Any, source: GpuTensor, kwargs: Mapping[str, Any]) -> Tensor:
    options = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking", "pin_memory")}
    copied = func(source.values, **options)
    if copied.numel() and copied.data_ptr() == source.values.data_ptr():
        copied = copied.clone()
    if torch.device(kwargs.get("device") or GPU).type == "cpu":
        _wait("a copy to the CPU")
        return _read(copied)
    record.add_kernel("_to_copy", n_bytes((source, copied)))
    if Tape.current is not None:
        Tape.current.add("_to_copy", func, (source.values,), options, copied)
    return GpuTensor(copied)


def _copy_between_devices(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if not isinstance(target, GpuTensor):
        _wait("a copy to the CPU")
        return target.copy_(_read(values_of(source)))
    if source.dim() and Tape.current is not None:
        raise RuntimeError("Cannot copy between CPU and CUDA tensors during CUDA graph capture")
    record.add_copy_to_gpu()
    if not non_blocking:
        _wait("a copy to the GPU")
    target.values.copy_(source)
    return target


def _refuse_cpu_generators(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for value in tree_leaves((args, kwargs)):
        if isinstance(value, torch.Generator) and value.device.type == "cpu":
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def _check_devices(name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a tensor of the CPU, unless it is a number, or the index of a tensor of the GPU."""
    leaves = tree_leaves((args, kwargs))
    on_cpu = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, GpuTensor) and x.dim()]
    if not on_cpu:
        return
    if name in INDEXINGS and isinstance(args[0], GpuTensor) and all(any(x is i for i in args[1]) for x in on_cpu):
        _wait(f"{name} with an index on the CPU")
        return
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({func})"
    )


# ---- attention, for which a GPU has kernels of its own -----------------------------------------------------------


def _weights(q: Tensor, k: Tensor, bias: Tensor | None, *, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """Return the attention weights (B,H,T,S) and the logarithms of their normalizers (B,H,T), in fp32."""
    scores = q.float() @ k.float().mT * (scale or q.size(-1) ** -0.5)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if bias is not None and bias.numel():
        scores = scores + bias.float()
    return scores.softmax(-1), scores.logsumexp(-1)


def _kept(shape: torch.Size, dropout: float, seed: Tensor) -> Tensor | float:
    """Return the factors of dropout that belong to a seed."""
    if not dropout:
        return 1.0
    generator = torch.Generator().manual_seed(int(seed))
    return (torch.rand(shape, generator=generator) >= dropout) / (1 - dropout)


def _in_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x (B,H,T,W) in the memory order of the kernel, (B,T,H,W)."""
    return x.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, needs_normalizers: bool, dropout: float = 0.0,
    causal: bool = False, *, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    seed = torch.randint(1 << 40, ())
    weights, normalizers = _weights(q, k, bias, causal=causal, scale=scale)
    heads = weights * _kept(weights.shape, dropout, seed) @ v.float()
    kept = normalizers if needs_normalizers else normalizers.new_empty(0)
    return _in_rows(heads, q.dtype), kept, seed, torch.zeros((), dtype=torch.int64)


def _attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, _: Tensor, __: Tensor, seed: Tensor,
    ___: Tensor, dropout: float, needs: Sequence[bool], causal: bool = False, *, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    weights, _ = _weights(q, k, bias, causal=causal, scale=scale)
    kept = _kept(weights.shape, dropout, seed)
    grad_values = (weights * kept).mT @ grad.float()
    grad_weights = grad.float() @ v.float().mT * kept
    grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
    factor = scale or q.size(-1) ** -0.5
    grad_bias = grad_scores.to(q.dtype) if needs[3] and bias is not None else torch.empty(0)
    grads = grad_scores @ k.float() * factor, grad_scores.mT @ q.float() * factor, grad_values
    return *(_in_rows(x, q.dtype) for x in grads), grad_bias


KERNELS["_scaled_dot_product_efficient_attention"] = _attend
KERNELS["_scaled_dot_product_efficient_attention_backward"] = _attend_backward
