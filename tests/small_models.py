"""Tiny models, ids and masks for the tests of the model; float64, so that an error of one part in 10^10 shows."""

from dataclasses import replace
from itertools import product

import pytest
import reference
import torch
from torch import Tensor, nn

from transduce.config import ModelConfig
from transduce.model import (
    Transformer,
)

CONFIG = ModelConfig(vocab_size=13, d_model=8, n_layers=2, n_heads=2, d_ff=12, dropout=0.0)
NARROW = replace(CONFIG, d_k=3, d_v=5)  # neither is d_model / n_heads
both_norms = pytest.mark.parametrize("norm", ["post", "pre"])
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
all_configs = pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(base, norm=norm), id=f"{norm}-{name}")
        for (name, base), norm in product({"plain": CONFIG, "narrow": NARROW}.items(), ("post", "pre"))
    ],
)


def disturb(module: nn.Module) -> None:
    """Give biases and gains, which begin at 0 and 1, values of their own, so that leaving one out would show."""
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 1:
                weight += 0.3 * torch.randn_like(weight)


def model_of(config: ModelConfig, dtype: torch.dtype = torch.float64) -> Transformer:
    torch.manual_seed(1)
    model = Transformer(config).eval()
    disturb(model)
    return model.to(dtype)


def ids(*shape: int, seed: int = 2) -> Tensor:
    return torch.randint(4, 13, shape, generator=torch.Generator().manual_seed(seed))


def mask_of(*lengths: int, width: int | None = None) -> Tensor:
    """True where a sentence of each of these lengths has tokens, (B,S)."""
    return torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]


def noise(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3)).requires_grad_()


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def listed(module: nn.Module) -> reference.Weights:
    return {name: value.tolist() for name, value in module.state_dict().items()}
