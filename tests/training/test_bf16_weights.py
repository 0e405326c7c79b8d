"""The weights in bf16 give the gradients that autocast gives."""

import copy

import pytest
import torch
from support.gradients import gradient_of, micro_batches_of, random_pairs, small_transformer
from torch import nn

from transduce.config.schema import TrainConfig
from transduce.training.bf16_weights import Bf16Weights, bf16_weights, weights_of_products
from transduce.training.task import translation_loss

BATCHES = micro_batches_of(*random_pairs(1, 20), 3)


def test_gradients_equal_those_of_autocast() -> None:
    """The sum over three micro-batches, twice, with other weights in the second step."""
    plain = small_transformer(torch.float32)
    model = copy.deepcopy(plain)
    weights = Bf16Weights(model)
    for _ in range(2):
        weights.write()
        for batch in BATCHES:
            translation_loss(plain, batch, 0.1, "bf16").backward()
            translation_loss(weights.model, batch, 0.1, "bf16").backward()
            weights.add_gradients()
        expected, actual = gradient_of(plain), gradient_of(model)
        assert actual.keys() == expected.keys() == dict(plain.named_parameters()).keys()
        for name, gradient in expected.items():
            assert torch.equal(actual[name], gradient), name
        with torch.no_grad():
            for parameter in (*plain.parameters(), *model.parameters()):
                parameter -= parameter.grad
                parameter.grad = None


def test_what_no_product_reads_is_the_models_own() -> None:
    model = small_transformer(torch.float32)
    copied = Bf16Weights(model).model
    weights = {id(weight) for weight in weights_of_products(model)}
    for parameter, twin in zip(model.parameters(), copied.parameters(), strict=True):
        assert (twin is not parameter) == (id(parameter) in weights) == (twin.dtype is torch.bfloat16)
    assert len(weights) == 2 * (6 + 10) * 2  # weight and bias of each linear layer of two layers and two stacks


def test_frozen_weights_get_no_gradient() -> None:
    model = small_transformer(torch.float32)
    frozen = model.encoder[0].requires_grad_(False)
    weights = Bf16Weights(model)
    translation_loss(weights.model, BATCHES[0], 0.1, "bf16").backward()
    weights.add_gradients()
    assert all((p.grad is None) == (p in {*frozen.parameters()}) for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "precision", "device"),
    [
        (small_transformer(), "bf16", "cpu"),
        (small_transformer(), "fp32", "cuda"),
        (nn.Sequential(nn.Linear(2, 2)), "bf16", "cuda"),
    ],
)
def test_others_have_none(model: nn.Module, precision: str, device: str) -> None:
    assert bf16_weights(model, TrainConfig(precision=precision), torch.device(device)) is None
