"""Backends of translation: a model, or an ensemble of several, prepared for the search on this machine."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.data.batches import pad
from transduce.data.vocabulary import BOS, EOS, PAD, UNK
from transduce.decoding.batched_search import SearchBackend
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.constraint import Constraint
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.cuda_graphs import checked_cuda_graphs
from transduce.decoding.decoder import Decoder, DecoderState, EnsembleState, Searchable, ensemble
from transduce.decoding.hypothesis import Request
from transduce.errors import UserError
from transduce.model.build import Model
from transduce.model.cpu_backend import has_fast_bf16
from transduce.model.transformer import Transformer, mixed_precision

PRECISIONS = ("fp32", "bf16", "int8", "auto")


class _AsItIs(Searchable):
    """A model that is not prepared."""

    has_own_precision = False

    def __init__(self, model: Model) -> None:
        self.model = model
        self.config = model.config
        self.device = _device_of(model)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        return self.model.encode(src, src_mask)

    def start(self, memory: Tensor, src_mask: Tensor) -> DecoderState:
        return self.model.start(memory, src_mask)

    def as_decoder(self) -> Decoder[Any]:
        return Decoder(self.model.decode_step, self.device, _log_probs, logits=Tensor.float)


def searchable(model: Model | Searchable) -> Searchable:
    """Return the model as a backend uses it."""
    return model if isinstance(model, Searchable) else _AsItIs(model)


class Backend(SearchBackend[Any]):
    """Translation models as the search takes them: one, or several as an ensemble.

    precision: of mixed precision around the search. Prepared models compute in their own precision.
    """

    def __init__(self, models: Sequence[Model | Searchable], precision: str = "fp32") -> None:
        self.models = [searchable(model) for model in models]
        decoders = [model.as_decoder() for model in self.models]
        super().__init__(ensemble(decoders) if len(models) > 1 else decoders[0])
        self.device = self.models[0].device
        self.max_positions = min(model.config.max_positions or 1 << 30 for model in self.models)
        self.gains_by_threads = all(model.gains_by_threads for model in self.models)
        self.precision = "fp32" if all(model.has_own_precision for model in self.models) else precision
        locks = {model.lock for model in self.models if model.lock}
        self.locks = sorted(locks, key=id)  # in one order everywhere, so that two searches do not wait for each other

    def start(self, sources: Sequence[Sequence[int]], constraint: Constraint | None = None) -> DecoderState:
        """Encode sources (ids without EOS), and return the decoder's state before the first token: a row for each.

        constraint: of the search, which a `ShortlistBackend` must know.
        """
        rows = [np.asarray(source, dtype=np.int64) for source in sources]
        src, src_mask = (x.to(self.decoder.device, non_blocking=True) for x in pad(rows, last=EOS))
        states = [model.start(model.encode(src, src_mask), src_mask) for model in self.models]
        return EnsembleState(states) if len(states) > 1 else states[0]

    def request(
        self, sources: Sequence[Sequence[int]], settings: SearchConfig, constraint: Constraint | None = None
    ) -> Request:
        """Return the request for outputs of `sources`. constraint: one row for each."""
        extra = (constraint.extra_lengths if constraint is not None else ()) or [0] * len(sources)
        most = [len(source) + settings.max_extra_tokens + more for source, more in zip(sources, extra, strict=True)]
        limit = min(self.max_positions, settings.max_length or self.max_positions)
        longest = [min(length, limit) for length in most]
        banned = (PAD, BOS, UNK)
        return Request(search=settings, max_lengths=longest, bos=BOS, eos=EOS, banned=banned, constraint=constraint)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Be in inference mode, and in mixed precision where the backend computes in it."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            if self.precision != "fp32":
                stack.enter_context(mixed_precision(self.precision, self.device))
            yield


def choose_backend(models: Sequence[Model], precision: str) -> Backend:
    """Prepare `models` for a search in `precision` on their device. UserError if that is not possible."""
    return Backend([_prepared(model, precision) for model in models], precision)


def fastest_precision(device: torch.device, models: Sequence[Model]) -> str:
    """Return the precision for "auto": the fastest one for `models` on `device`."""
    kernels = compiled() if device.type == "cpu" and all(type(model) is Transformer for model in models) else None
    if kernels is not None and kernels.int8_is_faster:
        return "int8"
    return "bf16" if has_fast_bf16(device) else "fp32"


def _prepared(model: Model, precision: str) -> Model | Searchable:
    """Return the model prepared for its device, where that is faster or the only way.

    A subclass of the Transformer may compute something else, such as another attention, so it is searched as it is.
    """
    device = _device_of(model)
    if type(model) is Transformer and device.type == "cuda":
        return checked_cuda_graphs(model, cast(Precision, precision)) or model
    if type(model) is Transformer and device.type == "cpu" and (precision == "int8" or compiled() is not None):
        return CpuTransformer(model, cast(Precision, precision))
    if precision == "int8":
        kind = model.config.kind
        raise UserError(f"precision='int8': expected fp32 or bf16 for a model of kind {kind!r}; take bf16")
    return model


def _device_of(model: Model) -> torch.device:
    return model.output.weight.device


def _log_probs(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(dim=-1)
