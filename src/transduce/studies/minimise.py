"""Minimise many small functions side by side, by BFGS.

L-BFGS replaces the inverse of the Hessian by the last few steps, because that matrix is large in a large problem. Here
a problem has about five unknowns. So each problem has its own matrix, and a step is a few operations for all of them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

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
    found, rows = starts.clone(), torch.arange(len(starts))
    values, slopes = _evaluate(objective, found, rows)
    lowest = values.clone()
    is_active = values.isfinite() & slopes.isfinite().all(1)
    x, rows, values, slopes = found[is_active], rows[is_active], values[is_active], slopes[is_active]
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
        found[rows], lowest[rows] = x, values
        keep = decrease > LEAST_DECREASE * values.abs() + NEGLIGIBLE
        x, rows, values, slopes, inverse = x[keep], rows[keep], values[keep], slopes[keep], inverse[keep]
    return found, lowest


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
    length, low, high = torch.ones_like(values), torch.zeros_like(values), torch.full_like(values, torch.inf)
    new_values, new_slopes = values.clone(), slopes.clone()
    before = (direction * slopes).sum(1)
    at = torch.arange(len(x))  # the problems that have no step yet
    for _ in range(HALVINGS):
        tried = x[at] + length[at, None] * direction[at]
        new_values[at], new_slopes[at] = _evaluate(objective, tried, rows[at])
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
