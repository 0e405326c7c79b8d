"""The weights of a model as tensors by name: functions to read, set, freeze and check them.

The weights are the parameters and the persistent buffers, such as the random directions of a Performer. A tied matrix
occurs once.
"""

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from transduce.config.kinds import ModelSettings
from transduce.config.schema import ModelConfig
from transduce.errors import UserError
from transduce.model.transformer import Transformer
from transduce.training.sharding import shard_like


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights by name, on the CPU."""
    return {name: x.detach().to("cpu", copy=True).contiguous() for name, x in live_weights(model).items()}


def live_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights by name, as they are in the model."""
    return {**dict(model.named_parameters()), **persistent_buffers(model)}


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are not frozen, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def freeze_matching(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters whose names match one of `patterns` (`train.freeze`). Each name of a tied matrix counts.

    Raises UserError if a pattern matches no name.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        names = fnmatch.filter(parameters, pattern)
        if not names:
            known = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in parameters)
            raise UserError(
                f"train.freeze={pattern}: expected a pattern that matches names of parameters; the names, with * for "
                f"the number of a layer, are {', '.join(known)}"
            )
        for name in names:
            parameters[name].requires_grad_(False)


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return by name the buffers that `state_dict` also has. The others follow from the configuration."""
    persistent = dict[str, Tensor]()
    for where, module in model.named_modules():
        if buffers := dict(module.named_buffers(recurse=False)):
            stored = module.state_dict(keep_vars=True).keys()
            persistent |= {f"{where}.{name}".lstrip("."): x for name, x in buffers.items() if name in stored}
    return persistent


def set_weights(model: nn.Module, tensors: Mapping[str, Tensor], where: Path | str) -> None:
    """Copy whole tensors into the weights of the same names. In a sharded model, each rank copies its shard.

    where: the origin of the tensors, for messages. Raises UserError if a name, a shape or a type differs, or a value is
    not finite.
    """
    check_shapes(model, {name: (*values.shape,) for name, values in tensors.items()}, where)
    for name, values in tensors.items():
        if not values.is_floating_point():
            raise UserError(f"{where}: expected floating-point numbers in {name}, not {values.dtype}; use another copy")
    check_finite(tensors, where, "use another copy")
    with torch.no_grad():
        for name, weight in live_weights(model).items():
            weight.copy_(shard_like(tensors[name], weight))


def start_weights(parent: nn.Module, settings: ModelSettings) -> Mapping[str, Tensor]:
    """Return the weights of `parent` by name, for the start of a training of a model with `settings`.

    A Transformer may get other depths. A shallower stack has every second or third layer, among them the last one: a
    decoder with only the last of 4 layers had a loss of 6.3 on captions, and of 9.8 with the first. A deeper stack
    repeats layers.
    """
    tensors = live_weights(parent)
    if not (isinstance(parent, Transformer) and isinstance(settings, ModelConfig)):
        return tensors
    result = {name: values for name, values in tensors.items() if not name.startswith(("encoder.", "decoder."))}
    for stack, n_old, n_new in zip(("encoder", "decoder"), parent.config.depths, settings.depths, strict=True):
        for layer in range(n_new):
            origin = f"{stack}.{math.ceil((layer + 1) * n_old / n_new) - 1}."
            of_layer = {
                name.removeprefix(origin): values for name, values in tensors.items() if name.startswith(origin)
            }
            result |= {f"{stack}.{layer}.{name}": values for name, values in of_layer.items()}
    return result


def check_shapes(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], where: Path | str) -> None:
    """Check that `shapes` equal the shapes of the weights of `model`. Raises UserError if not."""
    expected = {name: (*weight.shape,) for name, weight in live_weights(model).items()}
    names = sorted(expected.keys() ^ shapes.keys())
    if names:
        raise misfit(where, f"{names[0]} is in only one of the two")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise misfit(where, f"{name} has the shape {shapes[name]}, not {shape}")


def misfit(where: Path | str, problem: str) -> UserError:
    """Return the error for tensors that do not fit the configuration of their model."""
    return UserError(f"{where}: expected the tensors of its configuration, but {problem}; use the files of one model")


def check_finite(tensors: Mapping[str, Tensor], where: Path | str, remedy: str) -> None:
    """Check that all values are finite in fp32. Raises UserError if not; its message ends with `remedy`.

    A value can be finite in fp64 and infinite in fp32, the type in which models compute.
    """
    for name, values in tensors.items():
        if not values.to(torch.float32).isfinite().all():
            raise UserError(f"{where}: expected finite numbers in {name}; {remedy}")
