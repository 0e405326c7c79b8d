"""The gradient of a step: it does not depend on the division into micro-batches, and is known to be finite or not."""

import itertools
import math
import random
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.gradients import (
    assert_near,
    expected_gradient,
    gradient_of,
    gradients_for,
    micro_batches_of,
    random_pairs,
    small_transformer,
)
from torch import Tensor, nn

from transduce.data.batches import collate
from transduce.train import TranslationTask
from transduce.training.gradients import Gradient, cut, dropout_seed

# ---- accumulation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_micro_batches_give_the_gradient_of_the_whole_batch(count: int, dtype: torch.dtype, tolerance: float) -> None:
    model = small_transformer(dtype)
    for seed in range(3):
        src, tgt = random_pairs(seed, 13)
        gradient = gradients_for(model).of(micro_batches_of(src, tgt, count), seed=1)
        actual = gradient_of(model)
        assert actual.keys() == dict(model.named_parameters()).keys()
        assert_near(actual, expected_gradient(model, collate(src, tgt)), tolerance)
        assert gradient.src_tokens == sum(len(side) + 1 for side in src)
        assert gradient.tgt_tokens == sum(len(side) + 1 for side in tgt)
        norm = math.sqrt(sum(float(values.double().norm()) ** 2 for values in actual.values()))
        assert gradient.norm == pytest.approx(norm, rel=1e-5)


def test_the_gradient_does_not_depend_on_the_step_before() -> None:
    model = small_transformer()
    src, tgt = random_pairs(1, 5)
    gradients = gradients_for(model)
    first = gradients.of(micro_batches_of(src, tgt, 2), seed=1)
    expected = gradient_of(model)
    second = gradients.of(micro_batches_of(src, tgt, 2), seed=1)
    assert (second.loss, second.norm) == (first.loss, first.norm)
    assert all(gradient.equal(expected[name]) for name, gradient in gradient_of(model).items())


def test_dropout_depends_only_on_the_seed() -> None:
    model = small_transformer(dropout=0.3)
    batches = micro_batches_of(*random_pairs(1, 6), 2)
    norms = []
    for seed in (1, 2, 1):
        torch.rand(seed)
        norms.append(gradients_for(model).of(batches, seed=seed).norm)
    assert norms[0] == norms[2] != norms[1]


def test_every_step_and_rank_has_its_own_dropout() -> None:
    seeds = {dropout_seed(*key) for key in product(range(3), range(1, 200), range(4))}
    assert len(seeds) == 3 * 199 * 4
    assert all(0 <= seed < 1 << 64 for seed in seeds)
    torch.manual_seed(max(seeds))
    assert dropout_seed((1 << 63) - 1, 10**9, 10**4) == dropout_seed((1 << 63) - 1, 10**9, 10**4)


# ---- parts of a micro-batch ------------------------------------------------------------------------------------------


@given(lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12), n=st.integers(1, 4))
def test_parts_are_batches_of_separate_pairs(lengths: list[tuple[int, int]], n: int) -> None:
    src, tgt = ([np.arange(4, 4 + pair[side]) for pair in lengths] for side in (0, 1))
    numbers = np.arange(100, 100 + len(lengths))
    parts = cut(collate(src, tgt, numbers), n)
    assert len(parts) == min(n, len(lengths))
    assert [number for part in parts for number in part.pairs.tolist()] == numbers.tolist()
    counts = [len(part.pairs) for part in parts]
    assert max(counts) - min(counts) <= 1
    start = 0
    for part in parts:
        rows = slice(start, start + len(part.pairs))
        start = rows.stop
        expected = collate(src[rows], tgt[rows], numbers[rows])
        for field in ("src", "src_mask", "tgt_in", "tgt_out", "tgt_mask"):
            assert getattr(part, field).equal(getattr(expected, field)), field


# ---- numbers that are not finite -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", ["loss", "forward", "gradient", "weight"])
def test_a_single_nonfinite_number_makes_the_gradient_nonfinite(
    place: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is one element of one position, in one of four micro-batches."""
    model = small_transformer(torch.float32)
    rng = random.Random(f"{place} {value}")
    parameter = rng.choice([*model.parameters()])
    original = TranslationTask.loss
    calls = itertools.count(1)

    def loss(*arguments: Any) -> Tensor:
        return original(*arguments) + (value if next(calls) == 3 else 0.0)

    def with_value(values: Tensor) -> Tensor:
        copy = values.clone()
        copy.view(-1)[rng.randrange(values.numel())] = value
        return copy

    if place == "loss":
        monkeypatch.setattr(TranslationTask, "loss", staticmethod(loss))
    elif place == "forward":
        layer = rng.choice([module for module in model.modules() if isinstance(module, nn.LayerNorm)])
        layer.register_forward_hook(lambda module, inputs, output: with_value(output))
    elif place == "gradient":
        parameter.register_hook(with_value)
    else:
        parameter.data = with_value(parameter.data)
    assert not gradients_for(model).of(micro_batches_of(*random_pairs(1, 24), 4), seed=1).is_finite


def test_a_gradient_is_finite_if_loss_and_norm_are() -> None:
    for loss, norm in combinations([1.0, 2.0, float("nan"), float("inf")], 2):
        assert Gradient(torch.tensor([loss, norm]), 1, 1).is_finite == (loss + norm == 3.0)


def test_a_gradient_that_would_overflow_adam_is_not_finite() -> None:
    """A gradient whose square overflows fp32 would make a second moment infinite in all later steps."""
    model = small_transformer(torch.float32)
    model.output.weight.register_hook(lambda gradient: gradient + 2e19)
    assert not gradients_for(model).of(micro_batches_of(*random_pairs(1, 6), 1), seed=1).is_finite
