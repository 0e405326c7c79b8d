"""The parts of a layer that a GPU computes in few kernels, against the same in plain torch."""

import shutil
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model import fused as fused_module
from transduce.model import fused_layers
from transduce.model.dropout import Dropout
from transduce.model.fused_layers import activated, narrow, norm_of_sum

TYPES = [torch.float32, torch.bfloat16]


def inputs(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def with_gradients(outputs: tuple[Tensor, ...], leaves: list[Tensor]) -> list[Tensor]:
    """Return the outputs, and the gradients of their sums of squares."""
    total = torch.stack([output.float().square().sum() for output in outputs]).sum()
    return [*outputs, *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("dtype", TYPES)
def test_relu_of_a_linear_layer(dtype: torch.dtype) -> None:
    leaves = inputs((7, 8), (16, 8), (16,), dtype=dtype)
    x, weight, bias = leaves
    expected = with_gradients((F.relu(F.linear(x, weight, bias)),), leaves)
    actual = with_gradients((fused_layers._Relu.apply(x, weight, bias),), leaves)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5 if dtype is torch.float32 else 1e-2, atol=1e-5)


@pytest.mark.parametrize("activation", [F.relu, F.silu])
def test_a_cpu_computes_the_plain_layer(activation: Callable[[Tensor], Tensor]) -> None:
    layer = nn.Linear(4, 6)
    x = torch.randn(2, 3, 4)
    assert torch.equal(activated(x, layer, activation), activation(layer(x)))


def test_a_cpu_computes_the_plain_sum_and_norm() -> None:
    norm = nn.LayerNorm(4)
    x, y = inputs((2, 3, 4), (2, 3, 4))
    assert torch.equal(norm_of_sum(x, y, norm, Dropout(0.0)), norm(x + y))
    assert narrow(x) is x


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("g++") is None, reason="needs g++")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # that torch.compile hides unless it is an error
@pytest.mark.parametrize("dtype", TYPES)
def test_the_compiled_norm_of_a_sum(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum in two numbers of rows: the size is a constant in the first code, a variable in the second."""
    function = fused_layers._norm_of_sum
    for rows in (5, 9):
        leaves = inputs((rows, 16), (rows, 16), (16,), (16,))
        x, y, weight, bias = leaves
        arguments = (x, y.to(dtype), weight, bias, 1e-5, 0.0, dtype)
        expected = with_gradients(function(*arguments), leaves)
        with monkeypatch.context() as context:
            context.setattr(fused_module, "DEVICES", {"cpu"})
            actual = with_gradients(function(*arguments), leaves)
        assert fused_module._notices == []
        assert [a.dtype for a in actual[:2]] == [torch.float32, dtype]
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5 if dtype is torch.float32 else 2e-2, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("g++") is None, reason="needs g++")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # that torch.compile hides unless it is an error
def test_the_compiled_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same mask, and the gradient has the mask of the output."""
    monkeypatch.setattr(fused_module, "DEVICES", {"cpu"})
    x, y = torch.zeros(400, 64), torch.ones(400, 64, requires_grad=True)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        wide, _ = fused_layers._norm_of_sum(x, y, torch.ones(64), torch.zeros(64), 1e-5, 0.25, torch.float32)
        (gradient,) = torch.autograd.grad((wide * torch.randn_like(wide)).sum(), y)
        kept = wide > 0  # the values that dropout keeps are above the mean of their row
        assert torch.equal(gradient != 0, kept)
        results.append(kept)
    assert fused_module._notices == []
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert abs(results[0].float().mean() - 0.75) < 0.02
