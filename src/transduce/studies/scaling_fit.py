"""Laws of the loss of language models: fitted constants, with intervals from a bootstrap.

    Chinchilla   L(N,D) = E + A / N^alpha + B / D^beta                                   Hoffmann et al. 2022, eq. 10
    Kaplan       L(N,D) = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D              Kaplan et al. 2020, eq. 1.5
    power law    L(x) = (x_c / x)^a                                                      the same, eqs. 1.1 to 1.3

N is a number of parameters, D of tokens, L a loss in nats for each token. The first two are fitted as Hoffmann et al.
did it (appendix D.3): the least Huber loss of the logarithm of L, from a grid of starts. Besiroglu et al. (2024) found
that the original fit ended before its minimum, and that its rounded constants have another optimum than the exact ones.
So nothing is rounded here. The fit is the lowest end of 25 minimisations, from the best start of the grid for each pair
of exponents. This is a search, not a proof that no other minimum is lower.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass

import torch
from torch import Tensor

from transduce.errors import UserError
from transduce.studies.comparison import t95

HUBER = 1e-3  # a difference of logarithms; larger ones count by their size instead of their square
RESAMPLES = 500
LEAST_DISTINCT = 3  # values of N, and of D: two values fit a constant and a power equally well


@dataclass(frozen=True)
class Observation:
    """A training: parameters of the model, tokens that it read, and its loss in nats for each token."""

    parameters: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


# ---- laws --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """A law of N and D.

    log_loss: of unknowns (M,P), log N (n,) and log D (n,); returns (M,n). starts: (G,S,P), the grid of unknowns, with
    a group for each pair of exponents.
    constants: the constants of the law, by name, from unknowns (M,P). n_share: the exponent of the compute to which the
    best N is proportional, if the compute is proportional to N D; the exponent of the best D is 1 - n_share.
    """

    log_loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    starts: Tensor
    constants: Callable[[Tensor], dict[str, Tensor]]
    n_share: Callable[[Mapping[str, Tensor]], Tensor]


def _grid(values: Sequence[Sequence[float]], exponents: tuple[int, int]) -> Tensor:
    """Return all combinations of values, (G,S,P), with a group for each pair of values of the unknowns `exponents`."""
    rows = torch.tensor(list(itertools.product(*values)), dtype=torch.float64)
    _, group_of = rows[:, exponents].unique(dim=0, return_inverse=True)
    return rows[group_of.argsort(stable=True)].unflatten(0, (int(group_of.max()) + 1, -1))


def _chinchilla_log_loss(unknowns: Tensor, log_n: Tensor, log_d: Tensor) -> Tensor:
    e, a, b, alpha, beta = unknowns[:, :, None].unbind(1)
    return torch.stack([e + 0 * log_n, a - alpha * log_n, b - beta * log_d]).logsumexp(0)


def _chinchilla_constants(unknowns: Tensor) -> dict[str, Tensor]:
    e, a, b, alpha, beta = unknowns.unbind(1)
    return {"E": e.exp(), "A": a.exp(), "B": b.exp(), "alpha": alpha, "beta": beta}


# Unknowns: log E, log A, log B, alpha, beta. Hoffmann et al. have the same grid.
CHINCHILLA = Law(
    _chinchilla_log_loss,
    _grid([[-1, -0.5, 0, 0.5, 1], range(0, 26, 5), range(0, 26, 5), [0, 0.5, 1, 1.5, 2], [0, 0.5, 1, 1.5, 2]], (3, 4)),
    _chinchilla_constants,
    lambda constants: constants["beta"] / (constants["alpha"] + constants["beta"]),
)


def _kaplan_log_loss(unknowns: Tensor, log_n: Tensor, log_d: Tensor) -> Tensor:
    u, ratio, v, alpha_d = unknowns[:, :, None].unbind(1)
    return alpha_d * torch.stack([u - ratio * log_n, v - log_d]).logsumexp(0)


def _kaplan_constants(unknowns: Tensor) -> dict[str, Tensor]:
    u, ratio, v, alpha_d = unknowns.unbind(1)
    return {"N_c": (u / ratio).exp(), "D_c": v.exp(), "alpha_N": ratio * alpha_d, "alpha_D": alpha_d}


# Unknowns: u = (alpha_N / alpha_D) log N_c, alpha_N / alpha_D, log D_c, alpha_D.
KAPLAN = Law(
    _kaplan_log_loss,
    _grid([range(0, 41, 5), [0.25, 0.5, 1, 1.5, 2], range(5, 41, 5), [0.05, 0.1, 0.2, 0.4, 0.8]], (1, 3)),
    _kaplan_constants,
    lambda constants: constants["alpha_D"] / (constants["alpha_N"] + constants["alpha_D"]),
)


# ---- a fit -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A law with its constants.

    constants: by name. n_share: see `Law`. spread: the root of the mean square of the difference between the measured
    logarithm of the loss and the logarithm by the law.
    """

    law: Law
    unknowns: Tensor
    constants: Mapping[str, Estimate]
    n_share: Estimate
    spread: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss that the law gives a model after a number of tokens."""
        log_n, log_d = _logarithms([parameters]), _logarithms([tokens])
        return float(self.law.log_loss(self.unknowns[None], log_n, log_d).exp())

    def best_parameters(self, product: float) -> float:
        """Return the N of the lowest loss by Chinchilla's law where N D is `product`; nan if there is no minimum."""
        _, a, b, alpha, beta = self.unknowns
        return float(((a - b + (alpha / beta).log() + beta * math.log(product)) / (alpha + beta)).exp())


def fit(law: Law, points: Sequence[Observation], *, resamples: int = RESAMPLES, seed: int = 1) -> Fit:
    """Return a law fitted to the points, with intervals from a bootstrap.

    A sample draws as many points as there are, with replacement, and is fitted by the same procedure. An interval
    holds the middle 95 % of a constant over the samples. It covers the noise of the trainings and the choice of N and
    D. It does not cover an error of the form, which a fit beyond these N and D shows.
    Raises UserError for too few points, or points without a fall of the loss.
    """
    n_unknowns = law.starts.size(2)
    _check(points, n_unknowns)
    weights = torch.cat([torch.ones(1, len(points), dtype=torch.float64), _samples(points, resamples, seed)])
    log_n, log_d, log_loss = (_logarithms(values) for values in zip(*map(astuple, points), strict=True))

    def differences(unknowns: Tensor) -> Tensor:
        return law.log_loss(unknowns, log_n, log_d) - log_loss

    unknowns = _fit_samples(law, differences, weights)
    constants = law.constants(unknowns)
    spread = float(differences(unknowns[:1]).square().mean().sqrt())
    estimates = {name: _estimate(values) for name, values in constants.items()}
    return Fit(law, unknowns[0], estimates, _estimate(law.n_share(constants)), spread)


def _check(points: Sequence[Observation], n_unknowns: int) -> None:
    """Raise UserError if the points cannot give `n_unknowns` constants."""
    for point in points:
        for name, value in asdict(point).items():
            if not 0 < value < math.inf:
                raise UserError(f"{name}={value}: expected a positive, finite number; leave this training out")
    if len(points) <= n_unknowns:
        raise UserError(f"{len(points)} trainings: expected more than {n_unknowns}, one for each constant; train more")
    for name, values in zip(("parameters", "tokens"), _distinct(points), strict=True):
        if len(values) < LEAST_DISTINCT:
            raise UserError(f"{len(values)} numbers of {name}: expected at least {LEAST_DISTINCT}; train more")
    best, worst = min(point.loss for point in points), max(point.loss for point in points)
    if worst < best * (1 + HUBER):
        raise UserError(f"losses from {best:.4g} to {worst:.4g}: expected losses that fall with size and text")


def _distinct(points: Sequence[Observation]) -> tuple[set[float], set[float]]:
    """Return the values of N and of D."""
    return {point.parameters for point in points}, {point.tokens for point in points}


def _samples(points: Sequence[Observation], count: int, seed: int) -> Tensor:
    """Return how often each sample has each point, (count,n). A sample has at least three values of N and of D."""
    generator = torch.Generator().manual_seed(seed)
    samples: list[Tensor] = []
    while len(samples) < count:
        draw = torch.randint(len(points), (len(points),), generator=generator)
        sample = [points[i] for i in draw.tolist()]
        if min(map(len, _distinct(sample))) >= LEAST_DISTINCT:
            samples.append(draw.bincount(minlength=len(points)).double())
    return torch.stack(samples) if samples else torch.zeros(0, len(points), dtype=torch.float64)


def _fit_samples(law: Law, differences: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
    """Return the unknowns (M,P) of samples with the given weights (M,n): for each, the best of several starts.

    The starts are the best of each group of the grid. The best few of the whole grid would not do: where a law does not
    hold exactly, the Huber loss has several minima of almost the same value with different exponents, and these starts
    end in the same one.
    differences: of the law from the points, (S,n), in the logarithm of the loss, from unknowns (S,P).
    """
    n_samples, (n_groups, *_) = len(weights), law.starts.shape
    ranks = weights @ _huber(differences(law.starts.flatten(0, 1))).T  # (M,GS)
    best = ranks.unflatten(1, (n_groups, -1)).argmin(2)
    starts = law.starts[torch.arange(n_groups), best]  # (M,G,P)

    def objective(unknowns: Tensor, rows: Tensor) -> Tensor:
        return (weights[rows // n_groups] * _huber(differences(unknowns))).sum(1)

    unknowns, values = minimise(objective, starts.flatten(0, 1))
    lowest = values.view(n_samples, n_groups).argmin(1)
    return unknowns.view(starts.shape)[torch.arange(n_samples), lowest]


def _huber(differences: Tensor) -> Tensor:
    """Return the Huber loss over its threshold, so that large differences count by their size."""
    sizes = differences.abs()
    return torch.where(sizes < HUBER, sizes.square() / (2 * HUBER), sizes - HUBER / 2)


def _logarithms(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def _estimate(values: Tensor) -> Estimate:
    """Return the first value, with the middle 95 % of the others as its interval; without others, only the value."""
    value, others = float(values[0]), values[1:]
    if not len(others):
        return Estimate(value, value, value)
    bounds = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = others.quantile(bounds, interpolation="nearest").tolist()  # a constant may be infinite in a sample
    return Estimate(value, low, high)


# ---- power laws --------------------------------------------------------------------------------------------------


def power_law(curve: Sequence[tuple[float, float]]) -> Estimate:
    """Return the exponent of the power law through points (x, loss), by least squares of the logarithms.

    Its interval is Student's. Raises UserError for fewer than three values of x, or a loss that does
    not fall.
    """
    if len({x for x, _ in curve}) < LEAST_DISTINCT:
        raise UserError(f"{len(curve)} points: expected at least {LEAST_DISTINCT} with different x; train more")
    if not all(0 < value < math.inf for point in curve for value in point):
        raise UserError("a point of a power law: expected positive, finite numbers; leave this training out")
    xs, ys = ([math.log(value) for value in values] for values in zip(*curve, strict=True))
    slope, start = statistics.linear_regression(xs, ys)
    if slope >= 0:
        raise UserError(f"an exponent of {-slope:.3g}: expected a loss that falls; train more")
    squares = sum((y - start - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    freedom = len(curve) - 2
    error = math.sqrt(squares / freedom / (statistics.variance(xs) * (len(curve) - 1)))
    margin = t95(freedom) * error
    return Estimate(-slope, -slope - margin, -slope + margin)


# ---- minimisation ------------------------------------------------------------------------------------------------

# Many small functions are minimised side by side, by BFGS. L-BFGS replaces the inverse of the Hessian by the last few
# steps, because that matrix is large in a large problem. Here a problem has about five unknowns. So each problem has
# its own matrix, and a step is a few operations for all of them.

Objective = Callable[[Tensor, Tensor], Tensor]  # unknowns (M,P), and the indices (M,) of their problems -> values (M,)

ARMIJO, CURVATURE = 1e-4, 0.9  # a step must lower the value enough, and flatten the slope enough
HALVINGS = 30
LEAST_DECREASE = 1e-9  # relative; a looser one ends before the minimum in a long, flat valley
NEGLIGIBLE = 1e-12  # a decrease that is too small to matter, as where a law fits without error


def minimise(objective: Objective, starts: Tensor, *, max_steps: int = 400) -> tuple[Tensor, Tensor]:
    """Return the unknowns (M,P) of the lowest values found from `starts` (M,P), and these values (M,).

    A problem ends when a step lowers its value no further, or after `max_steps`. A start where the value is not finite
    stays as it is.
    """
    lowest_at, rows = starts.clone(), torch.arange(len(starts))
    values, slopes = _evaluate(objective, lowest_at, rows)
    lowest = values.clone()
    is_active = values.isfinite() & slopes.isfinite().all(1)
    x, rows = lowest_at[is_active], rows[is_active]
    values, slopes = values[is_active], slopes[is_active]
    inverse = _identity(x) / slopes.norm(dim=1).clamp(min=1e-12)[:, None, None]
    for step in range(max_steps):
        if not len(x):
            break
        direction = -(inverse @ slopes[:, :, None]).squeeze(2)
        is_uphill = ~((direction * slopes).sum(1) < 0)
        direction = torch.where(is_uphill[:, None], -slopes, direction)
        inverse = torch.where(is_uphill[:, None, None], _identity(x), inverse)
        moves, new_values, new_slopes = _search_line(objective, x, rows, values, slopes, direction)
        inverse = _updated(inverse, moves, new_slopes - slopes, is_first=step == 0)
        x, decrease = x + moves, values - new_values
        values, slopes = new_values, new_slopes
        lowest_at[rows], lowest[rows] = x, values
        keep = decrease > LEAST_DECREASE * values.abs() + NEGLIGIBLE
        x, rows, inverse = (tensor[keep] for tensor in (x, rows, inverse))
        values, slopes = values[keep], slopes[keep]
    return lowest_at, lowest


def _identity(x: Tensor) -> Tensor:
    return torch.eye(x.size(1), dtype=x.dtype).expand(len(x), -1, -1)


def _evaluate(objective: Objective, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return values (M,) and gradients (M,P)."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        values = objective(x, rows)
        (slopes,) = torch.autograd.grad(values.sum(), x)
    return values.detach(), slopes


def _search_line(
    objective: Objective, x: Tensor, rows: Tensor, values: Tensor, slopes: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return moves (M,P) along `direction`, with the values and gradients there. A move is 0 if no step helps.

    A bisection looks for the weak conditions of Wolfe: too long a step is halved, and too short a step doubled.
    """
    length = torch.ones_like(values)
    low, high = torch.zeros_like(values), torch.full_like(values, torch.inf)
    new_values, new_slopes = values.clone(), slopes.clone()
    before = (direction * slopes).sum(1)
    at = torch.arange(len(x))  # the problems that have no step yet
    for _ in range(HALVINGS):
        ends = x[at] + length[at, None] * direction[at]
        new_values[at], new_slopes[at] = _evaluate(objective, ends, rows[at])
        is_long = ~(new_values[at] <= values[at] + ARMIJO * length[at] * before[at])
        is_long |= ~new_slopes[at].isfinite().all(1)
        is_short = ~is_long & ((new_slopes[at] * direction[at]).sum(1) < CURVATURE * before[at])
        high[at], low[at] = torch.where(is_long, length[at], high[at]), torch.where(is_short, length[at], low[at])
        at = at[is_long | is_short]
        if not len(at):
            return length[:, None] * direction, new_values, new_slopes
        length[at] = torch.where(high[at].isinf(), 2 * low[at], (low[at] + high[at]) / 2)
    length[at] = low[at]  # long enough to lower the value, or 0
    new_values[at], new_slopes[at] = _evaluate(objective, x[at] + length[at, None] * direction[at], rows[at])
    return length[:, None] * direction, new_values, new_slopes


def _updated(inverse: Tensor, moves: Tensor, changes: Tensor, *, is_first: bool) -> Tensor:
    """Return the inverse Hessians (M,P,P) after moves (M,P) that changed the gradients by `changes` (M,P)."""
    product = (moves * changes).sum(1)
    is_curved = product > 1e-14 * moves.norm(dim=1) * changes.norm(dim=1)
    share = torch.where(is_curved, 1 / product.where(is_curved, torch.ones_like(product)), 0.0)
    if is_first:
        scale = product / changes.square().sum(1).clamp(min=1e-300)
        inverse = torch.where(is_curved[:, None, None], scale[:, None, None] * _identity(moves), inverse)
    left = _identity(moves) - share[:, None, None] * moves[:, :, None] * changes[:, None, :]
    return left @ inverse @ left.transpose(1, 2) + share[:, None, None] * moves[:, :, None] * moves[:, None, :]
