"""The conversion of a member to and from Hugging Face's files: its settings, and its parameters by name and layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transduce.family.hugging_face.settings import Settings

Shape = tuple[int, ...]


class Entry(NamedTuple):
    """A tensor of Hugging Face's file, and the parameters of ours that it holds.

    theirs: its name. ours: names, whose tensors lie one after the other along their first dimension. is_transposed: the
    file holds the transpose of that. is_copy: an earlier entry holds the same, and this one may be absent.
    n_dimensions: number of dimensions in the file, if ours has more at the beginning, of size 1; None: as ours.
    """

    theirs: str
    ours: tuple[str, ...]
    is_transposed: bool = False
    is_copy: bool = False
    n_dimensions: int | None = None

    def join(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the tensor of the file that holds `parameters`."""
        values = [parameters[name] for name in self.ours]
        joined = torch.cat(values) if len(values) > 1 else values[0]
        if self.n_dimensions is not None:
            joined = joined.reshape(joined.shape[joined.dim() - self.n_dimensions :])
        return joined.T if self.is_transposed else joined


@dataclass(frozen=True)
class Conversion:
    """The conversion of a member to and from Hugging Face's form.

    model: the class of the member. build: function that makes a model from a config.json, or raises UserError.
    settings: function that makes the config.json of a model. entries: function that lists the tensors of a model.
    prefix: start of the names of tensors, which a file may leave out. without_weights: regular expression for the
    names, without the prefix, of tensors that need no entry. old_endings: pairs of an ending of names in old files,
    and the ending today.
    """

    model: type[nn.Module]
    build: Callable[[Settings], nn.Module]
    settings: Callable[[Any], dict[str, object]]
    entries: Callable[[Any], list[Entry]]
    prefix: str
    without_weights: str
    old_endings: tuple[tuple[str, str], ...] = ()

    def bare(self, name: str) -> str:
        """Return the name of a tensor without the prefix, with the ending of today."""
        for old, new in self.old_endings:
            name = name.removesuffix(old) + new if name.endswith(old) else name
        return name.removeprefix(self.prefix)


def linear(theirs: str, *ours: str, is_transposed: bool = False) -> list[Entry]:
    """Return the entries of weight and bias of a module of theirs, which is one or several of ours."""
    names = {kind: tuple(f"{name}.{kind}" for name in ours) for kind in ("weight", "bias")}
    weight = Entry(f"{theirs}.weight", names["weight"], is_transposed)
    return [weight, Entry(f"{theirs}.bias", names["bias"])]


# The parts of a layer of an encoder, each with a weight and a bias.
PARTS = (
    "residuals.0.norm self_attention.w_q self_attention.w_k self_attention.w_v self_attention.w_o "
    "residuals.1.norm feed_forward.w_1 feed_forward.w_2"
).split()


def layer_entries(theirs: str, ours: str, names: str) -> list[Entry]:
    """Return the entries of a layer of an encoder. names: their names of PARTS, with spaces between them."""
    pairs = zip(names.split(), PARTS, strict=True)
    return [entry for name, part in pairs for entry in linear(f"{theirs}.{name}", f"{ours}.{part}")]


def their_shapes(entries: Sequence[Entry], model: nn.Module) -> dict[str, Shape]:
    """Return the shape of each tensor of the file that holds the parameters of `model`."""
    parameters = {name: parameter.detach().to("meta") for name, parameter in model.named_parameters()}
    return {entry.theirs: (*entry.join(parameters).shape,) for entry in entries}


def set_parameters(entries: Sequence[Entry], model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give `model`, which may be on the meta device, the values of `tensors`, by their names, with the right shapes.

    A tied matrix stays tied.
    """
    old, new = dict(model.named_parameters()), dict[int, nn.Parameter]()
    for entry in [entry for entry in entries if not entry.is_copy]:
        values = tensors[entry.theirs].T if entry.is_transposed else tensors[entry.theirs]
        parts = values.split([old[name].size(0) for name in entry.ours]) if entry.ours[1:] else [values]
        for name, part in zip(entry.ours, parts, strict=True):
            part = part.to(torch.float32, copy=True).reshape(old[name].shape)
            new[id(old[name])] = nn.Parameter(part.contiguous(), old[name].requires_grad)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, new[id(parameter)])


def their_tensors(entries: Sequence[Entry], model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of `model` as tensors of the file, by their names."""
    parameters = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    return {entry.theirs: entry.join(parameters).contiguous() for entry in entries if not entry.is_copy}
