"""The model against independent versions of itself: slow attention, torch's own layers, plain loops."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import reference
from support.small_models import (
    CONFIG,
    NARROW,
    all_configs,
    as_lists,
    both_dtypes,
    both_norms,
    causal,
    ids,
    mask_of,
    model_of,
    noise,
)
from torch import Tensor, nn
from torch.testing import assert_close

from transduce.config.schema import ModelConfig
from transduce.model.attention import (
    LONG,
    Mask,
    MultiHeadAttention,
    attention_weights,
    fast_attention,
    reference_attention,
)
from transduce.model.transformer import DecoderLayer, EncoderLayer

# ---- the whole model with another attention function ---------------------------------------------------------------


@both_norms
@pytest.mark.parametrize("width", [6, LONG + 4])
def test_the_whole_model_with_reference_attention(norm: Any, width: int) -> None:
    model = model_of(replace(CONFIG, norm=norm))
    src = ids(2, width)
    src_mask = mask_of(width, 4)
    tgt_in = ids(2, width, seed=5)
    slow = model.decode(tgt_in, model.encode(src, src_mask, reference_attention), src_mask, reference_attention)
    assert_close(model(src, src_mask, tgt_in), model.logits(slow), rtol=1e-10, atol=1e-10)


def test_every_attention_of_the_model_can_be_recorded() -> None:
    calls: list[Tensor] = []

    def recording(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        calls.append(attention_weights(queries, keys, mask))
        return calls[-1] @ values

    model = model_of(CONFIG)
    src = ids(2, 6)
    src_mask = mask_of(6, 4)
    tgt_in = ids(2, 5)
    states = model.decode(tgt_in, model.encode(src, src_mask, recording), src_mask, recording)
    assert_close(model.logits(states), model(src, src_mask, tgt_in), rtol=1e-12, atol=1e-12)
    assert [tuple(weights.shape[2:]) for weights in calls] == [(6, 6)] * 2 + [(5, 5), (5, 6)] * 2
    for weights in calls:
        assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        is_over_source = weights.size(-1) == 6
        hidden = ~src_mask[:, None, None, :] if is_over_source else ~causal(5)
        assert (weights.masked_select(hidden) == 0).all()
        assert (weights.masked_select(~hidden) > 0).all()


# ---- against torch's own layers ------------------------------------------------------------------------------------


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.w_q, ours.w_k, ours.w_v)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(ours.w_o.state_dict())


def copy_layer(ours: EncoderLayer | DecoderLayer, theirs: Any) -> None:
    copy_attention(ours.self_attention, theirs.self_attn)
    if isinstance(ours, DecoderLayer):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
    theirs.linear1.load_state_dict(ours.feed_forward.w_1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.w_2.state_dict())
    for i, residual in enumerate(ours.residuals, start=1):
        getattr(theirs, f"norm{i}").load_state_dict(residual.norm.state_dict())


def assert_same(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    """Check that values and gradients for `inputs` are equal, to 1e-5 in float32 and 1e-10 in float64."""
    tolerance = 1e-5 if ours.dtype == torch.float32 else 1e-10
    assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    direction = noise(*ours.shape, dtype=ours.dtype).detach()
    gradients = [torch.autograd.grad((output * direction).sum(), inputs) for output in (ours, theirs)]
    for mine, other in zip(*gradients, strict=True):
        assert_close(mine, other, rtol=tolerance, atol=10 * tolerance)


both_widths = pytest.mark.parametrize("width", [7, LONG + 4], ids=["short", "long"])
TORCH_LAYER = {"dropout": 0.0, "layer_norm_eps": CONFIG.norm_eps, "batch_first": True}


@both_dtypes
@both_widths
@pytest.mark.parametrize("is_causal", [False, True])
def test_multi_head_attention_equals_torchs(is_causal: bool, width: int, dtype: torch.dtype) -> None:
    ours = model_of(CONFIG, dtype).encoder[0].self_attention
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=dtype)
    copy_attention(ours, theirs)
    x = noise(2, width, 8, dtype=dtype)
    y = noise(2, width, 8, dtype=dtype)
    src_mask = mask_of(width, 4)
    visible = causal(width) if is_causal else torch.ones(width, width, dtype=torch.bool)
    actual = ours(x, ours.keys_values(y), src_mask[:, None, None, :] & visible)
    expected, _ = theirs(x, y, y, key_padding_mask=~src_mask, attn_mask=~visible, need_weights=False)
    assert_same(actual, expected, [x, y])


@both_dtypes
@both_widths
@both_norms
def test_the_encoder_layer_equals_torchs(norm: Any, width: int, dtype: torch.dtype) -> None:
    ours = model_of(replace(CONFIG, norm=norm), dtype).encoder[0]
    theirs = nn.TransformerEncoderLayer(8, 2, 12, norm_first=norm == "pre", dtype=dtype, **TORCH_LAYER)
    copy_layer(ours, theirs)
    x, src_mask = noise(2, width, 8, dtype=dtype), mask_of(width, 4)
    actual = ours(x, src_mask[:, None, None, :], fast_attention)
    expected = theirs(x, src_key_padding_mask=~src_mask)
    assert_same(actual[src_mask], expected[src_mask], [x])


@both_dtypes
@both_widths
@both_norms
def test_the_decoder_layer_equals_torchs(norm: Any, width: int, dtype: torch.dtype) -> None:
    ours = model_of(replace(CONFIG, norm=norm), dtype).decoder[0]
    theirs = nn.TransformerDecoderLayer(8, 2, 12, norm_first=norm == "pre", dtype=dtype, **TORCH_LAYER)
    copy_layer(ours, theirs)
    x = noise(2, 5, 8, dtype=dtype)
    memory = noise(2, width, 8, dtype=dtype)
    src_mask = mask_of(width, 4)
    cross = ours.cross_attention.keys_values(memory)
    actual, _ = ours(x, None, cross, (causal(5), src_mask[:, None, None, :]))
    expected = theirs(x, memory, tgt_mask=~causal(5), memory_key_padding_mask=~src_mask)
    assert_same(actual, expected, [x, memory])


# ---- against plain loops -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_multi_head_attention_equals_plain_loops(bias: bool) -> None:
    attention = model_of(replace(NARROW, attention_bias=bias)).encoder[0].self_attention
    x, memory = noise(1, 4, 8), noise(1, 6, 8)
    mask = torch.ones(4, 6, dtype=torch.bool).tril(2)
    actual = attention(x, attention.keys_values(memory), mask)
    expected = reference.multi_head(x[0].tolist(), memory[0].tolist(), as_lists(attention), 2, mask.tolist())
    assert_close(actual[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-11)


@all_configs
def test_the_encoder_layer_equals_plain_loops(config: ModelConfig) -> None:
    layer = model_of(config).encoder[0]
    x, src_mask = noise(2, 6, 8), mask_of(6, 4)
    actual = layer(x, src_mask[:, None, None, :], fast_attention)
    for b in range(2):
        mask = [src_mask[b].tolist()] * 6
        expected = reference.encoder_layer(
            x[b].tolist(), as_lists(layer), mask, 2, norm=config.norm, eps=config.norm_eps
        )
        assert_close(actual[b], torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@all_configs
def test_the_decoder_layer_equals_plain_loops(config: ModelConfig) -> None:
    layer = model_of(config).decoder[0]
    x = noise(2, 5, 8)
    memory = noise(2, 6, 8)
    src_mask = mask_of(6, 4)
    actual, _ = layer(x, None, layer.cross_attention.keys_values(memory), (causal(5), src_mask[:, None, None, :]))
    for b in range(2):
        masks = causal(5).tolist(), [src_mask[b].tolist()] * 5
        expected = reference.decoder_layer(
            x[b].tolist(), memory[b].tolist(), as_lists(layer), masks, 2, norm=config.norm, eps=config.norm_eps
        )
        assert_close(actual[b], torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@all_configs
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_whole_model_equals_plain_loops(config: ModelConfig, tied: bool) -> None:
    model = model_of(replace(config, tie_src_tgt=tied, tie_output=tied))
    src = ids(2, 6)
    src_mask = mask_of(6, 4)
    tgt_in = ids(2, 5, seed=5)
    logits = model(src, src_mask, tgt_in)
    for b, length in enumerate((6, 4)):
        expected = reference.transformer(
            src[b, :length].tolist(),
            tgt_in[b].tolist(),
            as_lists(model),
            depths=config.depths,
            n_heads=2,
            norm=config.norm,
            eps=config.norm_eps,
        )
        # The table of sinusoids is rounded to float32, so 1e-10 is too small.
        assert_close(logits[b], torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)
