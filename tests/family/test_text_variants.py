"""GPT-3, StarCoder, CodeLlama and PaLM beside models of Hugging Face transformers, and their public sizes."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference, member_of
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import UserError
from transduce.family.attention_configs import PalmConfig
from transduce.family.attention_wrappers import NO_PAST
from transduce.family.configs import DecoderConfig, GPT2Config, LlamaConfig
from transduce.family.decoder_only import DecoderOnly
from transduce.family.gpt2 import GPT2
from transduce.family.hugging_face.folder import read_member, write_member
from transduce.family.hugging_face.gpt2 import CONVERSION
from transduce.family.hugging_face.settings import Settings
from transduce.family.inference.continuation import GREEDY, continue_ids, has_kernels, prepare
from transduce.family.llama import Llama
from transduce.family.palm import PaLM
from transduce.model.transformer import parameter_count

IDS = torch.randint(50, (3, 17), generator=torch.Generator().manual_seed(2))


def built(model: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    with torch.device("meta"):
        return model(config)


def losses(ours: Any, theirs: Any) -> list[Tensor]:
    """Return the losses of next tokens, of ours and of theirs."""
    logits = ours(IDS), theirs(IDS).logits
    return [F.cross_entropy(scores[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()) for scores in logits]


def in_chunks(model: Any) -> Tensor:
    """Return the logits of IDS in steps with a cache."""
    past, states = NO_PAST, []
    for chunk in IDS.split([9, 1, 1, 6], dim=1):
        new, past = model.states(chunk, past)
        states.append(new)
    return model.output(torch.cat(states, dim=1))


# ---- GPT-3 -------------------------------------------------------------------------------------------------------

GPT3 = DecoderConfig(
    vocab_size=50, d_model=24, n_layers=4, n_heads=4, positions="learned", window=4, window_every=2, max_positions=40
)
OF_LAYER = {
    "attn.attention.k_proj": "self_attention.w_k",
    "attn.attention.v_proj": "self_attention.w_v",
    "attn.attention.out_proj": "self_attention.w_o",
    "ln_1": "residuals.0.norm",
    "ln_2": "residuals.1.norm",
    "mlp.c_fc": "feed_forward.w_1",
    "mlp.c_proj": "feed_forward.w_2",
}


def gpt_neo() -> Any:
    """Return a GPT-Neo, which has layers of GPT-3, with a window of 5 tokens in every second one."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    config = transformers.GPTNeoConfig(
        vocab_size=50,
        hidden_size=24,
        num_layers=4,
        num_heads=4,
        max_position_embeddings=40,
        window_size=5,
        attention_types=[[["global", "local"], 2]],
    )
    return disturb(transformers.GPTNeoForCausalLM(config))


def gpt_neo_tensors(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return our names of their tensors. GPT-Neo does not divide scores by sqrt(d_k): our queries make up for it."""
    top = {"wte.weight": "embedding.weight", "wpe.weight": "positions.table.weight"}
    top |= {"ln_f.weight": "norm.weight", "ln_f.bias": "norm.bias"}
    ours = {name: theirs[f"transformer.{their_name}"] for their_name, name in top.items()}
    for i in range(4):
        scale = math.sqrt(6)
        ours[f"layers.{i}.self_attention.w_q.weight"] = (
            theirs[f"transformer.h.{i}.attn.attention.q_proj.weight"] * scale
        )
        for their_name, name in OF_LAYER.items():
            for end in ("weight", "bias"):
                if (key := f"transformer.h.{i}.{their_name}.{end}") in theirs:
                    ours[f"layers.{i}.{name}.{end}"] = theirs[key]
    return ours


def test_gpt3_has_the_logits_and_gradients_of_gpt_neo() -> None:
    theirs = gpt_neo()
    ours: Any = DecoderOnly(GPT3).eval()
    missing, unexpected = ours.load_state_dict(gpt_neo_tensors(theirs.state_dict()), strict=False)
    assert not unexpected and {name.rpartition(".")[2] for name in missing} == {"bias", "weight"}
    for name in missing:  # biases of queries, keys and values, which GPT-Neo does not have; the tied output
        assert name == "output.weight" or ours.get_parameter(name).detach().zero_().eq(0).all()
    assert difference(ours(IDS), theirs(IDS).logits) < TOLERANCE
    assert difference(in_chunks(ours), theirs(IDS).logits) < TOLERANCE
    for loss in losses(ours, theirs):
        loss.backward()
    expected = gpt_neo_tensors({name: parameter.grad for name, parameter in theirs.named_parameters()})
    for name, gradient in expected.items():
        factor = 1 / 6 if name.endswith("w_q.weight") else 1  # the scale, once for the weight and once for its gradient
        assert difference(ours.get_parameter(name).grad, gradient * factor) < TOLERANCE, name


def test_every_second_layer_sees_all() -> None:
    """A token beyond the window of one layer still changes the output, but not where all layers have the window."""
    torch.manual_seed(1)
    reach = {}
    for every in (1, 2):
        model: Any = disturb(DecoderOnly(replace(GPT3, n_layers=2, window_every=every)))
        changed = IDS.clone()
        changed[:, 0] = (changed[:, 0] + 1) % 50
        reach[every] = (model(IDS) - model(changed)).abs().amax(dim=(0, 2)) > 1e-7
    assert not reach[1][9:].any() and reach[2].all()


def test_window_every_needs_a_window() -> None:
    assert replace(GPT3, window=None).problems() == [
        "model.window_every=2: expected 1 without a window; set model.window"
    ]
    assert replace(GPT3, window_every=0).problems() == ["model.window_every=0: expected 1 to 10,000"]


@pytest.mark.parametrize(
    ("d_model", "n_layers", "n_heads", "count"),
    [
        (768, 12, 12, 125_226_240),
        (1_024, 24, 16, 355_871_744),
        (1_536, 24, 16, 760_300_032),
        (2_048, 24, 16, 1_315_723_264),  # 24 heads in the paper's table, which do not divide 2,048
        (2_560, 32, 32, 2_651_553_280),
        (4_096, 32, 32, 6_658_404_352),
        (5_120, 40, 40, 12_853_386_240),  # 5,140 in the paper's table, which is no multiple of 40 heads of 128
        (12_288, 96, 96, 174_604_259_328),
    ],
)
def test_gpt3_has_the_sizes_of_table_2_1(d_model: int, n_layers: int, n_heads: int, count: int) -> None:
    sizes = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "max_positions": 2_048}
    config = DecoderConfig(vocab_size=50_257, positions="learned", window=128, window_every=2, **sizes)
    assert parameter_count(built(DecoderOnly, config)) == count
    assert count == (50_257 + 2_048 + 2) * d_model + n_layers * (12 * d_model**2 + 13 * d_model)


# ---- StarCoder ---------------------------------------------------------------------------------------------------

SIZES = {"n_embd": 24, "n_layer": 3, "n_head": 4, "vocab_size": 50, "n_positions": 40, "bos_token_id": 0}


@pytest.fixture(scope="module", params=[None, 60])
def starcoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return a folder that transformers has written, and its model."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    config = transformers.GPTBigCodeConfig(**SIZES, n_inner=request.param, eos_token_id=0)
    theirs = transformers.GPTBigCodeForCausalLM(config)
    folder = tmp_path_factory.mktemp("theirs")
    member_of(disturb(theirs), folder)
    return folder, theirs


def test_starcoder_has_the_logits_and_gradients_of_hugging_face(starcoder: tuple[Path, Any]) -> None:
    folder, theirs = starcoder
    ours: Any = read_member(folder).model
    assert difference(ours(IDS), theirs(IDS).logits) < TOLERANCE
    assert difference(in_chunks(ours), theirs(IDS).logits) < TOLERANCE
    theirs.zero_grad()
    assert gradient_difference(ours, theirs, IDS) < TOLERANCE


def test_starcoder_continues_with_the_ids_of_hugging_face(starcoder: tuple[Path, Any]) -> None:
    folder, theirs = starcoder
    ours: Any = read_member(folder).model
    assert has_kernels(ours)
    for model in (ours, prepare(ours, "fp32")):
        outputs = continue_ids(model, [[5, 7, 9], [1, 2]], [0], replace(GREEDY, max_extra_tokens=15))
        for prompt, output in zip(([5, 7, 9], [1, 2]), outputs, strict=True):
            ids = torch.tensor([prompt])
            settings = {"do_sample": False, "max_new_tokens": 15, "pad_token_id": 0}
            expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :]
            assert output.ids == expected[expected != 0].tolist()


def test_hugging_face_opens_a_starcoder_that_we_write(starcoder: tuple[Path, Any], tmp_path: Path) -> None:
    folder, theirs = starcoder
    write_member(tmp_path / "ours", read_member(folder))
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    assert torch.equal(again(IDS).logits, theirs(IDS).logits)
    expected = theirs.config.to_dict() | {"_name_or_path": str(tmp_path / "ours")}
    values = again.config.to_dict()
    assert {key: values.get(key) for key in expected} == expected


def test_a_cache_of_starcoder_has_one_head(starcoder: tuple[Path, Any]) -> None:
    ours: Any = read_member(starcoder[0]).model
    keys, values = ours.states(IDS)[1].layers[0]
    assert keys.shape == values.shape == (3, 1, 17, 6)


def test_a_big_code_model_with_more_key_heads_is_refused() -> None:
    with pytest.raises(UserError, match="multi_query=False: expected True"):
        CONVERSION.build(Settings(SIZES | {"model_type": "gpt_bigcode", "multi_query": False}, "config.json"))


@pytest.mark.parametrize(
    ("d_model", "n_layers", "n_heads", "more", "count"),
    [
        (6_144, 40, 48, {}, 15_517_456_384),  # StarCoder, and StarCoderBase
        (4_096, 42, 32, {}, 7_327_263_232),  # StarCoderBase-7B
        (2_816, 36, 22, {}, 3_043_311_104),  # StarCoderBase-3B
        (2_048, 24, 16, {}, 1_137_207_296),  # StarCoderBase-1B
        (2_048, 24, 16, {"vocab_size": 49_280, "max_positions": 2_048}, 1_124_886_528),  # SantaCoder
    ],
)
def test_starcoder_has_its_public_sizes(d_model: int, n_layers: int, n_heads: int, more: Any, count: int) -> None:
    sizes = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "multi_query": True}
    config = GPT2Config(**{"vocab_size": 49_152, "max_positions": 8_192, **sizes, **more})
    assert parameter_count(built(GPT2, config)) == count
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    their_sizes = {"n_embd": d_model, "n_layer": n_layers, "n_head": n_heads, "vocab_size": config.vocab_size}
    with torch.device("meta"):
        theirs = transformers.GPTBigCodeForCausalLM(
            transformers.GPTBigCodeConfig(**their_sizes, n_positions=config.max_positions)
        )
    assert parameter_count(theirs) == count


# ---- CodeLlama ---------------------------------------------------------------------------------------------------


def test_code_llama_has_the_logits_and_gradients_of_hugging_face(tmp_path: Path) -> None:
    """A Llama with a larger base of RoPE, which only long texts show."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    rope = {"rope_type": "default", "rope_theta": 1e6}
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=50,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=16_384,
            rope_parameters=rope,
        )
    )
    ours = member_of(disturb(theirs), tmp_path)
    assert ours.rope.theta == 1e6
    long = IDS.repeat(1, 30)
    assert difference(ours(long), theirs(long).logits) < TOLERANCE
    assert gradient_difference(ours, theirs, IDS) < TOLERANCE


@pytest.mark.parametrize(
    ("d_model", "n_layers", "n_heads", "more", "count"),
    [
        (4_096, 32, 32, {"d_ff": 11_008}, 6_738_546_688),
        (5_120, 40, 40, {"d_ff": 13_824}, 13_016_028_160),
        (8_192, 48, 64, {"d_ff": 22_016, "n_kv_heads": 8, "vocab_size": 32_000}, 33_743_970_304),
    ],
)
def test_code_llama_has_its_public_sizes(d_model: int, n_layers: int, n_heads: int, more: Any, count: int) -> None:
    sizes = {"vocab_size": 32_016, "d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "tied": False}
    assert parameter_count(built(Llama, LlamaConfig(**{**sizes, **more}))) == count


# ---- PaLM --------------------------------------------------------------------------------------------------------

PALM = PalmConfig(vocab_size=50, d_model=24, n_layers=3, n_heads=4, d_ff=40)


def cohere() -> Any:
    """Return a Cohere, which has layers of PaLM."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    config = transformers.CohereConfig(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        logit_scale=1.0,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    return disturb(transformers.CohereForCausalLM(config))


def pairs_apart(rows: Tensor) -> Tensor:
    """Return rows (H*K,D) whose pairs are i and i + K/2 of a head, of rows whose pairs are neighbours."""
    heads = rows.unflatten(0, (-1, 6))
    return torch.cat([heads[:, ::2], heads[:, 1::2]], dim=1).flatten(0, 1)


def cohere_tensors(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return our names of their tensors."""
    ours = {"embedding.weight": theirs["model.embed_tokens.weight"], "norm.weight": theirs["model.norm.weight"]}
    for i in range(3):
        layer = f"model.layers.{i}"
        names = {f"self_attn.{x}_proj": f"self_attention.w_{x}" for x in "qkvo"}
        names |= {"mlp.gate_proj": "feed_forward.w_1", "mlp.up_proj": "feed_forward.w_3"}
        names |= {"mlp.down_proj": "feed_forward.w_2", "input_layernorm": "residual.norm"}
        for their_name, name in names.items():
            rows = theirs[f"{layer}.{their_name}.weight"]
            ours[f"layers.{i}.{name}.weight"] = pairs_apart(rows) if name[-1] in "qk" else rows
    return ours


def test_palm_has_the_logits_and_gradients_of_cohere() -> None:
    theirs = cohere()
    ours: Any = PaLM(PALM)
    missing, unexpected = ours.load_state_dict(cohere_tensors(theirs.state_dict()), strict=False)
    assert missing == ["output.weight"] and not unexpected  # which is the embedding
    assert difference(ours(IDS), theirs(IDS).logits) < TOLERANCE
    assert difference(in_chunks(ours), theirs(IDS).logits) < TOLERANCE
    for loss in losses(ours, theirs):
        loss.backward()
    expected = cohere_tensors({name: parameter.grad for name, parameter in theirs.named_parameters()})
    for name, parameter in ours.named_parameters():
        assert difference(parameter.grad, expected[name]) < TOLERANCE, name


def test_palm_is_not_computed_by_the_kernels_of_llama() -> None:
    torch.manual_seed(1)
    palm = PaLM(PALM)
    assert not has_kernels(palm) and prepare(palm, "fp32") is palm
    with pytest.raises(UserError, match="expected fp32 for PaLM"):
        prepare(palm, "int8")


@pytest.mark.parametrize(
    ("d_model", "n_layers", "n_heads", "count"),
    [
        (4_096, 32, 16, 8_632_012_800),  # 8.63 B in the paper's table 1
        (8_192, 64, 32, 62_495_662_080),  # 62.50 B
        (18_432, 118, 48, 540_356_474_880),  # 540.35 B
    ],
)
def test_palm_has_the_sizes_of_table_1(d_model: int, n_layers: int, n_heads: int, count: int) -> None:
    sizes = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_k": 256}
    assert parameter_count(built(PaLM, PalmConfig(vocab_size=256_000, **sizes))) == count


def test_impossible_sizes_of_palm_are_refused() -> None:
    assert replace(PALM, d_k=5).problems() == ["model.d_k=5: expected an even number, because RoPE rotates pairs"]
    assert replace(PALM, n_heads=5).problems()[0].startswith("model.d_model=24: expected a multiple")
    assert replace(PALM, n_heads=5, d_k=6).problems() == []
