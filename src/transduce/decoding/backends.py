"""Backends: a model, or an ensemble of several, made ready for the search on this machine."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from transduce.decoding.cpu_transformer import PackedTransformer, Precision
from transduce.decoding.cuda_graphs import RecordedTransformer, recorded
from transduce.decoding.decoder import Decoder, EnsembleState, ensemble
from transduce.decoding.kernels import compiled
from transduce.errors import UserError
from transduce.model.build import Model
from transduce.model.transformer import Transformer, mixed_precision

PRECISIONS = ("fp32", "bf16", "int8", "auto")

Searchable = Model | PackedTransformer | RecordedTransformer  # a model, or one made ready for a CPU or a GPU


class Backend:
    """Models as the search takes them: one, or several as an ensemble.

    precision: that of models that are not made ready; a model made ready has its own.
    """

    def __init__(self, models: Sequence[Searchable], precision: str = "fp32") -> None:
        decoders = [decoder(model) for model in models]
        self.models = models
        self.decoder: Decoder[Any] = ensemble(decoders) if len(models) > 1 else decoders[0]
        self.device = torch.device(decoders[0].device)
        self.max_positions = min(model.config.max_positions or 1 << 30 for model in models)
        self.gains_by_threads = all(isinstance(model, PackedTransformer) for model in models)
        is_ready = all(isinstance(model, PackedTransformer | RecordedTransformer) for model in models)
        self._precision = "fp32" if is_ready else precision
        self._locks = [model.alone for model in models if isinstance(model, RecordedTransformer)]

    def start(self, src: Tensor, src_mask: Tensor) -> Any:
        """Return the state before the first token, from source ids (B,S) with mask (B,S)."""
        states = [model.start(model.encode(src, src_mask), src_mask) for model in self.models]
        return EnsembleState(states) if len(states) > 1 else states[0]

    def contexts(self) -> Iterator[contextlib.AbstractContextManager[Any]]:
        """Yield the contexts that a search has to enter: the locks of the models, and mixed precision."""
        yield from self._locks
        if self._precision != "fp32":
            yield mixed_precision(self._precision, self.device)


def choose_backend(models: Sequence[Model], precision: str) -> Backend:
    """Make `models` ready to be searched in `precision` on their device. UserError if that is not possible."""
    return Backend([_ready(model, precision) for model in models], precision)


def fastest_precision(device: torch.device, models: Sequence[Model]) -> str:
    """Return the precision that "auto" stands for: the fastest one for `models` on `device`."""
    if device.type == "cuda":
        return "bf16"
    if compiled() is not None and all(isinstance(model, Transformer) for model in models):
        return "int8"
    return "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "fp32"


def _ready(model: Model, precision: str) -> Searchable:
    """Return the model made ready for its device, where that is faster or the only way."""
    if isinstance(model, Transformer) and model.output.weight.is_cuda:
        return recorded(model, cast(Precision, precision)) or model
    if isinstance(model, Transformer) and (precision == "int8" or compiled() is not None):
        return PackedTransformer(model, cast(Precision, precision))
    if precision == "int8":
        kind = model.config.kind
        raise UserError(f"precision='int8': expected fp32 or bf16 for a model of kind {kind!r}; take bf16")
    return model


def decoder(model: Searchable) -> Decoder[Any]:
    """Return the model's `decode_step` as a decoder over logits."""
    if isinstance(model, PackedTransformer | RecordedTransformer):
        return Decoder(model.decode_step, model.device, _log_probs, model.kernels.best)
    return Decoder(model.decode_step, model.output.weight.device, _log_probs)


def _log_probs(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(dim=-1)
