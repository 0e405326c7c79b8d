"""The first values that most members share, from BERT, and from GPT-2 (Radford et al. 2019, section 2.3)."""

from collections.abc import Iterable

from torch import nn

BEFORE_RESIDUAL = ("w_o.weight", "w_out.weight", "w_2.weight")  # ends of the names of matrices


def initialise(parameters: Iterable[tuple[str, nn.Parameter]], n_residuals: int = 1) -> None:
    """Draw matrices from N(0, 0.02), those before a residual from N(0, 0.02 / sqrt(n_residuals)); biases are 0.

    parameters: pairs of a name and a parameter. Vectors and tensors of more dimensions keep their values. n_residuals:
    number of residuals, with which their sum would grow; 1: all matrices have the same distribution.
    """
    for name, parameter in parameters:
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02 / n_residuals ** (0.5 * name.endswith(BEFORE_RESIDUAL)))
