"""Adam and the learning-rate schedule (§5.3)."""

from collections.abc import Iterable

import torch
from torch import nn


def learning_rate(
    step: int, *, d_model: int, warmup_steps: int, lr_factor: float = 1.0, max_steps: int = 0, decay_steps: int = 0
) -> float:
    """Return lr_factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (eq. 3) for step = 1, 2, ...

    The rate grows linearly to its peak at step = warmup_steps, then falls with the inverse square root of the step.
    The paper has no `decay_steps`: in the last `decay_steps` of `max_steps`, a factor that falls linearly from 1
    towards 0 multiplies the rate. Raises ValueError for a step below 1.
    """
    if step < 1:
        raise ValueError(f"step={step}: expected at least 1")
    remaining = (max_steps + 1 - step) / (decay_steps + 1) if decay_steps else 1.0
    return lr_factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5) * min(1.0, max(0.0, remaining))


def adam(parameters: Iterable[nn.Parameter], beta2: float = 0.98) -> torch.optim.Adam:
    """Return Adam with beta1 = 0.9 and epsilon = 1e-9. The caller sets the learning rate before each step.

    Allocates the moments here, not in the first step as torch does, so a lack of memory fails before the training.
    """
    parameters = list(parameters)
    optimizer = torch.optim.Adam(parameters, lr=0.0, betas=(0.9, beta2), eps=1e-9, fused=True)
    for parameter in parameters:
        moments = {name: torch.zeros_like(parameter, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.zeros((), device=parameter.device), **moments}
    return optimizer
