"""Initialisation: the distribution of every parameter, and the seed."""

import math
from dataclasses import replace

import pytest
import torch
from support.small_models import (
    CONFIG,
)

from transduce.config.schema import ModelConfig
from transduce.model.transformer import Transformer

WIDE = ModelConfig(vocab_size=600, d_model=64, n_layers=2, n_heads=4, d_k=24, d_v=20, d_ff=160)
SELF = math.sqrt(6 / (64 + 2 * 96 + 80))  # one matrix of Q, K and V
CROSS = math.sqrt(6 / (64 + 96 + 80))  # one matrix of K and V
BOUNDS = {
    "self_attention.w_q": SELF,
    "self_attention.w_k": SELF,
    "self_attention.w_v": SELF,
    "self_attention.w_o": math.sqrt(6 / (80 + 64)),
    "cross_attention.w_q": math.sqrt(6 / (64 + 96)),
    "cross_attention.w_k": CROSS,
    "cross_attention.w_v": CROSS,
    "cross_attention.w_o": math.sqrt(6 / (80 + 64)),
    "feed_forward.w_1": math.sqrt(6 / (64 + 160)),
    "feed_forward.w_2": math.sqrt(6 / (64 + 160)),
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_matrices_start_glorot_uniform(kind: str) -> None:
    torch.manual_seed(1)
    model, bound = Transformer(WIDE), BOUNDS[kind]
    matrices = [weight for name, weight in model.named_parameters() if name.endswith(f"{kind}.weight")]
    assert len(matrices) == (2 if kind.startswith("cross") else 4)
    for matrix in matrices:
        # 5,120 or more uniform values: the standard deviation within 4 %, the mean within 7 %, is 6 sigma.
        assert 0.99 * bound < matrix.abs().max() <= bound
        assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.04)
        assert abs(matrix.mean().item()) < 0.07 * bound
    assert not torch.equal(matrices[0], matrices[1])


def test_fused_projections_of_the_base_model_start_smaller() -> None:
    model = Transformer(ModelConfig(vocab_size=100, n_layers=1))
    plain = math.sqrt(6 / (512 + 512))
    for attention, ratio, parts in (("self", math.sqrt(1 / 2), "qkv"), ("cross", math.sqrt(2 / 3), "kv")):
        for letter in parts:
            weight = model.decoder[0].get_submodule(f"{attention}_attention.w_{letter}").weight
            assert weight.abs().max().item() == pytest.approx(ratio * plain, rel=1e-3)
    assert model.decoder[0].cross_attention.w_q.weight.abs().max().item() == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (WIDE, "src_embedding.weight"),
        (replace(WIDE, tie_src_tgt=False), "tgt_embedding.weight"),
        (replace(WIDE, tie_output=False), "output.weight"),
        (replace(WIDE, positions="learned", max_positions=600), "positions.table"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tables_start_normal(config: ModelConfig, name: str) -> None:
    torch.manual_seed(1)
    table = dict(Transformer(config).named_parameters())[name]
    # 38,400 normal values: 2 % of the standard deviation is 5.5 sigma, and some are beyond 3.5 of it.
    assert table.std().item() == pytest.approx(64**-0.5, rel=0.02)
    assert abs(table.mean().item()) < 0.03 * 64**-0.5
    assert table.abs().max() > 3.5 * 64**-0.5


def test_biases_start_at_zero_and_gains_at_one() -> None:
    model = Transformer(replace(CONFIG, norm="pre"))
    vectors = {name: weight for name, weight in model.named_parameters() if weight.dim() == 1}
    gains = {name for name in vectors if "norm" in name and name.endswith("weight")}
    assert len(gains) == 2 * 2 + 2 * 3 + 2
    for name, vector in vectors.items():
        assert (vector == (1.0 if name in gains else 0.0)).all(), name


def test_the_initialisation_depends_on_the_seed() -> None:
    first, second, other = ([torch.manual_seed(seed), Transformer(CONFIG)][1] for seed in (1, 1, 2))
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(first.output.weight, other.output.weight)
