"""The parts of the model: sizes, ties, dropout, and configurations that cannot be built."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import reference
from support.small_models import (
    CONFIG,
    NARROW,
    both_norms,
    ids,
    mask_of,
    model_of,
    noise,
)
from torch import Tensor, nn
from torch.testing import assert_close

from transduce.config.schema import ModelConfig
from transduce.errors import UserError
from transduce.model.attention import LONG, Attention, attention_weights, fast_attention, reference_attention
from transduce.model.transformer import FeedForward, Residual, Transformer, parameter_count

# ---- sizes ---------------------------------------------------------------------------------------------------------

BASE = ModelConfig(vocab_size=40_960)


@pytest.mark.parametrize(
    ("change", "millions", "papers"),
    [
        pytest.param({}, 65.11, 65, id="base"),
        pytest.param({"n_layers": 2}, 35.68, 36, id="N=2"),
        pytest.param({"n_layers": 4}, 50.40, 50, id="N=4"),
        pytest.param({"n_layers": 8}, 79.82, 80, id="N=8"),
        pytest.param({"d_model": 256, "d_k": 32, "d_v": 32}, 27.85, 28, id="d_model=256"),
        pytest.param({"d_model": 1024, "d_k": 128, "d_v": 128}, 167.94, 168, id="d_model=1024"),
        pytest.param({"d_ff": 1024}, 52.51, 53, id="d_ff=1024"),
        pytest.param({"d_ff": 4096}, 90.30, 90, id="d_ff=4096"),
        pytest.param({"d_k": 16}, 58.02, 58, id="d_k=16"),
        pytest.param({"d_k": 32}, 60.38, 60, id="d_k=32"),
        # The paper says 213 million of its big model; no vocabulary that fits the ten others gives that.
        pytest.param({"d_model": 1024, "d_ff": 4096, "n_heads": 16}, 218.3, None, id="big"),
    ],
)
def test_parameter_counts_of_table_3(change: dict[str, int], millions: float, papers: int | None) -> None:
    config = replace(BASE, **change)
    with torch.device("meta"):
        actual = parameter_count(Transformer(config))
    d_k, d_v = (width or config.d_model // config.n_heads for width in (config.d_k, config.d_v))
    expected = reference.parameter_count(
        vocab_size=40_960,
        d_model=config.d_model,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        d_k=d_k,
        d_v=d_v,
        d_ff=config.d_ff,
    )
    assert actual == expected
    assert actual / 1e6 == pytest.approx(millions, abs=0.05 if papers is None else 0.005)
    assert papers is None or round(actual / 1e6) == papers


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"tie_src_tgt": False}, 13 * 8),
        ({"tie_output": False}, 13 * 8),
        ({"norm": "pre"}, 2 * 2 * 8),
        ({"positions": "learned", "max_positions": 7}, 7 * 8),
        ({"attention_bias": False}, -2 * 3 * 4 * 8),
    ],
    ids=str,
)
def test_the_parameters_that_an_option_adds(changes: dict[str, Any], more: int) -> None:
    plain, other = (parameter_count(Transformer(config)) for config in (CONFIG, replace(CONFIG, **changes)))
    assert other - plain == more


# ---- ties ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tie_src_tgt", "tie_output", "matrices"), [(True, True, 1), (True, False, 2), (False, True, 2), (False, False, 3)]
)
def test_each_tie_is_optional(tie_src_tgt: bool, tie_output: bool, matrices: int) -> None:
    model = Transformer(replace(CONFIG, tie_src_tgt=tie_src_tgt, tie_output=tie_output))
    src = model.src_embedding.weight
    tgt = model.tgt_embedding.weight
    output = model.output.weight
    assert (tgt is src) == tie_src_tgt
    assert (output is tgt) == tie_output
    assert (output is src) == (tie_src_tgt and tie_output)
    names = [name for name, weight in model.named_parameters() if weight.shape == (13, 8)]
    assert len(names) == matrices
    assert model.output.bias is None


def test_an_output_bias_is_added_to_the_logits_and_trained() -> None:
    model, with_bias = model_of(CONFIG), model_of(replace(CONFIG, output_bias=True))
    for name, weight in model.named_parameters():
        with_bias.get_parameter(name).data.copy_(weight)
    batch = ids(2, 6), mask_of(6, 4), ids(2, 5)
    assert_close(with_bias(*batch), model(*batch) + with_bias.output.bias, rtol=1e-12, atol=1e-12)
    assert with_bias.output.bias.any() and "output.bias" in dict(with_bias.named_parameters())
    assert not Transformer(replace(CONFIG, output_bias=True)).output.bias.any()  # begins at 0


@both_norms
def test_swish_instead_of_relu(norm: Any) -> None:
    layer = model_of(replace(CONFIG, norm=norm, activation="swish")).encoder[0].feed_forward
    x = noise(2, 5, 8)
    inner = x @ layer.w_1.weight.T + layer.w_1.bias
    expected = (inner / (1 + (-inner).exp())) @ layer.w_2.weight.T + layer.w_2.bias
    assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


def test_every_parameter_has_one_name_and_a_gradient() -> None:
    model = Transformer(replace(NARROW, norm="pre", tie_src_tgt=False, tie_output=False))
    parameters = list(model.named_parameters(remove_duplicate=False))
    assert len({name for name, _ in parameters}) == len({id(weight) for _, weight in parameters}) == len(parameters)
    model(ids(2, 6), mask_of(6, 4), ids(2, 5)).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for name, weight in parameters if "w_k.bias" not in name)


def test_the_tied_matrix_gets_the_gradients_of_all_three_uses() -> None:
    untied = Transformer(replace(CONFIG, tie_src_tgt=False, tie_output=False)).double()
    tied = Transformer(CONFIG).double()
    tied.load_state_dict(untied.state_dict(), strict=False)
    table = tied.src_embedding.weight
    with torch.no_grad():
        for matrix in (untied.src_embedding.weight, untied.tgt_embedding.weight, untied.output.weight):
            matrix.copy_(table)
    for model in (tied, untied):
        model(ids(2, 6), mask_of(6, 4), ids(2, 5)).square().sum().backward()
    parts = [m.weight.grad for m in (untied.src_embedding, untied.tgt_embedding, untied.output)]
    assert_close(table.grad, parts[0] + parts[1] + parts[2], rtol=1e-10, atol=1e-12)


# ---- dropout -------------------------------------------------------------------------------------------------------

DROPOUTS = ("dropout", "attention_dropout", "ffn_dropout")


@pytest.mark.parametrize("name", DROPOUTS)
def test_each_dropout_acts_in_training_only(name: str) -> None:
    model = model_of(replace(CONFIG, **{name: 0.5}))
    inputs = ids(2, 6), mask_of(6, 4), ids(2, 5)
    plain = model_of(CONFIG)(*inputs)
    assert torch.equal(model(*inputs), plain)
    model.train()
    assert not torch.allclose(model(*inputs), plain)
    assert not torch.equal(model(*inputs), model(*inputs))
    assert torch.equal(model.eval()(*inputs), plain)


def test_without_dropout_training_gives_the_same_output() -> None:
    inputs = ids(2, 6), mask_of(6, 4), ids(2, 5)
    assert torch.equal(model_of(CONFIG).train()(*inputs), model_of(CONFIG)(*inputs))


def assert_dropped(actual: Tensor, plain: Tensor, probability: float) -> None:
    """Check that each value is 0 or `plain` / (1 - probability), and that a share of `probability` is 0."""
    is_kept = actual != 0
    assert_close(actual[is_kept], (plain / (1 - probability)).expand_as(actual)[is_kept], rtol=1e-5, atol=1e-6)
    share = 1 - is_kept.double().mean().item()
    assert abs(share - probability) < 5 * math.sqrt(probability * (1 - probability) / actual.numel())


@pytest.mark.parametrize("attention", [reference_attention, fast_attention], ids=["reference", "fast"])
@pytest.mark.parametrize("width", [16, LONG])
def test_attention_dropout_acts_on_the_weights(attention: Attention, width: int) -> None:
    torch.manual_seed(1)
    queries, keys = noise(4, 2, 40, 8, dtype=torch.float32), noise(4, 2, width, 8, dtype=torch.float32)
    mask = torch.ones(40, width, dtype=torch.bool)
    values = torch.eye(width).expand(4, 2, width, width)  # so that the output is the weights
    actual = attention(queries, keys, values, mask, 0.3)
    assert_dropped(actual, attention_weights(queries, keys, mask), 0.3)


def inputs_of(module: nn.Module, run: Callable[[], object]) -> Tensor:
    """Return the first argument of the first call of `module` during `run`."""
    arguments: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: arguments.append(inputs[0]))
    run()
    hook.remove()
    return arguments[0]


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_dropout_acts_on_the_embedding_sums(stack: str) -> None:
    config = replace(CONFIG, d_model=64)
    inputs = ids(30, 20), mask_of(*[20] * 30), ids(30, 20, seed=5)
    plain, with_dropout, with_inner_dropout = (
        model_of(replace(config, **changes)).train()
        for changes in ({}, {"dropout": 0.2}, {"attention_dropout": 0.2, "ffn_dropout": 0.2})
    )
    sums, actual, inner_sums = (
        inputs_of(model.get_submodule(stack)[0], lambda model=model: model(*inputs))
        for model in (plain, with_dropout, with_inner_dropout)
    )
    assert_dropped(actual, sums, 0.2)
    assert torch.equal(inner_sums, sums)


@both_norms
def test_dropout_acts_on_the_output_of_a_sub_layer(norm: Any) -> None:
    torch.manual_seed(1)
    residual = Residual(nn.LayerNorm(64), 0.2, post=norm == "post").train()
    output, x = torch.randn(100, 64), torch.randn(100, 64)
    if norm == "post":
        total = inputs_of(residual.norm, lambda: residual(x, lambda _: output))
    else:
        total = residual(x, lambda _: output)
    assert_dropped(total - x, output, 0.2)


def test_ffn_dropout_acts_on_the_inner_activations() -> None:
    torch.manual_seed(1)
    network = FeedForward(8, 64, dropout=0.2).train()
    with torch.no_grad():
        network.w_1.bias += 10  # so that ReLU itself gives no zeros
    x = torch.randn(100, 8)
    assert_dropped(inputs_of(network.w_2, lambda: network(x)), network.w_1(x), 0.2)


# ---- configurations that cannot be built ---------------------------------------------------------------------------


def test_all_problems_of_an_impossible_model_are_reported() -> None:
    with pytest.raises(UserError) as caught:
        Transformer(ModelConfig(vocab_size=None, d_model=9, n_heads=2, positions="learned"))
    for words in (
        "d_model=9: expected a multiple of model.n_heads=2",
        "max_positions=None: expected",
        "vocab_size=None: expected",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_model": 9, "d_k": 3, "d_v": 3}, "even number"),
        ({"max_positions": 5}, "expected null with"),
        ({"d_model": 2, "positions": "tensor2tensor"}, "d_model=2: .*tensor2tensor"),
        ({"d_model": 9, "d_k": 3}, "expected a multiple"),
    ],
    ids=str,
)
def test_an_impossible_model_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Transformer(replace(CONFIG, **changes))


def test_an_odd_width_is_possible_with_learned_positions_and_explicit_head_sizes() -> None:
    model = model_of(replace(NARROW, d_model=9, positions="learned", max_positions=6))
    assert model(ids(2, 6), mask_of(6, 4), ids(2, 5)).shape == (2, 5, 13)
