"""The device that models compute on: the one that the user chose, or the first that exists of CUDA, MPS and CPU."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from transduce.errors import UserError

if TYPE_CHECKING:  # a command without a model does not load torch
    import torch

_choice = ContextVar("device", default="auto")
VARIABLE = "TRANSDUCE_DEVICE"  # of the environment: the choice that a process has from the program that started it


@contextmanager
def on_device(name: str) -> Iterator[None]:
    """Let models compute on a device in the block: "cpu", "cuda", "cuda:N" or "mps".

    "auto" keeps the choice of an outer block, or takes the first device that exists. "cuda" is CUDA's current GPU; with
    several ranks, each has its own one. Raises UserError if the device does not exist.
    """
    if name == "auto":
        yield
        return
    _check(name)
    token = _choice.set(name)
    try:
        yield
    finally:
        _choice.reset(token)


def device(*, only_cpu: str = "") -> "torch.device":
    """Return the device for a new model.

    only_cpu: what computes only on the CPU, such as "precision='int8'". Raises UserError if a GPU was chosen for it.
    """
    import torch

    if only_cpu:
        refuse_gpu(only_cpu)
        return torch.device("cpu")
    name = _name()
    if name.startswith("cuda"):  # cuDNN would plan its attention for each shape: 15,000 in an epoch of WMT14
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def kind() -> str:
    """Return the type of the device for a new model: "cpu", "cuda" or "mps". Does not touch a GPU."""
    return _name().partition(":")[0]


def variables() -> dict[str, str]:
    """Return the environment variables with which other processes compute on the chosen device.

    With "cpu" they see no GPU, and with "cuda:N" only this one.
    """
    name, _, number = _choice.get().partition(":")
    if name == "auto":
        return {}
    if name == "cpu":
        return {VARIABLE: name, "CUDA_VISIBLE_DEVICES": ""}
    if not number:
        return {VARIABLE: name}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {VARIABLE: name, "CUDA_VISIBLE_DEVICES": visible.split(",")[int(number)] if visible else number}


def _chosen() -> str:
    """Return the choice of the block, or else of the environment; "auto" without one."""
    name = _choice.get()
    if name == "auto" and VARIABLE in os.environ:
        name = os.environ[VARIABLE]
        _check(name)
    return name


def _name() -> str:
    """Return the name of the device: the choice, or the first one that exists."""
    import torch

    name = _chosen()
    if name not in ("auto", "cpu", "cuda") and _has_ranks():
        raise UserError(
            f"device={name}: expected auto, cpu or cuda with several ranks; leave it out: each rank has its own GPU"
        )
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() and not _has_ranks() else "cpu"  # ranks cannot sum on MPS


def training_precision() -> str:
    """Return the precision that `train.precision="auto"` stands for: "bf16" on a GPU that computes it fast."""
    from transduce.model.cpu_backend import has_fast_bf16

    return "bf16" if kind() == "cuda" and has_fast_bf16(device()) else "fp32"


def refuse_gpu(why: str) -> None:
    """Raise UserError if the user has chosen a GPU. why: what computes only on the CPU."""
    name = _chosen()
    if name not in ("auto", "cpu"):
        raise UserError(f"device={name}: expected cpu with {why}; leave it out")


def _check(name: str) -> None:
    """Raise UserError for a name that is none of a device, or a device that does not exist. Loads torch for a GPU."""
    match = re.fullmatch(r"cpu|mps|cuda(?::(\d{1,4}))?", name) if isinstance(name, str) else None
    if match is None:
        raise UserError(f"device={name}: expected auto, cpu, cuda, cuda:N or mps; leave it out to take the best one")
    if name == "cpu":
        return
    import torch

    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError("device=mps: expected macOS with an Apple processor; take cpu")
    if name.startswith("cuda"):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            hidden = "" if visible is None else f", but CUDA_VISIBLE_DEVICES={visible} is set"
            raise UserError(f"device={name}: expected a GPU that torch can use{hidden}; take cpu")
        if int(match[1] or 0) >= count:
            last = f" to cuda:{count - 1}" if count > 1 else ""
            raise UserError(f"device={name}: expected cuda:0{last}; take cuda")


def _has_ranks() -> bool:
    """Return True if torchrun has started several processes."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def in_float64(values: "torch.Tensor") -> "torch.Tensor":
    """Return `values` in float64; from a GPU of Apple, which has no float64, on the CPU."""
    return (values.cpu() if values.device.type == "mps" else values).double()
