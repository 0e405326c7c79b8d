"""Build an untrained model from its configuration."""

from collections.abc import Callable
from typing import overload

from torch import nn
from torch.overrides import TorchFunctionMode

from transduce.config.kinds import ModelSettings, model_class
from transduce.config.schema import ModelConfig
from transduce.config.validation import refuse_impossible
from transduce.model.baseline import Baseline
from transduce.model.transformer import Transformer

Model = Transformer | Baseline


@overload
def build(config: ModelConfig) -> Model: ...
@overload
def build(config: ModelSettings) -> nn.Module: ...
def build(config: ModelSettings) -> nn.Module:
    """Return the untrained model that `config` describes, of the class that `config.kinds` gives for its kind.

    Raises UserError if the kind is unknown, if the model is impossible, or if its vocab_size is still None.
    """
    kind = model_class(config.kind)
    refuse_impossible(config)
    return kind(config)


@overload
def build_without_values(config: ModelConfig) -> Model: ...
@overload
def build_without_values(config: ModelSettings) -> nn.Module: ...
def build_without_values(config: ModelSettings) -> nn.Module:
    """Return the model of `build` with arbitrary values in its parameters, for a caller that sets all of them.

    To draw the values of the base model takes 0.5 s on a CPU core. On the device "meta", it takes more than a second,
    because torch then imports its Python decompositions.
    """
    with _WithoutInitialisation():
        return build(config)


class _WithoutInitialisation(TorchFunctionMode):
    """Within this context, the random functions of torch.nn.init leave tensors as they are."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"]
        return func(*args, **kwargs)
