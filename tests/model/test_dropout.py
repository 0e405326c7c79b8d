"""Dropout against its definition: probability, scale, gradient and seed."""

import pytest
import torch
from torch.testing import assert_close

from transduce.model.dropout import Dropout, keep_mask

MILLION = torch.Size([1000, 1000])


@pytest.mark.parametrize("p", [0.0001, 0.1, 0.3, 0.5, 0.999])
def test_each_value_is_dropped_with_the_stated_probability(p: float) -> None:
    torch.manual_seed(1)
    n_zeros = int((~keep_mask(MILLION, p)).sum())
    assert abs(n_zeros - p * 1e6) < 4 * (p * (1 - p) * 1e6) ** 0.5


def test_neighbours_and_successive_masks_are_independent() -> None:
    torch.manual_seed(1)
    masks = [keep_mask(MILLION, 0.5).double() - 0.5 for _ in range(2)]
    for mask, other in [(masks[0][1:], masks[0][:-1]), (masks[0][:, 1:], masks[0][:, :-1]), (masks[0], masks[1])]:
        assert (4 * mask * other).mean().abs() < 4e-3


@pytest.mark.parametrize("p", [1e-12, 1 - 1e-12])
def test_probabilities_at_the_ends(p: float) -> None:
    assert keep_mask(MILLION, p).float().mean().item() == pytest.approx(1 - p, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_other_values_and_gradients_are_divided_by_their_probability(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.rand(7, 33, dtype=dtype).add(1).requires_grad_()  # an odd number of values
    y = Dropout(0.3)(x)
    stays = y != 0
    assert y.dtype == dtype and 0 < int((~stays).sum()) < x.numel()
    assert_close(y[stays], x[stays] / 0.7)
    (gradient,) = torch.autograd.grad(y, x, torch.full_like(y, 3.0))
    assert_close(gradient, torch.where(stays, 3 / 0.7, 0.0).to(dtype))


def test_the_mask_depends_on_the_seed() -> None:
    layer, x = Dropout(0.5), torch.ones(50, 50)
    torch.manual_seed(1)
    first, second = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first) and not torch.equal(first, second)
    torch.manual_seed(2)
    assert not torch.equal(layer(x), first)


def test_evaluation_mode_and_probability_0_drop_nothing() -> None:
    x = torch.ones(3, 3)
    assert Dropout(0.5).eval()(x) is x and Dropout(0.0)(x) is x


def test_nan_stays_nan() -> None:
    y = Dropout(0.5)(torch.full((100,), torch.nan))
    assert y.isnan().any()
