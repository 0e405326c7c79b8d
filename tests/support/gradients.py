"""Gradients to compare: those of two results, and a small model and batches for the tests of `Gradients`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from transduce.config.schema import ModelConfig, TrainConfig
from transduce.data.batches import Batch, collate
from transduce.model.transformer import Transformer
from transduce.train import TranslationTask
from transduce.training.gradients import Gradients
from transduce.training.loss import label_smoothed_cross_entropy

ModelGradient = dict[str, Tensor]

# The exceptions by which torch, CUDA, oneDNN, NumPy and C++ report that memory has run out.
NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError("Unable to allocate 9.00 GiB for an array"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("could not create a primitive"),
    RuntimeError("std::bad_alloc"),
]


def assert_same_with_gradients(output: Tensor, expected: Tensor, inputs: Sequence[Tensor]) -> None:
    """Check that two results are equal except for rounding, and so are the gradients of a random sum of each."""
    torch.testing.assert_close(output, expected)
    factors = torch.randn_like(output)
    gradients, others = (torch.autograd.grad((x * factors).sum(), inputs) for x in (output, expected))
    for gradient, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


def small_transformer(dtype: torch.dtype = torch.float64, *, dropout: float = 0.0) -> Transformer:
    """Return a Transformer of 2 layers with the same weights in each call."""
    torch.manual_seed(1)
    config = ModelConfig(vocab_size=40, d_model=16, n_layers=2, n_heads=2, d_ff=32, dropout=dropout)
    return Transformer(config).to(dtype)


def random_pairs(seed: int, count: int, longest: int = 11) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the ids of the sources and the targets of `count` pairs, of 1 to `longest` tokens."""
    rng = np.random.default_rng(seed)
    src, tgt = ([rng.integers(4, 40, rng.integers(1, longest + 1)) for _ in range(count)] for _ in range(2))
    return src, tgt


def micro_batches_of(src: list[np.ndarray], tgt: list[np.ndarray], count: int) -> list[Batch]:
    """Return the pairs in `count` micro-batches, which differ in size and in padding."""
    return [collate(src[i::count], tgt[i::count], np.arange(len(src))[i::count]) for i in range(count)]


def gradients_for(model: Transformer, notices: list[str] | None = None) -> Gradients:
    """Return the `Gradients` of a translation model on the CPU. notices: a list that gets the printed lines."""
    print_lines = notices.extend if notices is not None else lambda lines: None
    return Gradients(model, TranslationTask(), TrainConfig(label_smoothing=0.1), torch.device("cpu"), print_lines)


def gradient_of(model: Transformer) -> ModelGradient:
    """Return a copy of the gradient that is in .grad of the parameters, by their names."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def expected_gradient(model: Transformer, batch: Batch) -> ModelGradient:
    """Return the gradient of the mean loss of a target token, from all logits of the whole batch at once."""
    model.zero_grad()
    logits = model(batch.src, batch.src_mask, batch.tgt_in)[batch.tgt_mask]
    targets = batch.tgt_out[batch.tgt_mask]
    (label_smoothed_cross_entropy(logits, targets, 0.1) / len(targets)).backward()
    return gradient_of(model)


def assert_near(actual: ModelGradient, expected: ModelGradient, tolerance: float) -> None:
    """Check that the gradient of each parameter differs by at most `tolerance` times its norm."""
    assert actual.keys() == expected.keys()
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for name, gradient in expected.items():
        # The bias of the keys adds the same number to all scores of a query: its exact gradient is 0.
        norm = largest if name.endswith("w_k.bias") else float(gradient.norm())
        assert (actual[name] - gradient).norm() <= tolerance * norm, name
