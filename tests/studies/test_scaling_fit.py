"""The fits of scaling laws: known constants from made losses, and points that can give no constants."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from transduce.errors import UserError
from transduce.studies.scaling_fit import CHINCHILLA, KAPLAN, Fit, Law, Observation, fit, minimise, power_law

SMALL = [2.0, 60.0, 300.0, 0.35, 0.38]  # E, A, B, alpha, beta of models such as in the study
HOFFMANN = [1.69, 406.4, 410.7, 0.34, 0.28]
PARAMETERS, TOKENS = [25e3 * 2.5**i for i in range(6)], [130e3 * 2**i for i in range(6)]


def chinchilla(constants: Sequence[float], parameters: float, tokens: float) -> float:
    e, a, b, alpha, beta = constants
    return e + a / parameters**alpha + b / tokens**beta


def kaplan(constants: Sequence[float], parameters: float, tokens: float) -> float:
    n_c, d_c, alpha_n, alpha_d = constants
    return ((n_c / parameters) ** (alpha_n / alpha_d) + d_c / tokens) ** alpha_d


def points(noise: float = 0.0, seed: int = 1) -> list[Observation]:
    """Return trainings of the sizes of the study, whose losses have the constants `SMALL`."""
    draws = random.Random(seed)
    return [
        Observation(n, d, chinchilla(SMALL, n, d) * math.exp(draws.gauss(0, noise))) for n in PARAMETERS for d in TOKENS
    ]


@pytest.mark.parametrize(("constants", "scale"), [(SMALL, 1.0), (HOFFMANN, 3e3)])
def test_chinchillas_constants_come_back(constants: Sequence[float], scale: float) -> None:
    """Hoffmann et al. have the second ones, at 75 million to 7 billion parameters."""
    sizes = [(n * scale, 30 * scale * d) for n in PARAMETERS for d in TOKENS]
    law = fit(CHINCHILLA, [Observation(n, d, chinchilla(constants, n, d)) for n, d in sizes], resamples=1)
    assert [one.value for one in law.constants.values()] == pytest.approx(constants, rel=1e-4)
    assert law.n_share.value == pytest.approx(constants[4] / (constants[3] + constants[4]), rel=1e-4)
    assert law.n_share.low == pytest.approx(law.n_share.high, rel=1e-3) and law.spread < 1e-5


def test_kaplans_constants_come_back() -> None:
    constants = [6.4e13, 1.8e13, 0.076, 0.103]
    sizes = [(768 * 4.0**i, 2e7 * 3.0**j) for i in range(8) for j in range(6)]
    law = fit(KAPLAN, [Observation(n, d, kaplan(constants, n, d)) for n, d in sizes], resamples=1)
    assert [one.value for one in law.constants.values()] == pytest.approx(constants, rel=1e-3)
    assert law.n_share.value == pytest.approx(0.103 / 0.179, rel=1e-4)
    assert law.loss(1e6, 1e8) == pytest.approx(kaplan(constants, 1e6, 1e8), rel=1e-6)


def test_constants_are_within_their_intervals_after_noise() -> None:
    law = fit(CHINCHILLA, points(noise=0.005), resamples=40)
    for constant, estimate in zip(SMALL, law.constants.values(), strict=True):
        assert estimate.low < constant < estimate.high and estimate.low < estimate.value < estimate.high
    assert law.n_share.low < 0.38 / 0.73 < law.n_share.high < law.n_share.low + 0.15
    assert law.spread == pytest.approx(0.005, rel=0.3)


@pytest.mark.parametrize(("form", "seed"), [(KAPLAN, 14), (CHINCHILLA, 1)])
def test_a_law_that_does_not_hold_is_fitted_to_the_minimum(form: Law, seed: int) -> None:
    """The losses are of the other law. No minimum from 50 random starts is lower.

    From only the best four starts of the grid, Kaplan's fit ends higher, with other exponents.
    """
    made, draws = points(noise=0.003, seed=seed), random.Random(seed)
    if form is CHINCHILLA:
        kaplans = [2e9, 3e8, 0.2, 0.25]
        made = [replace(p, loss=kaplan(kaplans, p.parameters, p.tokens) * draws.gauss(1, 0.003)) for p in made]
    columns = ([getattr(one, name) for one in made] for name in ("parameters", "tokens", "loss"))
    log_n, log_d, log_loss = (torch.tensor(column, dtype=torch.float64).log() for column in columns)

    def misfit(unknowns: Tensor, _: Tensor) -> Tensor:
        differences = form.log_loss(unknowns, log_n, log_d) - log_loss
        return huber_loss(differences, torch.zeros_like(differences), reduction="none", delta=1e-3).sum(1) / 1e-3

    grid = form.starts.flatten(0, 1)
    random_shares = torch.rand(50, grid.size(1), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    _, values = minimise(misfit, grid.amin(0) + (grid.amax(0) - grid.amin(0)) * random_shares)
    law = fit(form, made, resamples=0)
    assert law.spread > 0.006  # twice the noise
    assert float(misfit(law.unknowns[None], grid)) <= float(values[values.isfinite()].min()) * (1 + 1e-6)


def test_a_failed_training_hardly_moves_the_law() -> None:
    """Least squares would move each constant: this is what Huber's loss is for."""
    broken = [replace(one, loss=one.loss * (1.3 if i == 17 else 1)) for i, one in enumerate(points(noise=0.001))]
    law = fit(CHINCHILLA, broken, resamples=0)
    assert law.n_share.value == pytest.approx(0.38 / 0.73, rel=0.01)
    assert law.constants["E"].low == law.constants["E"].value  # without samples


def test_the_best_size_is_that_of_the_closed_form() -> None:
    """Rounded to two digits, the published constants give 32 billion parameters for Chinchilla's compute, not 70."""
    law = Fit(CHINCHILLA, unknowns(HOFFMANN), {}, fit(CHINCHILLA, points(), resamples=0).n_share, 0.0)
    product = 5.76e23 / 6
    e, a, b, alpha, beta = HOFFMANN
    closed = (alpha * a / (beta * b)) ** (1 / (alpha + beta)) * product ** (beta / (alpha + beta))
    assert law.best_parameters(product) == pytest.approx(closed, rel=1e-5)
    assert closed == pytest.approx(3.2e10, rel=0.02) and product / closed**2 == pytest.approx(93, rel=0.02)
    assert law.loss(closed, product / closed) > e


def unknowns(constants: Sequence[float]) -> Tensor:
    e, a, b, alpha, beta = constants
    return torch.tensor([math.log(e), math.log(a), math.log(b), alpha, beta], dtype=torch.float64)


@pytest.mark.parametrize(
    ("form", "changed", "message"),
    [
        (CHINCHILLA, points()[:5], "5 trainings: expected more than 5"),
        (KAPLAN, points()[:4], "4 trainings: expected more than 4"),
        (CHINCHILLA, points()[:12], "2 numbers of parameters: expected at least 3"),
        (CHINCHILLA, [one for one in points() if one.tokens < 300e3], "2 numbers of tokens: expected at least 3"),
        (CHINCHILLA, [replace(one, loss=3.0) for one in points()], "losses from 3 to 3: expected losses that fall"),
        (KAPLAN, [*points(), Observation(1e6, 1e6, math.nan)], "loss=nan: expected a positive, finite number"),
        (KAPLAN, [*points(), Observation(0, 1e6, 3.0)], "parameters=0: expected a positive"),
        (CHINCHILLA, [], "0 trainings: expected more than 5"),
    ],
)
def test_points_that_give_no_law_are_refused(form: Law, changed: Sequence[Observation], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fit(form, changed, resamples=2)


@pytest.mark.parametrize("form", [CHINCHILLA, KAPLAN])
def test_odd_losses_give_a_law_all_the_same(form: Law) -> None:
    """Losses that rise, and of any size: a loss of 1e30 is possible in a file that someone edited."""
    rising = [replace(one, loss=one.tokens * one.parameters) for one in points()]
    odd = [Observation(2.0**62, 1, 1e30), Observation(1, 2.0**62, 1e-30), *points()]
    for changed in (rising, odd):
        law = fit(form, changed, resamples=2)
        assert math.isfinite(law.spread) and math.isfinite(law.loss(1e6, 1e6))


# ---- minimisation ------------------------------------------------------------------------------------------------


def test_problems_side_by_side_end_at_their_minima() -> None:
    """Rosenbrock's valley, of another bend and another end in each problem."""
    bends, ends = torch.tensor([[1.0, 10.0, 100.0], [0.7, -1.0, 1.0]], dtype=torch.float64)
    starts = torch.tensor([[-1.2, 1.0], [3.0, -2.0], [0.0, 5.0]], dtype=torch.float64)

    def objective(x: Tensor, rows: Tensor) -> Tensor:
        return (ends[rows] - x[:, 0]) ** 2 + bends[rows] * (x[:, 1] - x[:, 0] ** 2) ** 2 + 1

    x, values = minimise(objective, starts)
    assert x.flatten().tolist() == pytest.approx([0.7, 0.49, -1.0, 1.0, 1.0, 1.0], abs=1e-4)
    assert values.tolist() == pytest.approx([1.0] * 3, abs=1e-8)


def test_a_start_without_a_finite_value_stays() -> None:
    starts = torch.tensor([[-1.0], [4.0]], dtype=torch.float64)
    x, values = minimise(lambda x, _: (x.log() ** 2).sum(1), starts)
    assert x[0].item() == -1.0 and values[0].isnan()
    assert x[1].item() == pytest.approx(1.0, abs=1e-6)


# ---- power laws --------------------------------------------------------------------------------------------------


def test_a_power_law_comes_back() -> None:
    law = power_law([(x, (8.8e13 / x) ** 0.076) for x in (1e3, 1e5, 1e6, 1e9)])
    assert law.value == pytest.approx(0.076) and law.high - law.low < 1e-6


def test_the_interval_of_an_exponent_is_students() -> None:
    """Four points in a zigzag: slope -0.4, and 0.15 for the squares that remain, over 2 degrees of freedom."""
    ys = [3.0, 2.5, 2.2, 1.7]
    law = power_law([(math.exp(i), math.exp(y)) for i, y in enumerate(ys)])
    slope = -(1.5 * 3.0 + 0.5 * 2.5 - 0.5 * 2.2 - 1.5 * 1.7) / 5
    residuals = [y - sum(ys) / 4 - slope * (i - 1.5) for i, y in enumerate(ys)]
    error = math.sqrt(sum(r * r for r in residuals) / 2 / 5)
    assert law.value == pytest.approx(-slope)
    assert law.high - law.value == pytest.approx(4.30 * error)


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        ([(1.0, 2.0), (2.0, 1.0)], "2 points: expected at least 3"),
        ([(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)], "expected a loss that falls"),
        ([(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)], "expected a loss that falls"),
        ([(1.0, 2.0), (2.0, -1.0), (3.0, 1.0)], "expected positive, finite numbers"),
    ],
)
def test_points_without_a_power_law_are_refused(curve: Sequence[tuple[float, float]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        power_law(curve)
