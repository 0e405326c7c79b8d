"""Hyena: against its definition in loops over numbers and in matrices, in fp64 where it can be."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb
from support.whole_text import continuation_without_states
from torch import Tensor
from torch.nn import functional as F

from transduce.family.configs import HyenaConfig
from transduce.family.hyena import Filters, Hyena, Operator, long_convolution
from transduce.family.inference.continuation import GREEDY, continue_ids
from transduce.family.row_states import NO_STATES
from transduce.model.transformer import parameter_count

D, L = 6, 20
PROMPTS = [[5], [7, 3, 9], [1, 2, 3], [30, 8, 8, 2, 41, 6]]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(50, (3, 17), generator=torch.Generator().manual_seed(2))


def small_hyena(order: int = 2) -> Any:
    torch.manual_seed(1)
    return disturb(
        Hyena(HyenaConfig(vocab_size=50, d_model=24, n_layers=2, order=order, max_positions=32), frequency=14.0)
    )


def filters() -> Any:
    return disturb(Filters(2, D, L, width=8, bands=3, frequency=5.0)).double()


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("n_new", [1, 2, 7])
def test_a_long_convolution_is_its_definition(n: int, n_new: int) -> None:
    z, h = torch.randn(2, D, n, dtype=torch.double), torch.randn(D, n, dtype=torch.double)
    expected = torch.zeros_like(z)
    for b in range(2):
        for d in range(D):
            for t in range(n):
                expected[b, d, t] = sum(float(h[d, t - s] * z[b, d, s]) for s in range(t + 1))
    torch.testing.assert_close(long_convolution(z, h, min(n, n_new)), expected[..., -n_new:])


@torch.no_grad()
def test_the_end_does_not_wrap_around_to_the_beginning() -> None:
    z = torch.zeros(1, 1, 5)
    z[..., -1] = 1
    output = long_convolution(z, torch.full((1, 5), 1e3), 5)
    torch.testing.assert_close(output[0, 0], torch.tensor([0, 0, 0, 0, 1e3]), rtol=1e-5, atol=1e-3)


@torch.no_grad()
def test_the_values_of_a_filter_are_those_of_the_network_in_the_window() -> None:
    """Eq. 7 by a loop over distances, filters and channels."""
    module = filters()
    values = module(9)
    for t in range(9):
        x = [t / (L - 1)]
        x += [math.cos(2 * math.pi * k * t / L) for k in range(3)] + [
            math.sin(2 * math.pi * k * t / L) for k in range(3)
        ]
        y = torch.tensor(x, dtype=torch.double)
        for layer in (module.w_1, module.w_2, module.w_3):
            y = torch.sin(module.frequency * (layer.weight @ y + layer.bias))
        for i in range(2):
            for d in range(D):
                rate = math.log(100) * (1 / 1.5 + (1 / 0.3 - 1 / 1.5) * d / (D - 1))
                expected = float(module.w_4.weight[i * D + d] @ y) * (math.exp(-rate * t / (L - 1)) + 0.05)
                expected += float(module.at_zero[i, d]) if t == 0 else 0
                assert values[i, d, t].item() == pytest.approx(expected)


def test_a_window_falls_to_a_hundredth_within_its_reach() -> None:
    module = Filters(1, 3, 101, 4, 2, 1.0)
    assert module.window(101)[-1, 30].item() == pytest.approx(0.01 + 0.05)
    assert module.window(151)[0, 150].item() == pytest.approx(0.01 + 0.05)


@torch.no_grad()
@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_operator_is_a_product_of_matrices(order: int) -> None:
    """y = D_N S_N ... D_1 S_1 v of each channel (section 3.2), with D a diagonal of x_i and S the matrix of h_i."""
    operator: Any = disturb(Operator(D, order, L, 8, 3, 5.0)).double()
    x, n = torch.randn(2, 7, D, dtype=torch.double), 7
    h = operator.filters(n)
    expected = torch.zeros_like(x)
    for b in range(2):
        projected = torch.zeros((order + 1) * D, n, dtype=torch.double)
        for t in range(n):
            for k in range(3):
                if t - 2 + k >= 0:
                    projected[:, t] += operator.conv.weight[:, 0, k] * operator.w_in(x[b, t - 2 + k])
            projected[:, t] += operator.conv.bias
        for d in range(D):
            z = projected[d]
            for i in range(order):
                toeplitz = torch.tensor(
                    [[float(h[i, d, t - s]) if s <= t else 0.0 for s in range(n)] for t in range(n)]
                )
                z = torch.diag(projected[(i + 1) * D + d]) @ toeplitz.double() @ z
            expected[b, :, d] = z
    torch.testing.assert_close(operator(x, None)[0], operator.w_out(expected))


def test_no_token_sees_a_later_one(ids: Tensor) -> None:
    """But for the rounding of the transform."""
    model, other = small_hyena(), ids.clone()
    other[:, 9] = (ids[:, 9] + 1) % 50
    before, after = model(ids), model(other)
    assert difference(before[:, :9], after[:, :9]) < 1e-5
    assert difference(before[:, 9:], after[:, 9:]) > 1e-2


def test_the_first_token_reaches_the_last(ids: Tensor) -> None:
    model, other = small_hyena(), ids.clone()
    other[:, 0] = (ids[:, 0] + 1) % 50
    assert difference(model(ids)[:, -1], model(other)[:, -1]) > 1e-3


@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("chunks", [[1] * 17, [5, 12], [16, 1]])
def test_steps_are_the_whole(ids: Tensor, chunks: list[int], order: int) -> None:
    model, past, states = small_hyena(order), NO_STATES, []
    for chunk in ids.split(chunks, dim=1):
        new, past = model.states(chunk, past)
        states.append(new)
    assert difference(model.output(torch.cat(states, dim=1)), model(ids)) < TOLERANCE


def test_a_state_is_selected_by_rows(ids: Tensor) -> None:
    model, rows = small_hyena(), torch.tensor([2, 0, 0])
    _, past = model.states(ids[:, :9])
    states, _ = model.states(ids[rows, 9:], past.select(rows))
    assert difference(model.output(states), model(ids[rows])[:, 9:]) < TOLERANCE


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_search_with_states_is_one_of_the_whole_text(beam_size: int) -> None:
    model = small_hyena()
    settings = replace(GREEDY, beam_size=beam_size, max_extra_tokens=10)
    outputs = continue_ids(model, PROMPTS, [11], settings)
    expected = [continuation_without_states(model, prompt, 11, settings) for prompt in PROMPTS]
    assert [output.ids for output in outputs] == expected


def test_the_parameters_do_not_depend_on_the_length() -> None:
    layer = 3 * (D * D + D) + 4 * 3 * D + (D * D + D) + (8 * D * D + 5 * D) + 4 * D
    network = (7 * 8 + 8) + 2 * (64 + 8) + 8 * 2 * D + 8 + 2 * D
    for n_positions in (8, 100):
        model = Hyena(HyenaConfig(vocab_size=50, d_model=D, n_layers=2, max_positions=n_positions), width=8, bands=3)
        assert parameter_count(model) == 50 * D + 2 * (layer + network) + 2 * D


def test_it_learns_to_repeat() -> None:
    """The second half of a text repeats the first, which the last few tokens do not tell."""
    model = Hyena(HyenaConfig(vocab_size=12, d_model=32, n_layers=2, max_positions=16, dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = torch.zeros(())
    for _ in range(100):
        half = torch.randint(12, (32, 6))
        loss = F.cross_entropy(model(torch.cat([half, half], dim=1))[:, 5:-1].flatten(0, 1), half.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < math.log(12) / 10
