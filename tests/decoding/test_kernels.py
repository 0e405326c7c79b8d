"""The kernels of translation: their definition, compiled and plain ones alike, with independent rows."""

import pytest
import torch
from support.levels import NAMES, kernels_at
from torch import Tensor
from torch.testing import assert_close

from transduce.decoding import kernels
from transduce.decoding.compiled_kernels import Compiled
from transduce.decoding.kernels import PLAIN, Kernels, Plain, Visible

SHAPES = [(1, 4, 16), (7, 33, 65), (13, 512, 130), (6, 1, 1), (40, 70, 64)]


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["plain", *NAMES])
def kernel(request: pytest.FixtureRequest) -> Kernels:
    return PLAIN if request.param == "plain" else kernels_at(request.param)


@pytest.fixture(params=NAMES)
def compiled(request: pytest.FixtureRequest) -> Compiled:
    return kernels_at(request.param)


# ---- products in int8 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_the_product_of_the_rounded_factors(kernel: Kernels, shape: tuple[int, int, int]) -> None:
    """The reference is computed in float64 from the rounded factors: the rounding is part of the definition."""
    m, k, n = shape
    x, weight, bias, residual = noise(m, k), noise(n, k, seed=2), noise(n, seed=3), noise(m, n, seed=4)
    x[0] *= 1_000  # a scale for each row: a large row does not reduce the accuracy of the others
    factors = kernel.pack(weight, bias, int8=True)

    def round_factors(rows: Tensor) -> Tensor:
        scales = rows.abs().amax(1, keepdim=True) / 127
        return (rows / scales).round().double() * scales.double()

    expected = round_factors(x) @ round_factors(weight).T + bias
    for relu in (False, True):
        plain = expected.relu() if relu else expected
        tolerance = 1e-5 * plain.abs().amax(1, keepdim=True) + 1e-6
        assert ((factors(x, relu=relu) - plain).abs() <= tolerance).all()
        sums = factors(x, relu=relu, residual=residual)
        assert ((sums - plain - residual).abs() <= tolerance + 1e-6).all()


@pytest.mark.parametrize("signs", ["same", "random"])
def test_sums_of_integers_are_exact(kernel: Kernels, signs: str) -> None:
    """No sum saturates, not even where all factors have the greatest size."""
    x, weight = (127 * noise(rows, 515, seed=rows).sign() for rows in (7, 70))
    if signs == "same":
        x, weight = x.abs(), weight.abs()
    assert kernel.pack(weight, torch.zeros(70), int8=True)(x).equal(x @ weight.T)  # below 2^24, so exact in fp32


def test_a_product_is_near_the_exact_product(kernel: Kernels) -> None:
    x, weight, bias = noise(50, 512), noise(300, 512, seed=2), noise(300, seed=3)
    expected = x @ weight.T + bias
    error = (kernel.pack(weight, bias, int8=True)(x) - expected).norm() / expected.norm()
    assert 1e-4 < error < 0.015


def test_rows_of_zeros_and_weights_of_zeros(kernel: Kernels) -> None:
    weight, bias = noise(20, 8), noise(20, seed=2)
    weight[3] = 0
    y = kernel.pack(weight, bias, int8=True)(torch.cat([torch.zeros(1, 8), noise(2, 8)]))
    assert_close(y[0], bias)
    assert_close(y[:, 3], bias[3].expand(3))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_stay_in_their_row(kernel: Kernels, bad: float) -> None:
    x, factors = noise(9, 40), kernel.pack(noise(20, 40, seed=2), torch.zeros(20), int8=True)
    good = factors(x)
    x[4, 17] = bad
    y = factors(x)
    assert not y[4].isfinite().any()
    is_other = torch.arange(9) != 4
    assert y[is_other].equal(good[is_other])


def test_a_row_of_a_product_does_not_depend_on_the_others(kernel: Kernels) -> None:
    x, factors = noise(31, 70), kernel.pack(noise(130, 70, seed=2), noise(130, seed=3), int8=True)
    together = factors(x)
    for begin, end in ((0, 1), (5, 7), (7, 12), (30, 31), (11, 31)):
        assert factors(x[begin:end].contiguous()).equal(together[begin:end])


# ---- products in fp32, and norms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_in_fp32(kernel: Kernels, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, weight, bias, residual = noise(m, k), noise(n, k, seed=2), noise(n, seed=3), noise(m, n, seed=4)
    packed = kernel.pack(weight, bias, int8=False)
    expected = x.double() @ weight.double().T + bias
    assert_close(packed(x).double(), expected, rtol=0, atol=3e-6 * k**0.5)
    both = packed(x, relu=True, residual=residual)
    assert_close(both.double(), expected.relu() + residual, rtol=0, atol=3e-6 * k**0.5)


def test_a_row_of_a_product_in_fp32_does_not_depend_on_the_others(compiled: Compiled) -> None:
    x, packed = noise(31, 70), compiled.pack(noise(130, 70, seed=2), noise(130, seed=3), int8=False)
    together = packed(x)
    for begin, end in ((0, 1), (5, 7), (7, 12), (30, 31), (11, 31)):
        assert packed(x[begin:end].contiguous()).equal(together[begin:end])


@pytest.mark.parametrize("width", [1, 8, 16, 70, 512])
def test_norms(kernel: Kernels, width: int) -> None:
    layer = torch.nn.LayerNorm(width, eps=1e-3)
    with torch.no_grad():
        layer.weight.copy_(noise(width, seed=2))
        layer.bias.copy_(noise(width, seed=3))
        x = 3 * noise(7, width) + 100
        expected = torch.layer_norm(x.double(), (width,), layer.weight.double(), layer.bias.double(), 1e-3)
        assert_close(kernel.norm(x, layer).double(), expected, rtol=0, atol=1e-4)


# ---- attention ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_heads", "d_k", "d_v"), [(1, 16, 16), (3, 5, 9), (8, 64, 64), (2, 33, 20)])
def test_attention_over_an_index_of_rows(kernel: Kernels, n_heads: int, d_k: int, d_v: int) -> None:
    """Eq. 1 in float64, one query at a time, is the reference. Keys and values are columns of a wider table."""
    generator = torch.Generator().manual_seed(5)
    table, queries = 3 * noise(40, n_heads * (d_k + d_v) + 7), noise(11, n_heads * d_k + 3, seed=2)
    keys_values = table[:, 2:-5]
    keys, values = keys_values.split([n_heads * d_k, n_heads * d_v], dim=1)
    lengths = torch.tensor([1, 2, 16, 17, 20, 3, 20, 1, 5, 15, 19], dtype=torch.int32)
    index = torch.randint(40, (11, 20), generator=generator).int()
    index[torch.arange(20) >= lengths[:, None]] = 2**30  # never read
    which = torch.tensor([3, 0, 10, 2, 2, 1, 4, 9, 8, 7, 6], dtype=torch.int32)  # one twice, one not at all
    heads = kernel.attend(queries[:, : n_heads * d_k], keys_values, Visible(index, lengths, which), n_heads)
    for i, j in enumerate(which.tolist()):
        length = int(lengths[j])
        rows = index[j, :length].long()
        q = queries[i, : n_heads * d_k].double().view(n_heads, 1, d_k)
        k, v = (x[rows].double().view(length, n_heads, -1).transpose(0, 1) for x in (keys, values))
        expected = ((q @ k.mT) / d_k**0.5).softmax(-1) @ v
        assert_close(heads[i].double(), expected.flatten(), rtol=0, atol=1e-5)
        first = torch.zeros(1, dtype=torch.int32)
        visible = Visible(index[j : j + 1, :length].contiguous(), lengths[j : j + 1], first)
        single = kernel.attend(queries[i : i + 1, : n_heads * d_k], keys_values, visible, n_heads)
        assert_close(single[0], heads[i], rtol=0, atol=0 if isinstance(kernel, Compiled) else 1e-5)


def test_the_plain_attention_gathers_a_few_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    index, lengths = torch.arange(40, dtype=torch.int32).view(2, 20), torch.tensor([20, 3], dtype=torch.int32)
    which = torch.tensor([0, 1, 1, 0, 1, 0, 0], dtype=torch.int32)
    arguments = (noise(7, 6), noise(40, 14, seed=2), Visible(index, lengths, which), 2)
    together = PLAIN.attend(*arguments)
    for floats in (1, 20 * 14 * 2, 20 * 14 * 3 + 5):  # 1, 2 and 3 queries
        monkeypatch.setattr(kernels, "GATHERED", floats)
        assert_close(PLAIN.attend(*arguments), together)


# ---- the best tokens ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 16, 100, 10_007])
def test_the_best_tokens_are_those_of_the_log_softmax(kernel: Kernels, size: int) -> None:
    logits = 5 * noise(6, size) + 1_000
    values, ids = kernel.best(logits, min(size, 12))
    expected = logits.double().log_softmax(1)
    assert_close(values.double(), expected.gather(1, ids), rtol=0, atol=1e-3)  # of a thousand, in fp32
    assert_close(values.double(), expected.topk(min(size, 12)).values, rtol=0, atol=1e-3)
    for row in ids.tolist():
        assert len(set(row)) == len(row)


def test_equal_logits_come_in_the_order_of_their_ids(compiled: Compiled) -> None:
    logits = torch.zeros(2, 50)
    logits[1, [7, 30, 33]] = 1.0
    assert compiled.best(logits, 4)[1].tolist() == [[0, 1, 2, 3], [7, 30, 33, 0]]


def test_a_nan_among_the_logits_gives_a_nan(kernel: Kernels) -> None:
    logits = noise(2, 100)
    logits[1, 50] = torch.nan
    values, _ = kernel.best(logits, 3)
    assert values[0].isfinite().all()
    assert values[1].isnan().any()


def test_the_plain_kernels_are_kernels() -> None:
    kernels_in_torch: Kernels = Plain()
    assert kernels_in_torch
