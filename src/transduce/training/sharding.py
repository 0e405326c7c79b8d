"""A model in shards: each rank keeps a part of every parameter (FSDP2)."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from transduce.config.schema import TrainConfig
from transduce.errors import UserError
from transduce.model import devices
from transduce.model.transformer import DecoderLayer, Transformer
from transduce.training.distributed import is_leader, lost_ranks_raise, world_size


def shard_problems(train: TrainConfig) -> list[str]:
    """Return the reasons why the model cannot be sharded, one line each."""
    lines = []
    if world_size() == 1:
        lines.append("--shard: expected several ranks; start them: torchrun --nproc-per-node 2 -m transduce train ...")
    if train.optimizer != "adam":
        lines.append(f"--shard: expected train.optimizer='adam', not {train.optimizer!r}, which needs whole matrices")
    if train.lora_rank is not None:
        lines.append(f"--shard: must not be set with train.lora_rank={train.lora_rank}, which needs whole matrices")
    return lines


def shard(model: nn.Module) -> None:
    """Keep only a shard of every parameter of `model` on each rank, and of all tensors made like it (FSDP2).

    A layer is gathered while it computes. The decoder computes the keys and values of the encoder's output outside of
    its layers, so each cross-attention is a separate group. Gradients are summed in the backward pass, so all ranks run
    the same number of forward and backward passes.
    Raises UserError if `model` is not a Transformer.
    """
    if not isinstance(model, Transformer):
        raise UserError("--shard: expected model.kind='transformer'; leave it out, models of other kinds are small")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)  # about writes to views, which do not occur
    mesh = init_device_mesh(devices.kind(), (world_size(),))
    decoder = cast(Iterable[DecoderLayer], model.decoder)
    for module in [*model.encoder, *(layer.cross_attention for layer in decoder), *model.decoder]:
        fully_shard(module, mesh=mesh)
    for layer in decoder:
        register_fsdp_forward_method(layer.cross_attention, "keys_values")
    fully_shard(model, mesh=mesh, reshard_after_forward=False)  # the loss reads the output matrix after the model
    for name in ("encode", "decode"):
        register_fsdp_forward_method(model, name)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # sum, not mean
            module.set_force_sum_reduction_for_comms(True)


def is_sharded(values: Tensor) -> bool:
    """Return True for a DTensor, of which each rank has a shard. Does not import DTensor, which takes two seconds."""
    return hasattr(values, "full_tensor")


def full_tensor(values: Tensor) -> Tensor:
    """Return the whole tensor on every rank. A tensor that is not sharded is returned unchanged."""
    if not is_sharded(values):
        return values
    with lost_ranks_raise():
        return cast(Any, values).full_tensor()


def gather_on_leader(tensors: Mapping[str, Tensor], *, copy: bool = False) -> dict[str, Tensor]:
    """Return full tensors on the CPU on rank 0, and an empty dict on the other ranks.

    The other ranks hold one full tensor at a time. copy: also copy the full tensors that are on the CPU already.
    """
    gathered = {}
    for name, values in tensors.items():
        values = full_tensor(values.detach())
        if is_leader():
            gathered[name] = _on_host(values) if values.is_cuda else values.to("cpu", copy=copy)
    return gathered


def _on_host(values: Tensor) -> Tensor:
    """Return a copy of a tensor of CUDA in pinned memory, to which a GPU copies several times faster.

    torch keeps pinned memory for the next copy. Some systems, such as WSL, pin little; then it is usual memory.
    """
    try:
        host = torch.empty_like(values, device="cpu", pin_memory=True)
    except RuntimeError:
        return values.cpu()
    return host.copy_(values)


def shard_like(values: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's shard of the full tensor `values`, divided as `parameter` is, on the device of `parameter`.

    If `parameter` is not sharded, return all of `values`.
    """
    if not is_sharded(parameter):
        return values.to(parameter.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(values.to(parameter.device), mesh, placements, src_data_rank=None)
