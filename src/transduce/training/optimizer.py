"""Adam and the learning-rate schedule (§5.3), and Muon, which the paper does not have."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from transduce.config.schema import TrainConfig
from transduce.model.cpu_backend import has_fast_bf16
from transduce.training.lora import LoraAdam, adapted_matrices
from transduce.training.weights import trained_parameters

FACTOR = 2.0  # learning rate of the matrices, in times the other rate
MOMENTUM = 0.95
# Factors of x, x^3 and x^5 in each pass, which bring singular values from 0.01 to 1 near 1 (docs/log/auto.md).
PASSES = ((7.9347, -22.2583, 15.8012), (3.5653, -2.5649, 0.4860), (2.6613, -1.9772, 0.4526))


def optimizer_of(model: nn.Module, config: TrainConfig) -> torch.optim.Adam:
    """Return the optimizer that `config` names for the parameters of `model` that are not frozen.

    Muon has the matrices of the layers of encoder and decoder; Adam has embeddings, norms and biases.
    """
    if config.lora_rank is not None:
        return LoraAdam(adapted_matrices(model), config.lora_rank, config.adam_beta2)
    trained = trained_parameters(model)
    if config.optimizer == "adam":
        return adam(trained.values(), config.adam_beta2)
    layers = (p for name, p in trained.items() if name.startswith(("encoder.", "decoder.")))
    return Muon(trained.values(), [p for p in layers if p.ndim == 2], config.adam_beta2)


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
        optimizer.state[parameter] = zero_moments(parameter)
    return optimizer


def zero_moments(parameter: nn.Parameter) -> dict[str, Tensor]:
    """Return Adam's state of a parameter before the first step."""
    moments = {name: torch.zeros_like(parameter, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=parameter.device), **moments}


class Muon(torch.optim.Adam):
    """Muon (Jordan et al., 2024) for matrices, and Adam for all other parameters.

    The step of a matrix is its momentum with all singular values near 1: as large in rare directions of the gradient as
    in frequent ones. Its length is `FACTOR` times the learning rate, and grows with the square root of rows / columns
    above 1. The products are in bf16 where the device is fast in it, for all matrices of a shape at once.

    The caller sets the learning rate before each step, and clears the gradients after it. A lack of memory changes
    nothing, or only what a second call of `step` does not repeat.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], matrices: Sequence[nn.Parameter], beta2: float) -> None:
        super().__init__(list(parameters), lr=0.0, betas=(0.9, beta2), eps=1e-9, fused=True)
        self.matrices: dict[torch.Size, list[nn.Parameter]] = {}
        for matrix in matrices:
            self.matrices.setdefault(matrix.shape, []).append(matrix)
            self.state[matrix] = {"momentum": torch.zeros_like(matrix, requires_grad=False)}
        for parameter in self.param_groups[0]["params"]:
            if parameter not in self.state:
                self.state[parameter] = zero_moments(parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters that have a gradient, and drop the gradients of the matrices."""
        rate = self.param_groups[0]["lr"] * FACTOR
        new: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        for shape, matrices in self.matrices.items():
            with_gradient = [matrix for matrix in matrices if matrix.grad is not None]
            if not with_gradient:
                continue
            gradients = torch.stack([matrix.grad for matrix in with_gradient if matrix.grad is not None])
            momenta = torch.stack([self.state[matrix]["momentum"] for matrix in with_gradient])
            momenta.lerp_(gradients, 1 - MOMENTUM)
            steps = orthogonalised(gradients.lerp_(momenta, MOMENTUM))
            steps.mul_(-rate * math.sqrt(max(1.0, shape[0] / shape[1])))
            new += zip(with_gradient, momenta, steps, strict=True)
        for matrix, momentum, change in new:
            self.state[matrix]["momentum"].copy_(momentum)
            matrix.add_(change)
            matrix.grad = None
        super().step()


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return matrices (N, rows, columns) with the same singular vectors, whose singular values are near 1.

    The Newton-Schulz iteration with three different polynomials. It leaves the values between 0.7 and 1.3; those that
    were below a hundredth of the greatest ones come nearer to 0.
    """
    x = matrices.bfloat16() if has_fast_bf16(matrices.device) else matrices
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = x.mT.contiguous() if is_tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    gram = x @ x.mT
    square = gram.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # nearer to the square of the greatest value than 1
    x, gram = x / square.sqrt(), gram / square
    for i, (a, b, c) in enumerate(PASSES):
        gram = x @ x.mT if i else gram
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)
