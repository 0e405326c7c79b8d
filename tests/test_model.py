"""The model against independent versions of itself, and against what must not matter to it.

Models here are tiny and in float64 where torch allows it, so that an error of one part in 10^10 shows.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import reference
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from transduce.config import ModelConfig, Positions
from transduce.errors import UserError
from transduce.model import (
    LONG,
    Attention,
    Cache,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    Residual,
    Transformer,
    attention_weights,
    fast_attention,
    parameter_count,
    reference_attention,
    sinusoids,
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


# ---- how large it is ---------------------------------------------------------------------------------------------

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
        found = parameter_count(Transformer(config))
    d_k, d_v = (width or config.d_model // config.n_heads for width in (config.d_k, config.d_v))
    wanted = reference.parameter_count(
        vocab_size=40_960,
        d_model=config.d_model,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        d_k=d_k,
        d_v=d_v,
        d_ff=config.d_ff,
    )
    assert found == wanted
    assert found / 1e6 == pytest.approx(millions, abs=0.05 if papers is None else 0.005)
    assert papers is None or round(found / 1e6) == papers


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ({"tie_src_tgt": False}, 13 * 8),
        ({"tie_output": False}, 13 * 8),
        ({"norm": "pre"}, 2 * 2 * 8),
        ({"positions": "learned", "max_positions": 7}, 7 * 8),
        ({"attention_bias": False}, -2 * 3 * 4 * 8),
    ],
    ids=str,
)
def test_what_an_option_adds(changed: dict[str, Any], more: int) -> None:
    plain, other = (parameter_count(Transformer(config)) for config in (CONFIG, replace(CONFIG, **changed)))
    assert other - plain == more


# ---- attention, by another way -----------------------------------------------------------------------------------


def test_worked_numbers_of_the_softmax() -> None:
    scores = torch.tensor([0.40, 1.05, 0.15, 0.05])
    keys = scores[:, None] * torch.eye(4) * math.sqrt(4)  # so that Q K^T / sqrt(d_k) of a row of ones is `scores`
    weights = attention_weights(torch.ones(1, 1, 1, 4), keys[None, None], torch.ones(1, 4, dtype=torch.bool))
    assert_close(weights.flatten(), torch.tensor([0.227, 0.435, 0.177, 0.160]), atol=6e-4, rtol=0)


def test_attention_by_loops() -> None:
    queries, keys, values = noise(2, 3, 4, 5), noise(2, 3, 6, 5), noise(2, 3, 6, 7)
    mask = mask_of(6, 4)[:, None, None, :] & torch.ones(6, 6, dtype=torch.bool).tril(2)[:4]
    found = reference_attention(queries, keys, values, mask, 0.0)
    for b, h in product(range(2), range(3)):
        parts = [x[b, h].tolist() for x in (queries, keys, values)]
        wanted = reference.attention(*parts, mask[b, 0].tolist())
        assert_close(found[b, h], torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def kinds_of_mask(length: int, width: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    some = torch.rand(2, 1, length, width, generator=generator) < 0.5
    some[..., 0] = True  # no row without anything to see
    return {
        "padding": mask_of(width, width - 3)[:, None, None, :],
        "causal": torch.ones(length, width, dtype=torch.bool).tril(width - length),
        "any": some,
    }


@both_dtypes
@pytest.mark.parametrize("kind", ["padding", "causal", "any"])
@pytest.mark.parametrize("width", [9, LONG - 1, LONG, LONG + 44])
def test_fast_attention_is_attention(width: int, kind: str, dtype: torch.dtype) -> None:
    given = [noise(2, 3, 9, 5, dtype=dtype), noise(2, 3, width, 5, dtype=dtype), noise(2, 3, width, 7, dtype=dtype)]
    mask = kinds_of_mask(9, width)[kind]
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-12}[dtype]
    outputs, gradients = [], []
    for attention in (fast_attention, reference_attention):
        output = attention(*given, mask, 0.0)
        outputs.append(output)
        gradients.append(torch.autograd.grad((output * noise(*output.shape, dtype=dtype)).sum(), given))
    assert_close(outputs[0], outputs[1], rtol=1e-5, atol=tolerance)
    for fast, slow in zip(*gradients, strict=True):
        assert_close(fast, slow, rtol=1e-5, atol=10 * tolerance)


@pytest.mark.parametrize(("width", "fused"), [(LONG - 1, 0), (LONG, 1)])
def test_the_fused_kernel_is_used_from_long_on(width: int, fused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    kernel = F.scaled_dot_product_attention

    def spy(*args: Any, attn_mask: Tensor, dropout_p: float) -> Tensor:
        calls.append(1)
        return kernel(*args, attn_mask=attn_mask, dropout_p=dropout_p)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    fast_attention(noise(1, 1, 2, 4), noise(1, 1, width, 4), noise(1, 1, width, 4), mask_of(width), 0.0)
    assert len(calls) == fused


@both_norms
@pytest.mark.parametrize("width", [6, LONG + 4])
def test_the_whole_model_with_reference_attention(norm: Any, width: int) -> None:
    model = model_of(replace(CONFIG, norm=norm))
    src, src_mask, tgt_in = ids(2, width), mask_of(width, 4), ids(2, width, seed=5)
    slow = model.decode(tgt_in, model.encode(src, src_mask, reference_attention), src_mask, reference_attention)
    assert_close(model(src, src_mask, tgt_in), model.logits(slow), rtol=1e-10, atol=1e-10)


def test_every_attention_of_the_model_can_be_recorded() -> None:
    seen: list[Tensor] = []

    def recording(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, dropout: float) -> Tensor:
        seen.append(attention_weights(queries, keys, mask))
        return seen[-1] @ values

    model = model_of(CONFIG)
    src, src_mask, tgt_in = ids(2, 6), mask_of(6, 4), ids(2, 5)
    decoded = model.decode(tgt_in, model.encode(src, src_mask, recording), src_mask, recording)
    assert_close(model.logits(decoded), model(src, src_mask, tgt_in), rtol=1e-12, atol=1e-12)
    assert [tuple(weights.shape[2:]) for weights in seen] == [(6, 6)] * 2 + [(5, 5), (5, 6)] * 2
    for weights in seen:
        assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        sees_source = weights.size(-1) == 6
        hidden = ~src_mask[:, None, None, :] if sees_source else ~causal(5)
        assert (weights.masked_select(hidden) == 0).all()
        assert (weights.masked_select(~hidden) > 0).all()


# ---- against torch's own layers ----------------------------------------------------------------------------------


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


def assert_same(ours: Tensor, theirs: Tensor, given: list[Tensor]) -> None:
    """The same values and the same gradients by `given`, to 1e-5 in float32 and 1e-10 in float64."""
    tolerance = 1e-5 if ours.dtype == torch.float32 else 1e-10
    assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    direction = noise(*ours.shape, dtype=ours.dtype).detach()
    gradients = [torch.autograd.grad((output * direction).sum(), given) for output in (ours, theirs)]
    for mine, other in zip(*gradients, strict=True):
        assert_close(mine, other, rtol=tolerance, atol=10 * tolerance)


both_widths = pytest.mark.parametrize("width", [7, LONG + 4], ids=["short", "long"])
TORCH_LAYER = {"dropout": 0.0, "layer_norm_eps": CONFIG.norm_eps, "batch_first": True}


@both_dtypes
@both_widths
@pytest.mark.parametrize("is_causal", [False, True])
def test_multi_head_attention_is_torchs(is_causal: bool, width: int, dtype: torch.dtype) -> None:
    ours = model_of(CONFIG, dtype).encoder[0].self_attention
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=dtype)
    copy_attention(ours, theirs)
    x, y, src_mask = noise(2, width, 8, dtype=dtype), noise(2, width, 8, dtype=dtype), mask_of(width, 4)
    seen = causal(width) if is_causal else torch.ones(width, width, dtype=torch.bool)
    found = ours(x, ours.keys_values(y), src_mask[:, None, None, :] & seen)
    wanted, _ = theirs(x, y, y, key_padding_mask=~src_mask, attn_mask=~seen, need_weights=False)
    assert_same(found, wanted, [x, y])


@both_dtypes
@both_widths
@both_norms
def test_the_encoder_layer_is_torchs(norm: Any, width: int, dtype: torch.dtype) -> None:
    ours = model_of(replace(CONFIG, norm=norm), dtype).encoder[0]
    theirs = nn.TransformerEncoderLayer(8, 2, 12, norm_first=norm == "pre", dtype=dtype, **TORCH_LAYER)
    copy_layer(ours, theirs)
    x, src_mask = noise(2, width, 8, dtype=dtype), mask_of(width, 4)
    found = ours(x, src_mask[:, None, None, :], fast_attention)
    wanted = theirs(x, src_key_padding_mask=~src_mask)
    assert_same(found[src_mask], wanted[src_mask], [x])


@both_dtypes
@both_widths
@both_norms
def test_the_decoder_layer_is_torchs(norm: Any, width: int, dtype: torch.dtype) -> None:
    ours = model_of(replace(CONFIG, norm=norm), dtype).decoder[0]
    theirs = nn.TransformerDecoderLayer(8, 2, 12, norm_first=norm == "pre", dtype=dtype, **TORCH_LAYER)
    copy_layer(ours, theirs)
    x, memory, src_mask = noise(2, 5, 8, dtype=dtype), noise(2, width, 8, dtype=dtype), mask_of(width, 4)
    cross = ours.cross_attention.keys_values(memory)
    found, _ = ours(x, None, cross, (causal(5), src_mask[:, None, None, :]))
    wanted = theirs(x, memory, tgt_mask=~causal(5), memory_key_padding_mask=~src_mask)
    assert_same(found, wanted, [x, memory])


# ---- against plain loops -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_multi_head_attention_by_loops(bias: bool) -> None:
    attention = model_of(replace(NARROW, attention_bias=bias)).encoder[0].self_attention
    x, memory = noise(1, 4, 8), noise(1, 6, 8)
    mask = torch.ones(4, 6, dtype=torch.bool).tril(2)
    found = attention(x, attention.keys_values(memory), mask)
    wanted = reference.multi_head(x[0].tolist(), memory[0].tolist(), listed(attention), 2, mask.tolist())
    assert_close(found[0], torch.tensor(wanted, dtype=torch.float64), rtol=1e-11, atol=1e-11)


@all_configs
def test_the_encoder_layer_by_loops(config: ModelConfig) -> None:
    layer = model_of(config).encoder[0]
    x, src_mask = noise(2, 6, 8), mask_of(6, 4)
    found = layer(x, src_mask[:, None, None, :], fast_attention)
    for b in range(2):
        mask = [src_mask[b].tolist()] * 6
        wanted = reference.encoder_layer(x[b].tolist(), listed(layer), mask, 2, norm=config.norm, eps=config.norm_eps)
        assert_close(found[b], torch.tensor(wanted, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@all_configs
def test_the_decoder_layer_by_loops(config: ModelConfig) -> None:
    layer = model_of(config).decoder[0]
    x, memory, src_mask = noise(2, 5, 8), noise(2, 6, 8), mask_of(6, 4)
    found, _ = layer(x, None, layer.cross_attention.keys_values(memory), (causal(5), src_mask[:, None, None, :]))
    for b in range(2):
        masks = causal(5).tolist(), [src_mask[b].tolist()] * 5
        wanted = reference.decoder_layer(
            x[b].tolist(), memory[b].tolist(), listed(layer), masks, 2, norm=config.norm, eps=config.norm_eps
        )
        assert_close(found[b], torch.tensor(wanted, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@all_configs
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_whole_model_by_loops(config: ModelConfig, tied: bool) -> None:
    model = model_of(replace(config, tie_src_tgt=tied, tie_output=tied))
    src, src_mask, tgt_in = ids(2, 6), mask_of(6, 4), ids(2, 5, seed=5)
    logits = model(src, src_mask, tgt_in)
    for b, length in enumerate((6, 4)):
        wanted = reference.transformer(
            src[b, :length].tolist(),
            tgt_in[b].tolist(),
            listed(model),
            n_layers=2,
            n_heads=2,
            norm=config.norm,
            eps=config.norm_eps,
        )
        # The table of sinusoids is rounded to float32, hence not 1e-10.
        assert_close(logits[b], torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=1e-6)


# ---- what must not matter ----------------------------------------------------------------------------------------

NOTHING = {torch.float32: 1e-6, torch.float64: 1e-14}  # of the largest value: what rounding may do


def assert_unchanged(found: Tensor, plain: Tensor) -> None:
    assert_close(found, plain, rtol=0, atol=NOTHING[plain.dtype] * plain.abs().max().item())


@both_dtypes
@both_norms
@pytest.mark.parametrize("width", [8, LONG + 4], ids=["short", "long"])
def test_the_future_does_not_change_the_past(width: int, norm: Any, dtype: torch.dtype) -> None:
    model = model_of(replace(CONFIG, norm=norm), dtype)
    src, src_mask, tgt_in = ids(2, 6), mask_of(6, 4), ids(2, width, seed=5)
    plain = model(src, src_mask, tgt_in)
    for t in (1, 5, width - 1):
        other = tgt_in.clone()
        other[:, t:] = (other[:, t:] + 1) % 13
        found = model(src, src_mask, other)
        assert_unchanged(found[:, :t], plain[:, :t])
        assert ((found - plain)[:, t:].abs().amax(-1) > 1e-3).all()


@both_dtypes
@both_norms
@pytest.mark.parametrize("width", [8, LONG + 4], ids=["short", "long"])
def test_ids_under_the_mask_do_not_matter(width: int, norm: Any, dtype: torch.dtype) -> None:
    model = model_of(replace(CONFIG, norm=norm), dtype)
    src, src_mask, tgt_in = ids(3, width), mask_of(width, 3, 1), ids(3, 5, seed=5)
    memories = [model.encode(x, src_mask) for x in (torch.where(src_mask, src, (src + 1) % 13), src)]
    assert_unchanged(memories[0][src_mask], memories[1][src_mask])
    assert_unchanged(*(model.decode(tgt_in, memory, src_mask) for memory in memories))


def test_every_token_that_is_not_masked_matters_to_every_position() -> None:
    model = model_of(CONFIG)
    src, src_mask, tgt_in = ids(1, 6), mask_of(6), ids(1, 5, seed=5)
    plain = model(src, src_mask, tgt_in)
    for s in range(6):
        other = src.clone()
        other[0, s] = (other[0, s] + 1) % 13
        assert ((model(other, src_mask, tgt_in) - plain).abs().amax(-1) > 1e-3).all()


# LONG more columns send the padded sentence through the other way of attention.
@both_dtypes
@both_norms
@pytest.mark.parametrize("more", [1, 9, LONG])
def test_columns_of_padding_do_not_matter(more: int, norm: Any, dtype: torch.dtype) -> None:
    model = model_of(replace(CONFIG, norm=norm), dtype)
    src, src_mask, tgt_in = ids(2, 6), mask_of(6, 4), ids(2, 5, seed=5)
    plain = model(src, src_mask, tgt_in)
    assert_unchanged(model(F.pad(src, (0, more)), F.pad(src_mask, (0, more)), tgt_in), plain)
    assert_unchanged(model(src, src_mask, F.pad(tgt_in, (0, more)))[:, :5], plain)


@both_dtypes
@both_norms
def test_a_sentence_does_not_depend_on_its_batch(norm: Any, dtype: torch.dtype) -> None:
    model = model_of(replace(CONFIG, norm=norm), dtype)
    src, src_mask, tgt_in = ids(3, 6), mask_of(3, 6, 1), ids(3, 5, seed=5)
    together = model(src, src_mask, tgt_in)
    for b, length in enumerate((3, 6, 1)):
        alone = model(src[b : b + 1, :length], src_mask[b : b + 1, :length], tgt_in[b : b + 1])
        assert_unchanged(alone[0], together[b])


@both_dtypes
@both_norms
@pytest.mark.parametrize("width", [5, LONG + 4], ids=["short", "long"])
def test_a_row_that_is_all_padding_is_harmless(width: int, norm: Any, dtype: torch.dtype) -> None:
    model = model_of(replace(CONFIG, norm=norm), dtype)
    src, src_mask, tgt_in = ids(2, width), mask_of(width, 0), ids(2, 4, seed=5)
    logits = model(src, src_mask, tgt_in)
    assert logits.isfinite().all()
    assert_unchanged(model(src[:1], src_mask[:1], tgt_in[:1])[0], logits[0])
    logits.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


# ---- decoding step by step ---------------------------------------------------------------------------------------

CACHED = {
    "post": CONFIG,
    "pre": replace(CONFIG, norm="pre"),
    "narrow": NARROW,
    "learned": replace(CONFIG, positions="learned", max_positions=7),
    "untied": replace(CONFIG, tie_src_tgt=False, tie_output=False),
}


@pytest.mark.parametrize("config", CACHED.values(), ids=CACHED.keys())
def test_a_step_with_the_cache_is_decoding_the_prefix(config: ModelConfig) -> None:
    model = model_of(config)
    src, src_mask, tgt_in = ids(3, 6), mask_of(6, 4, 1), ids(3, 7, seed=5)
    memory = model.encode(src, src_mask)
    cache = model.start(memory, src_mask)
    for t in range(7):
        assert cache.length == t
        found, cache = model.decode_step(tgt_in[:, t], cache)
        wanted = model.logits(model.decode(tgt_in[:, : t + 1], memory, src_mask)[:, -1])
        assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_steps_past_long() -> None:
    model = model_of(CONFIG)
    src_mask, tgt_in = mask_of(LONG + 4), ids(1, LONG + 3, seed=5)
    memory = model.encode(ids(1, LONG + 4), src_mask)
    full = model.logits(model.decode(tgt_in, memory, src_mask))
    cache = model.start(memory, src_mask)
    for t in range(tgt_in.size(1)):
        found, cache = model.decode_step(tgt_in[:, t], cache)
        if t % 50 == 0 or t > LONG - 3:
            assert_close(found, full[:, t], rtol=1e-9, atol=1e-9)


def test_a_step_leaves_its_cache_as_it_was() -> None:
    model = model_of(CONFIG)
    src_mask = mask_of(6, 4)
    _, cache = model.decode_step(ids(2), model.start(model.encode(ids(2, 6), src_mask), src_mask))
    first, _ = model.decode_step(ids(2, seed=6), cache)
    model.decode_step(ids(2, seed=7), cache)
    again, _ = model.decode_step(ids(2, seed=6), cache)
    assert cache.length == 1
    assert torch.equal(first, again)


@both_norms
def test_beams_that_branch_swap_and_end(norm: Any) -> None:
    """Three sentences, two rows each; then the rows change places, and the second sentence is done."""
    model = model_of(replace(NARROW, norm=norm))
    src, src_mask = ids(3, 6), mask_of(6, 4, 5)
    memory = model.encode(src, src_mask)
    of_row, prefixes = [0, 1, 2], [[], [], []]  # the sentence and the tokens of every row
    cache = model.start(memory, src_mask)

    def step(cache: Cache) -> Cache:
        new = ids(len(of_row), seed=len(prefixes[0]) + 20)
        logits, cache = model.decode_step(new, cache)
        for row, token in enumerate(new.tolist()):
            prefixes[row] = [*prefixes[row], token]
            b = slice(of_row[row], of_row[row] + 1)
            wanted = model.decode(torch.tensor([prefixes[row]]), memory[b], src_mask[b])
            assert_close(logits[row], model.logits(wanted[0, -1]), rtol=1e-10, atol=1e-10)
        return cache

    def select(cache: Cache, rows: list[int], sentences: list[int]) -> Cache:
        of_row[:], prefixes[:] = [of_row[row] for row in rows], [prefixes[row] for row in rows]
        return cache.select(torch.tensor(rows), torch.tensor(sentences))

    cache = step(cache)
    branched = select(cache, [0, 0, 1, 1, 2, 2], [0, 1, 2])
    assert branched.cross is cache.cross  # the rows of a sentence share what is known of it; nothing is copied
    cache = step(step(branched))
    cache = step(select(cache, [1, 0, 2, 2, 5, 4], [0, 1, 2]))
    cache = select(cache, [0, 0, 5, 4], [0, 2])
    assert len(cache.cross[0][0]) == len(cache.src_mask) == 2
    cache = step(step(cache))
    step(select(cache, [3, 2], [1]))


def test_beams_may_branch_before_the_first_token() -> None:
    model = model_of(CONFIG)
    src_mask = mask_of(6, 4)
    cache = model.start(model.encode(ids(2, 6), src_mask), src_mask)
    once, _ = model.decode_step(torch.tensor([1, 1]), cache)
    twice, _ = model.decode_step(
        torch.tensor([1, 1, 1, 1]), cache.select(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1]))
    )
    assert_close(twice, once.repeat_interleave(2, dim=0))


# ---- positions ---------------------------------------------------------------------------------------------------

LAYOUTS: tuple[Positions, ...] = ("interleaved", "halves", "tensor2tensor")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d_model", [4, 10, 512])
def test_every_layout_is_its_formula_rounded_once(layout: Positions, d_model: int) -> None:
    found = sinusoids(300, d_model, layout)
    some = [0, 1, 2, 255, 256, 299]
    wanted = torch.tensor([reference.position(pos, d_model, layout) for pos in some], dtype=torch.float64)
    assert found.shape == (300, d_model)
    assert_close(found[some], wanted.float(), rtol=1.2e-7, atol=1e-12)


def test_worked_numbers_of_the_table() -> None:
    wanted = [[0.0, 1.0, 0.0, 1.0], [0.841, 0.540, 0.010, 1.000], [0.909, -0.416, 0.020, 1.000]]
    assert_close(sinusoids(3, 4), torch.tensor(wanted), atol=5e-4, rtol=0)


def test_halves_are_the_interleaved_columns_in_another_order() -> None:
    interleaved = sinusoids(20, 10)
    assert torch.equal(sinusoids(20, 10, "halves"), torch.cat([interleaved[:, ::2], interleaved[:, 1::2]], dim=1))
    assert not torch.equal(sinusoids(20, 10, "tensor2tensor"), sinusoids(20, 10, "halves"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sinusoids_have_no_limit(layout: Positions) -> None:
    positions = Transformer(replace(CONFIG, positions=layout)).positions
    first = positions(0, 4).clone()
    for end in (256, 257, 700, 5000):
        assert_close(positions(end - 3, end), sinusoids(end, 8, layout)[-3:], rtol=0, atol=0)
    assert torch.equal(positions(0, 4), first)


def test_sinusoids_are_neither_trained_nor_stored() -> None:
    model = Transformer(CONFIG)
    names = {name for name, _ in model.named_parameters()} | set(model.state_dict())
    assert not any("position" in name for name in names)


def test_a_table_that_grew_during_inference_serves_training() -> None:
    model = Transformer(CONFIG)
    src, src_mask = ids(1, 300), mask_of(300)
    with torch.inference_mode():
        model.encode(src, src_mask)
    copy.deepcopy(model).encode(src, src_mask).sum().backward()
    model.encode(src, src_mask).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_table_that_grows_keeps_its_dtype(dtype: torch.dtype) -> None:
    model = model_of(CONFIG, dtype)
    assert model.encode(ids(1, 300), mask_of(300)).dtype == dtype


def test_learned_positions_end_with_a_clear_error() -> None:
    model = model_of(replace(CONFIG, positions="learned", max_positions=9))
    assert isinstance(model.positions.table, nn.Parameter)
    assert torch.equal(model.positions(2, 9), model.positions.table[2:9])
    src_mask = mask_of(9)
    cache = model.start(model.encode(ids(1, 9), src_mask), src_mask)
    with pytest.raises(UserError, match=r"sequence of 10 tokens.*learned positions for 9.*model\.max_positions"):
        model.encode(ids(1, 10), mask_of(10))
    for _ in range(9):
        _, cache = model.decode_step(ids(1), cache)
    with pytest.raises(UserError, match="sequence of 10 tokens"):
        model.decode_step(ids(1), cache)


# ---- ties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tie_src_tgt", "tie_output", "matrices"), [(True, True, 1), (True, False, 2), (False, True, 2), (False, False, 3)]
)
def test_each_tie_is_optional(tie_src_tgt: bool, tie_output: bool, matrices: int) -> None:
    model = Transformer(replace(CONFIG, tie_src_tgt=tie_src_tgt, tie_output=tie_output))
    src, tgt, output = model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight
    assert (tgt is src) == tie_src_tgt
    assert (output is tgt) == tie_output
    assert (output is src) == (tie_src_tgt and tie_output)
    names = [name for name, weight in model.named_parameters() if weight.shape == (13, 8)]
    assert len(names) == matrices
    assert model.output.bias is None


def test_every_parameter_has_one_name_and_a_gradient() -> None:
    model = Transformer(replace(NARROW, norm="pre", tie_src_tgt=False, tie_output=False))
    parameters = list(model.named_parameters(remove_duplicate=False))
    assert len({name for name, _ in parameters}) == len({id(weight) for _, weight in parameters}) == len(parameters)
    model(ids(2, 6), mask_of(6, 4), ids(2, 5)).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for name, weight in parameters if "w_k.bias" not in name)


def test_the_tied_matrix_is_learned_from_all_three_places() -> None:
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


# ---- initialisation ----------------------------------------------------------------------------------------------

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
def test_matrices_begin_glorot_uniform(kind: str) -> None:
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


def test_fused_projections_of_the_base_model_begin_smaller() -> None:
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
def test_tables_begin_normal(config: ModelConfig, name: str) -> None:
    torch.manual_seed(1)
    table = dict(Transformer(config).named_parameters())[name]
    # 38,400 normal values: 2 % of the standard deviation is 5.5 sigma, and some lie beyond 3.5 of it.
    assert table.std().item() == pytest.approx(64**-0.5, rel=0.02)
    assert abs(table.mean().item()) < 0.03 * 64**-0.5
    assert table.abs().max() > 3.5 * 64**-0.5


def test_biases_begin_at_zero_and_gains_at_one() -> None:
    model = Transformer(replace(CONFIG, norm="pre"))
    vectors = {name: weight for name, weight in model.named_parameters() if weight.dim() == 1}
    gains = {name for name in vectors if "norm" in name and name.endswith("weight")}
    assert len(gains) == 2 * 2 + 2 * 3 + 2
    for name, vector in vectors.items():
        assert (vector == (1.0 if name in gains else 0.0)).all(), name


def test_the_seed_decides_the_initialisation() -> None:
    first, again, other = ([torch.manual_seed(seed), Transformer(CONFIG)][1] for seed in (1, 1, 2))
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(first.output.weight, other.output.weight)


# ---- dropout, where it is named ----------------------------------------------------------------------------------

DROPOUTS = ("dropout", "attention_dropout", "ffn_dropout")


@pytest.mark.parametrize("name", DROPOUTS)
def test_each_dropout_acts_in_training_only(name: str) -> None:
    model = model_of(replace(CONFIG, **{name: 0.5}))
    given = ids(2, 6), mask_of(6, 4), ids(2, 5)
    plain = model_of(CONFIG)(*given)
    assert torch.equal(model(*given), plain)
    model.train()
    assert not torch.allclose(model(*given), plain)
    assert not torch.equal(model(*given), model(*given))
    assert torch.equal(model.eval()(*given), plain)


def test_no_dropout_is_the_same_in_training() -> None:
    given = ids(2, 6), mask_of(6, 4), ids(2, 5)
    assert torch.equal(model_of(CONFIG).train()(*given), model_of(CONFIG)(*given))


def assert_dropped(found: Tensor, plain: Tensor, probability: float) -> None:
    """Each value of `found` is 0, or that of `plain` over (1 - probability), and about that share is 0."""
    kept = found != 0
    assert_close(found[kept], (plain / (1 - probability)).expand_as(found)[kept], rtol=1e-5, atol=1e-6)
    share = 1 - kept.double().mean().item()
    assert abs(share - probability) < 5 * math.sqrt(probability * (1 - probability) / found.numel())


@pytest.mark.parametrize("attention", [reference_attention, fast_attention], ids=["reference", "fast"])
@pytest.mark.parametrize("width", [16, LONG])
def test_attention_dropout_is_of_the_weights(attention: Attention, width: int) -> None:
    torch.manual_seed(1)
    queries, keys = noise(4, 2, 40, 8, dtype=torch.float32), noise(4, 2, width, 8, dtype=torch.float32)
    mask = torch.ones(40, width, dtype=torch.bool)
    values = torch.eye(width).expand(4, 2, width, width)  # so that what comes out is the weights
    found = attention(queries, keys, values, mask, 0.3)
    assert_dropped(found, attention_weights(queries, keys, mask), 0.3)


def inputs_of(module: nn.Module, run: Callable[[], object]) -> Tensor:
    """The first argument that `module` gets during `run`."""
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    run()
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_dropout_is_of_the_embedding_sums(stack: str) -> None:
    config = replace(CONFIG, d_model=64)
    given = ids(30, 20), mask_of(*[20] * 30), ids(30, 20, seed=5)
    plain, dropped, others = (
        model_of(replace(config, **changed)).train()
        for changed in ({}, {"dropout": 0.2}, {"attention_dropout": 0.2, "ffn_dropout": 0.2})
    )
    sums, found, untouched = (
        inputs_of(model.get_submodule(stack)[0], lambda model=model: model(*given))
        for model in (plain, dropped, others)
    )
    assert_dropped(found, sums, 0.2)
    assert torch.equal(untouched, sums)


@both_norms
def test_dropout_is_of_the_sub_layers_output(norm: Any) -> None:
    torch.manual_seed(1)
    residual = Residual(replace(CONFIG, d_model=64, norm=norm, dropout=0.2)).train()
    output, x = torch.randn(100, 64), torch.randn(100, 64)
    if norm == "post":
        summed = inputs_of(residual.norm, lambda: residual(x, lambda _: output))
    else:
        summed = residual(x, lambda _: output)
    assert_dropped(summed - x, output, 0.2)


def test_ffn_dropout_is_of_the_inner_activations() -> None:
    torch.manual_seed(1)
    network = FeedForward(replace(CONFIG, d_ff=64, dropout=0.9, ffn_dropout=0.2)).train()
    with torch.no_grad():
        network.w_1.bias += 10  # so that ReLU leaves no zero of its own
    x = torch.randn(100, 8)
    assert_dropped(inputs_of(network.w_2, lambda: network(x)), network.w_1(x), 0.2)


# ---- what cannot be built ----------------------------------------------------------------------------------------


def test_an_impossible_model_names_all_that_is_wrong() -> None:
    with pytest.raises(UserError) as caught:
        Transformer(ModelConfig(vocab_size=None, d_model=9, n_heads=2, positions="learned"))
    for words in ("d_model=9 is not a multiple of model.n_heads=2", "needs model.max_positions", "vocab_size is None"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"d_model": 9, "d_k": 3, "d_v": 3}, "even number"),
        ({"max_positions": 5}, "no effect with sinusoids"),
        ({"d_model": 2, "positions": "tensor2tensor"}, "d_model=2: .*tensor2tensor"),
        ({"d_model": 9, "d_k": 3}, "is not a multiple"),
    ],
    ids=str,
)
def test_an_impossible_model_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Transformer(replace(CONFIG, **changed))


def test_an_odd_width_is_possible_with_learned_positions_and_given_heads() -> None:
    model = model_of(replace(NARROW, d_model=9, positions="learned", max_positions=6))
    assert model(ids(2, 6), mask_of(6, 4), ids(2, 5)).shape == (2, 5, 13)
