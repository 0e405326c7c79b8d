"""Memory of long sentences: neither training nor translation stores an n x n matrix."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.small_models import CONFIG, ids, mask_of, model_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transduce.decoding import kernels
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.kernels import PLAIN, Kernels
from transduce.model.attention import reference_attention
from transduce.training.loss import projected_cross_entropy

LENGTH = 1_024  # n x n: a megabyte of booleans; the widest layer of the tiny model: 48 kB
needs_compiled = pytest.mark.skipif(compiled() is None, reason="needs compiled kernels")
both = pytest.mark.parametrize("kernel", [PLAIN, pytest.param(compiled(), marks=needs_compiled)], ids=["plain", "c++"])


class Largest(TorchDispatchMode):
    """Records the bytes of the largest tensor that any operation of torch returns, forward or backward."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.untyped_storage().nbytes() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.bytes = max(self.bytes, *sizes, 0)
        return result


# ---- training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_mask", [False, True], ids=["one", "two"])
def test_training_stores_no_n_by_n_matrix(has_mask: bool) -> None:
    """The batch has one sentence, or also a shorter second one, which needs a mask."""
    model = model_of(replace(CONFIG, dropout=0.1), torch.float32).train()
    lengths = (LENGTH, 700) if has_mask else (LENGTH,)
    src = ids(len(lengths), LENGTH)
    tgt = ids(len(lengths), LENGTH, seed=5)
    mask = mask_of(*lengths)
    with Largest() as largest:
        decoded = model.decode(tgt, model.encode(src, mask), mask)
        projected_cross_entropy(decoded[mask], model.output.weight, tgt[mask], 0.1).backward()
    assert 0 < largest.bytes < LENGTH * LENGTH


def test_the_reference_attention_stores_one() -> None:
    model, mask = model_of(CONFIG, torch.float32), mask_of(LENGTH)
    with Largest() as largest:
        model.encode(ids(1, LENGTH), mask, reference_attention)
    assert largest.bytes >= 4 * LENGTH * LENGTH


# ---- translation -------------------------------------------------------------------------------------------------


def steps(model: Any, src: Tensor, mask: Tensor) -> None:
    cache = model.start(model.encode(src, mask), mask)
    for _ in range(3):
        rows, stay = torch.arange(len(src)).repeat_interleave(4 if cache.length == 0 else 1), torch.arange(len(src))
        cache = cache.select(rows if cache.length == 0 else torch.arange(4 * len(src)), stay)
        _, cache = model.decode_step(torch.full((4 * len(src),), 5), cache)


@torch.inference_mode()
def test_translation_stores_no_n_by_n_matrix() -> None:
    with Largest() as largest:
        steps(model_of(CONFIG, torch.float32), ids(2, LENGTH), mask_of(LENGTH, 700))
    assert 0 < largest.bytes < LENGTH * LENGTH


@both
@torch.inference_mode()
def test_the_cpu_backend_stores_no_n_by_n_matrix(kernel: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "GATHERED", 1 << 16)
    packed = CpuTransformer(model_of(CONFIG, torch.float32), "fp32", kernel)
    with Largest() as largest:
        steps(packed, ids(2, LENGTH), mask_of(LENGTH, 700))
    assert 0 < largest.bytes < LENGTH * LENGTH
