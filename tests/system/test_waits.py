"""Waits for a GPU, detected without one: a step on the device "meta", which computes nothing."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from transduce.config.schema import ModelConfig, TrainConfig
from transduce.data.batches import Batch, collate
from transduce.decoding.cuda_graphs import CudaGraphTransformer
from transduce.model.transformer import Transformer
from transduce.train import TranslationTask
from transduce.training.gradients import Gradients
from transduce.training.task import translation_loss

META = torch.device("meta")
READING = {"nonzero", "_local_scalar_dense", "masked_select", "is_nonzero", "equal", "unique_dim", "_unique2"}


class Waits(TorchDispatchMode):
    """Records the operations that would make the host wait for values on META."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name == "_to_copy":
            waits = _copy_waits(kwargs.get("device", args[0].device), args[0], kwargs.get("non_blocking", False))
        elif name == "copy_":
            waits = _copy_waits(args[0].device, args[1], len(args) > 2 and args[2])
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            waits = any(index is not None and index.dtype == torch.bool and index.device == META for index in args[1])
        else:
            waits = name in READING and args[0].device == META
        if waits:
            self.operations.append(name)
        return func(*args, **kwargs)


def _copy_waits(to: torch.device, values: torch.Tensor, non_blocking: bool) -> bool:
    return values.device != to and (values.device == META or not non_blocking)


def batch(seed: int = 1) -> Batch:
    rng = np.random.default_rng(seed)
    src, tgt = ([rng.integers(4, 40, rng.integers(1, 12)) for _ in range(9)] for _ in range(2))
    return collate(src, tgt)


def model(**more: Any) -> Transformer:
    config = ModelConfig(vocab_size=40, d_model=16, n_layers=2, n_heads=2, d_ff=32, **more)
    return Transformer(config).to(META).train()


@pytest.fixture(autouse=True)
def _no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable autocast, which META does not support."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    monkeypatch.setattr(torch, "autocast", lambda device, enabled: nullcontext())


@pytest.mark.parametrize("more", [{}, {"norm": "pre", "attention_dropout": 0.1}, {"output_bias": True}], ids=str)
def test_a_step_waits_only_for_loss_and_norm(more: dict[str, Any]) -> None:
    gradients = Gradients(model(**more), TranslationTask(), TrainConfig(), META, lambda lines: None)
    with Waits() as waits:
        gradient = gradients.of([batch(1), batch(2)], seed=1)
        assert waits.operations == []
        assert gradient.loss_and_norm.shape == (2,)
        with pytest.raises(NotImplementedError):
            _ = gradient.norm
    assert waits.operations


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x[x > 0],
        lambda x: x.index_put_([x > 0], x[0]),
        lambda x: x.masked_select(x > 0),
        lambda x: bool(x[0] > 0),
        lambda x: x.copy_(torch.zeros(3)),
        lambda x: torch.zeros(3).to(META),
        lambda x: x.cpu(),
    ],
)
def test_waits_are_recorded(work: Callable[[torch.Tensor], object]) -> None:
    with Waits() as waits:
        try:
            work(torch.zeros(3, device=META))
        except (NotImplementedError, RuntimeError):
            pass
    assert waits.operations


def test_indexing_with_a_mask_waits() -> None:
    """Check the recording: like `translation_loss`, but with a mask instead of indices."""
    inputs, transformer = batch().to(META), model()
    with Waits() as waits, pytest.raises(NotImplementedError):
        outputs = transformer.decode(inputs.tgt_in, transformer.encode(inputs.src, inputs.src_mask), inputs.src_mask)
        _ = outputs[inputs.tgt_mask]
    assert waits.operations
    with Waits() as waits:
        translation_loss(transformer, inputs, 0.1)
    assert waits.operations == []


def test_a_decoding_step_of_the_cuda_backend_does_not_wait() -> None:
    """Check the code around the CUDA graph. On META no graph is recorded."""
    backend = CudaGraphTransformer(model().eval(), "fp32")
    with torch.inference_mode():
        inputs = batch().to(META)
        memory = torch.zeros(20, 16, device=META)
        stay = torch.arange(len(inputs.src), device=META)
        rows = stay.repeat_interleave(2)
        with Waits() as waits:
            cache = backend.start(memory, inputs.src_mask).select(rows, stay)
            for _ in range(3):
                logits, cache = backend.decode_step(torch.zeros(len(rows), dtype=torch.int64, device=META), cache)
                cache = cache.select(rows, stay)
    assert logits.shape == (len(rows), 40) and waits.operations == []
