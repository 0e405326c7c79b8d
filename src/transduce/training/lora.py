"""LoRA (Hu et al., 2021, arXiv:2106.09685): a training that changes matrices only by products of low rank.

A matrix W (out, in) of a linear layer of attention or of a feed-forward network becomes W + up down. The factors are
up (out, r), at first 0, and down (r, in), at first random. Nothing else of the model is trained.

    gradient G of W -> up^T G and G down^T, the gradients of the factors -> Adam -> W with the new product

The model always holds the sum. So the forward pass, evaluation, moving average, checkpoints and exports do not know of
LoRA. The factors are beside Adam's moments, which have their size. The paper's alpha is r: no other factor scales the
product. A step computes G, as without LoRA, so it saves memory of the optimizer, but not time in the layers.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adam import adam as adam_step

from transduce.config.schema import Config, TrainConfig
from transduce.errors import UserError
from transduce.training.bf16_weights import weights_of_products
from transduce.training.weights import freeze_matching, trained_parameters


def freeze(model: nn.Module, config: TrainConfig) -> None:
    """Freeze what `train.freeze` names and, with `train.lora_rank`, all but the matrices that LoRA changes.

    Raises UserError if a pattern matches no name, or if nothing is left to train.
    """
    freeze_matching(model, config.freeze)
    if config.lora_rank is not None:
        adapted = {*map(id, adapted_matrices(model))}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in adapted)
    if not trained_parameters(model):
        raise UserError(f"train.freeze={','.join(config.freeze)}: expected something left to train; freeze less")


def frozen_names(build: Callable[[Config], nn.Module], config: Config) -> set[str]:
    """Return all names of the parameters that `freeze` would freeze, without computing weights. Raises its UserError.

    build: makes the model of a configuration.
    """
    if not config.train.freeze and config.train.lora_rank is None:
        return set()
    with torch.device("meta"):
        model = build(config)
        freeze(model, config.train)
    parameters = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in parameters if not parameter.requires_grad}


def adapted_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the matrices of attention and feed-forward networks that are not frozen."""
    return [weight for weight in weights_of_products(model) if weight.ndim == 2 and weight.requires_grad]


class LoraAdam(torch.optim.Adam):
    """Adam for factors of rank `rank` of the changes of `matrices`. The gradients are the gradients of the matrices.

    The state of a matrix has both factors in one tensor (r, in + out): down, and up transposed.
    The caller sets the learning rate before each step, and clears the gradients after it.
    """

    def __init__(self, matrices: Sequence[nn.Parameter], rank: int, beta2: float) -> None:
        super().__init__(matrices, lr=0.0, betas=(0.9, beta2), eps=1e-9)
        for matrix in matrices:
            rows, columns = matrix.shape
            down = torch.randn(rank, columns, device=matrix.device) / columns**0.5
            factors = torch.cat([down, down.new_zeros(rank, rows)], dim=1)
            moments = {name: torch.zeros_like(factors) for name in ("exp_avg", "exp_avg_sq")}
            step = torch.zeros((), device=matrix.device)
            self.state[matrix] = {"step": step, **moments, "factors": factors}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the factors of all matrices that have a gradient, and these matrices.

        A lack of memory changes the matrices by a rounding at most, so the caller may call it again.
        """
        (group,) = self.param_groups
        matrices: list[nn.Parameter] = [matrix for matrix in group["params"] if matrix.grad is not None]
        states = [self.state[matrix] for matrix in matrices]
        gradients = [_of_factors(state["factors"], matrix) for state, matrix in zip(states, matrices, strict=True)]
        _add_products(matrices, states, -1)
        try:
            adam_step(
                [state["factors"] for state in states],
                gradients,
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=0.0,
                eps=group["eps"],
                maximize=False,
            )
        finally:
            _add_products(matrices, states, 1)


def _of_factors(factors: Tensor, matrix: nn.Parameter) -> Tensor:
    """Return the gradient of `factors`, from the gradient of `matrix`."""
    assert matrix.grad is not None
    down, up = factors.split([matrix.shape[1], matrix.shape[0]], dim=1)
    return torch.cat([up @ matrix.grad, down @ matrix.grad.T], dim=1)


def _add_products(matrices: Sequence[nn.Parameter], states: Sequence[dict[str, Tensor]], sign: int) -> None:
    """Add the product of its factors to each matrix, or subtract it."""
    for matrix, state in zip(matrices, states, strict=True):
        down, up = state["factors"].split([matrix.shape[1], matrix.shape[0]], dim=1)
        matrix.addmm_(up.T, down, alpha=sign)
