"""Attention: the functions of section 3.2.1 against plain loops and against each other, and shared key heads."""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
import torch
from support import reference
from support.small_models import (
    both_dtypes,
    causal,
    mask_of,
    noise,
)
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from transduce.model.attention import (
    LONG,
    Mask,
    MultiHeadAttention,
    attention_weights,
    fast_attention,
    reference_attention,
)
from transduce.model.dropout import draw_from


def test_the_softmax_has_the_worked_numbers() -> None:
    scores = torch.tensor([0.40, 1.05, 0.15, 0.05])
    keys = scores[:, None] * torch.eye(4) * math.sqrt(4)  # so that Q K^T / sqrt(d_k) of a row of ones is `scores`
    weights = attention_weights(torch.ones(1, 1, 1, 4), keys[None, None], torch.ones(1, 4, dtype=torch.bool))
    assert_close(weights.flatten(), torch.tensor([0.227, 0.435, 0.177, 0.160]), atol=6e-4, rtol=0)


def test_attention_equals_plain_loops() -> None:
    queries = noise(2, 3, 4, 5)
    keys = noise(2, 3, 6, 5)
    values = noise(2, 3, 6, 7)
    mask = mask_of(6, 4)[:, None, None, :] & torch.ones(6, 6, dtype=torch.bool).tril(2)[:4]
    actual = reference_attention(queries, keys, values, mask, 0.0)
    for b, h in product(range(2), range(3)):
        parts = [x[b, h].tolist() for x in (queries, keys, values)]
        expected = reference.attention(*parts, mask[b, 0].tolist())
        assert_close(actual[b, h], torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def kinds_of_mask(length: int, width: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    some = torch.rand(2, 1, length, width, generator=generator) < 0.5
    some[..., 0] = True  # each query sees at least one key
    return {
        "padding": mask_of(width, width - 3)[:, None, None, :],
        "causal": torch.ones(length, width, dtype=torch.bool).tril(width - length),
        "any": some,
    }


@both_dtypes
@pytest.mark.parametrize("kind", ["padding", "causal", "any"])
@pytest.mark.parametrize("width", [9, LONG - 1, LONG, LONG + 44])
def test_fast_attention_equals_reference_attention(width: int, kind: str, dtype: torch.dtype) -> None:
    inputs = [noise(2, 3, 9, 5, dtype=dtype), noise(2, 3, width, 5, dtype=dtype), noise(2, 3, width, 7, dtype=dtype)]
    mask = kinds_of_mask(9, width)[kind]
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-12}[dtype]
    outputs, gradients = [], []
    for attention in (fast_attention, reference_attention):
        output = attention(*inputs, mask, 0.0)
        outputs.append(output)
        gradients.append(torch.autograd.grad((output * noise(*output.shape, dtype=dtype)).sum(), inputs))
    assert_close(outputs[0], outputs[1], rtol=1e-5, atol=tolerance)
    for fast, slow in zip(*gradients, strict=True):
        assert_close(fast, slow, rtol=1e-5, atol=10 * tolerance)


@both_dtypes
@pytest.mark.parametrize("width", [1, 9, LONG - 1, LONG + 44])
def test_causal_attends_to_each_position_and_the_positions_before_it(width: int, dtype: torch.dtype) -> None:
    inputs = [noise(2, 3, width, 5, dtype=dtype) for _ in range(3)]
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-12}[dtype]
    expected = reference_attention(*inputs, causal(width), 0.0)
    expected_gradients = torch.autograd.grad((expected * noise(*expected.shape, dtype=dtype)).sum(), inputs)
    for attention in (fast_attention, reference_attention):
        actual = attention(*inputs, "causal", 0.0)
        assert_close(actual, expected, rtol=1e-5, atol=tolerance)
        gradients = torch.autograd.grad((actual * noise(*actual.shape, dtype=dtype)).sum(), inputs)
        for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
            assert_close(gradient, expected_gradient, rtol=1e-5, atol=10 * tolerance)


@pytest.mark.parametrize(("width", "count"), [(LONG - 1, 0), (LONG, 1)])
def test_long_sequences_use_the_fused_kernel(width: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    kernel = F.scaled_dot_product_attention

    def spy(*args: Any, **settings: Any) -> Tensor:
        calls.append(1)
        return kernel(*args, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    fast_attention(noise(1, 1, 2, 4), noise(1, 1, width, 4), noise(1, 1, width, 4), mask_of(width), 0.0)
    assert len(calls) == count


@pytest.mark.parametrize("width", [LONG - 1, LONG])
def test_dropout_draws_from_the_generator_of_its_thread(width: int) -> None:
    """Torch's own, which threads share, would make a resumed training another one."""

    def attend(global_seed: int) -> Tensor:
        torch.manual_seed(global_seed)
        draw_from(torch.Generator().manual_seed(3))
        return fast_attention(*inputs, "causal", 0.5)

    inputs = [noise(1, 2, width, 4) for _ in range(3)]
    with ThreadPoolExecutor(1) as thread:
        first, second = thread.map(attend, (1, 2))
    assert torch.equal(first, second)


def test_a_floating_mask_is_added_to_the_scores() -> None:
    queries = noise(2, 3, 4, 5)
    keys = noise(2, 3, 6, 5)
    values = noise(2, 3, 6, 7)
    bias = noise(3, 4, 6).detach()
    scores = queries @ keys.mT / math.sqrt(5) + bias
    for attention in (reference_attention, fast_attention):
        assert_close(attention(queries, keys, values, bias, 0.0), scores.softmax(-1) @ values, rtol=1e-12, atol=1e-12)
    hidden = torch.where(causal(4), 0.0, -math.inf).double()
    squares = queries, keys[:, :, :4], values[:, :, :4]
    assert_close(reference_attention(*squares, hidden, 0.0), reference_attention(*squares, "causal", 0.0))


def test_fewer_key_heads_are_shared_by_the_attention_function() -> None:
    torch.manual_seed(1)
    grouped = MultiHeadAttention(8, 4, n_kv_heads=2).double()
    full = MultiHeadAttention(8, 4).double()
    full.w_q.load_state_dict(grouped.w_q.state_dict())
    full.w_o.load_state_dict(grouped.w_o.state_dict())
    for name in ("w_k", "w_v"):
        for kind in ("weight", "bias"):
            values = grouped.get_submodule(name).get_parameter(kind).unflatten(0, (2, 2)).repeat_interleave(2, 0)
            full.get_submodule(name).get_parameter(kind).data.copy_(values.flatten(0, 1))

    def with_shared_heads(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        return fast_attention(queries, keys.repeat_interleave(2, 1), values.repeat_interleave(2, 1), mask, dropout)

    x = noise(2, 5, 8)
    assert grouped.keys_values(x)[0].shape == (2, 2, 5, 2)
    output = grouped(x, grouped.keys_values(x), "causal", with_shared_heads)
    assert_close(output, full(x, full.keys_values(x), "causal"), rtol=1e-12, atol=1e-12)
