"""Tiny models, ids and masks for the tests of the model, in float64, so that an error of 1e-10 is visible."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import reference
from transduce.config.schema import ModelConfig
from transduce.model.transformer import Transformer

CONFIG = ModelConfig(vocab_size=13, d_model=8, n_layers=2, n_heads=2, d_ff=12, dropout=0.0)
NARROW = replace(CONFIG, d_k=3, d_v=5)  # neither is d_model / n_heads
both_norms = pytest.mark.parametrize("norm", ["post", "pre"])
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
all_configs = pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(base, norm=norm), id=f"{norm}-{name}")
        for (name, base), norm in product({"plain": CONFIG, "narrow": NARROW}.items(), ("post", "pre"))
    ]
    + [
        pytest.param(replace(CONFIG, n_layers=3, n_decoder_layers=1), id="3 + 1 layers"),
        pytest.param(replace(NARROW, n_encoder_layers=1, n_decoder_layers=3, norm="pre"), id="1 + 3 layers"),
    ],
)


def disturb(module: nn.Module) -> None:
    """Add noise to biases and gains, which start at 0 and 1, so that a missing one changes the output."""
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
    """Return a mask (B,S), True where a sentence of each of these lengths has tokens."""
    return torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]


def noise(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3)).requires_grad_()


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def as_lists(module: nn.Module) -> reference.Weights:
    return {name: value.tolist() for name, value in module.state_dict().items()}


# ---- a search ----------------------------------------------------------------------------------------------------

SRC, SRC_MASK = torch.randint(4, 13, (3, 7), generator=torch.Generator().manual_seed(1)), mask_of(7, 3, 5)


def logits_of_a_search(model: Transformer, other: Any) -> tuple[Tensor, Tensor]:
    """Return the logits of `model` and of `other`, step by step, while rows are repeated, permuted and removed."""
    generator = torch.Generator().manual_seed(2)
    with torch.inference_mode():
        cache = model.start(model.encode(SRC, SRC_MASK), SRC_MASK)
        others = other.start(other.encode(SRC, SRC_MASK), SRC_MASK)
        pairs: list[tuple[Tensor, Tensor]] = []
        stay = torch.arange(3)
        rows = stay.repeat_interleave(2)
        for step in range(20):
            cache, others = cache.select(rows, stay), others.select(rows, stay)
            assert others.length == cache.length == step
            ids = torch.randint(13, (len(rows),), generator=generator)
            expected, cache = model.decode_step(ids, cache)
            output, others = other.decode_step(ids, others)
            pairs.append((expected, output))
            stay = torch.tensor([0, 2]) if step == 7 else torch.arange(len(stay))
            beams = torch.randint(2, (len(stay), 2), generator=generator)
            rows = (2 * stay[:, None] + beams).flatten()
    return torch.cat([expected for expected, _ in pairs]), torch.cat([output for _, output in pairs])
