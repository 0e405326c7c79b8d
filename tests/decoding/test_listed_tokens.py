"""The kernel of the best tokens among some: those of all sentences, and the own ones of each row."""

from collections.abc import Sequence

import pytest
import torch
from support.searches import needs_compiled
from torch import Tensor
from torch.testing import assert_close

from transduce.decoding.compiled_kernels import Compiled, PackedLinear, compiled

V = 1_000
COMMON = torch.arange(0, V, 3)
OWN = [torch.tensor([1, 2, 4, 500]), torch.arange(1, V, 3), torch.tensor([], dtype=torch.int64), torch.tensor([998])]
pytestmark = needs_compiled


@pytest.fixture(scope="module")
def kernel() -> Compiled:
    kernel = compiled()
    assert kernel is not None
    return kernel


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def best(
    output: PackedLinear, x: Tensor, rows: Sequence[int], count: int, barred: Sequence[int] = (0, 3)
) -> tuple[Tensor, Tensor]:
    """Return the best tokens of x (N, k), whose row i has the own tokens OWN[rows[i]]."""
    common, *own = output.tokens([COMMON, *OWN])
    addresses = torch.tensor([own[row].address for row in rows])
    return common.best_of(x, addresses, count, barred)


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("rows", [[0] * 7 + [1] * 6 + [2] * 9 + [3], [0, 1, 2, 3, 2, 1, 0], [1]], ids=len)
@pytest.mark.parametrize("count", [1, 5, 20])
def test_the_best_tokens_are_those_of_the_log_softmax(
    kernel: Compiled, int8: bool, rows: list[int], count: int
) -> None:
    output, x = kernel.pack(noise(V, 70), noise(V, seed=2), int8=int8), noise(len(rows), 70, seed=3)
    values, ids = best(output, x, rows, count)
    logits = output(x)
    for i, row in enumerate(rows):
        listed = torch.cat([COMMON, OWN[row]])
        log_probs = torch.full((V,), -torch.inf, dtype=torch.float64)
        log_probs[listed] = logits[i][listed].double().log_softmax(0)
        log_probs[[0, 3]] = -torch.inf
        assert ids[i].equal(log_probs.topk(count).indices)
        assert_close(values[i].double(), log_probs[ids[i]], rtol=0, atol=1e-5)
        alone = best(output, x[i : i + 1], [row], count)
        assert alone[0][0].equal(values[i]) and alone[1][0].equal(ids[i])


@pytest.mark.parametrize("int8", [True, False])
def test_all_tokens_as_common_ones_are_no_list(kernel: Compiled, int8: bool) -> None:
    output, x = kernel.pack(noise(V, 70), noise(V, seed=2), int8=int8), noise(9, 70, seed=3)
    everything, nothing = output.tokens([torch.arange(V), OWN[2]])
    expected = output.best_of(x, 5, [0, 3])
    own = torch.tensor([nothing.address] * 9)
    for one, other in zip(everything.best_of(x, own, 5, [0, 3]), expected, strict=True):
        assert one.equal(other)


def test_equal_logits_come_in_the_order_of_their_ids(kernel: Compiled) -> None:
    bias = torch.zeros(V)
    bias[[6, 500, 501]] = 1.0
    output = kernel.pack(torch.zeros(V, 4), bias, int8=False)
    _, ids = best(output, noise(2, 4), [0, 2], 7)
    assert ids.tolist() == [[6, 500, 501, 1, 2, 4, 6 + 3], [6, 501, 6 + 3, 12, 15, 18, 21]]


def test_too_few_tokens_are_filled_up(kernel: Compiled) -> None:
    output = kernel.pack(noise(V, 4), noise(V, seed=2), int8=True)
    few, own = output.tokens([torch.tensor([0, 1, 2, 3]), OWN[3]])
    values, ids = few.best_of(noise(1, 4), torch.tensor([own.address]), 6, [0, 1, 3])
    assert values[0].isneginf().tolist() == [False, False, True, True, True, True]
    assert {*ids[0, :2].tolist()} == {2, 998}


@pytest.mark.parametrize("token", [9, 500])
def test_a_nan_stays_in_the_rows_that_list_its_token(kernel: Compiled, token: int) -> None:
    bias = noise(V, seed=2)
    bias[token] = torch.nan
    output = kernel.pack(noise(V, 4), bias, int8=False)
    values, _ = best(output, noise(3, 4), [0, 1, 2], 3)
    assert values[:, 0].isnan().tolist() == [True, token == 9, token == 9]
