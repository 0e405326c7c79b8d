"""A model in shards: each rank keeps a part of every parameter (FSDP2)."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from transduce.errors import UserError
from transduce.model.transformer import DecoderLayer, Transformer
from transduce.training.distributed import device, is_leader, lost_ranks_raise, world_size


def shard_problems() -> list[str]:
    """What keeps a model from being in shards, one line each."""
    if world_size() > 1:
        return []
    return ["--shard has no effect on one process; start several: torchrun --nproc-per-node 2 -m transduce train ..."]


def shard(model: nn.Module) -> None:
    """Let each rank keep a part of every parameter of `model`, and of all that is made like it (FSDP2).

    A layer is put together from its parts while it computes. Keys and values of the encoder's output are computed
    outside of the layers of the decoder, hence a group of their own. Gradients are then summed in the backward pass, so
    each rank has to go forward and backward as often as any other. UserError if `model` is no Transformer.
    """
    if not isinstance(model, Transformer):
        raise UserError("--shard is for models of the kind 'transformer'; leave it out, the others are small")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)  # of views that are written to; ours are not
    mesh = init_device_mesh(device().type, (world_size(),))
    decoder = cast(Iterable[DecoderLayer], model.decoder)
    for part in [*model.encoder, *(layer.cross_attention for layer in decoder), *model.decoder]:
        fully_shard(part, mesh=mesh)
    for layer in decoder:
        register_fsdp_forward_method(layer.cross_attention, "keys_values")
    fully_shard(model, mesh=mesh, reshard_after_forward=False)  # the loss needs its output matrix after it
    for name in ("encode", "decode"):
        register_fsdp_forward_method(model, name)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)  # the sum, not the mean
            part.set_force_sum_reduction_for_comms(True)


def is_sharded(values: Tensor) -> bool:
    """Whether each rank has only a part of this tensor: a DTensor, whose import takes two seconds."""
    return hasattr(values, "full_tensor")


def full_tensor(values: Tensor) -> Tensor:
    """All of a tensor of which each rank may have a part: itself if not. Every rank gets it."""
    if not is_sharded(values):
        return values
    with lost_ranks_raise():
        return cast(Any, values).full_tensor()


def gather_on_leader(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, whole and on the CPU, for rank 0; nothing for the others, which have one of them at a time.

    Those that are whole and on the CPU already are not copied.
    """
    found = {}
    for name, values in tensors.items():
        values = full_tensor(values.detach())
        if is_leader():
            found[name] = values.cpu()
    return found


def shard_like(values: Tensor, like: Tensor) -> Tensor:
    """Of `values`, which are whole on every rank, the part that this one has of `like`: all if that is whole, too."""
    if not is_sharded(like):
        return values.to(like.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(values.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
