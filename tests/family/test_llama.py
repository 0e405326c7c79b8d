"""Llama beside Hugging Face transformers, with the same random weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference, member_of

from transduce.errors import UserError
from transduce.family.attention_wrappers import NO_PAST, Past
from transduce.family.configs import LlamaConfig
from transduce.family.hugging_face.folder import read_member, write_member
from transduce.family.hugging_face.llama import CONVERSION
from transduce.family.hugging_face.settings import Settings
from transduce.family.llama import Llama
from transduce.model.transformer import parameter_count

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "as in Llama 1": {},
    "shared heads": {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "one key head, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "wide heads": {"head_dim": 10, "rms_norm_eps": 1e-3},
    "scaled positions": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 500.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8,
            "beta_fast": 1.0,
            "beta_slow": 0.05,
            "truncate": True,
        }
    },
}


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return a folder that transformers has written, and its model."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **VARIANTS[request.param]))
    path = tmp_path_factory.mktemp("theirs")
    member_of(disturb(theirs), path)
    return path, theirs


@pytest.fixture
def models(folder: tuple[Path, Any]) -> tuple[Any, Any]:
    return read_member(folder[0]).model, folder[1]


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(50, (3, 17), generator=torch.Generator().manual_seed(2))


def test_logits_are_those_of_hugging_face(models: tuple[Any, Any], ids: torch.Tensor) -> None:
    ours, theirs = models
    assert difference(ours(ids), theirs(ids).logits) < TOLERANCE


def test_gradients_are_those_of_hugging_face(models: tuple[Any, Any], ids: torch.Tensor) -> None:
    ours, theirs = models
    theirs.zero_grad()
    assert gradient_difference(ours, theirs, ids) < TOLERANCE


@pytest.mark.parametrize("chunks", [[1] * 17, [5, 12]])
def test_chunks_after_a_cache_are_the_whole(models: tuple[Any, Any], ids: torch.Tensor, chunks: list[int]) -> None:
    ours, theirs = models
    past, states = NO_PAST, []
    for chunk in ids.split(chunks, dim=1):
        new, past = ours.states(chunk, past)
        states.append(new)
    assert difference(ours.output(torch.cat(states, dim=1)), theirs(ids).logits) < TOLERANCE


def test_padding_before_a_row_changes_nothing(models: tuple[Any, Any], ids: torch.Tensor) -> None:
    ours, _ = models
    padded = torch.cat([torch.full((3, 4), 7), ids[:, :10]], dim=1)
    _, past = ours.states(padded, Past(padding=torch.tensor([0, 4, 4])))
    states, _ = ours.states(ids[:, 10:13], past)
    alone, _ = ours.states(ids[1:, :13])
    torch.testing.assert_close(states[1:], alone[:, 10:], rtol=1e-4, atol=1e-5)


def test_hugging_face_opens_what_we_write(folder: tuple[Path, Any], tmp_path: Path, ids: torch.Tensor) -> None:
    path, theirs = folder
    write_member(tmp_path / "ours", read_member(path))
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    assert again.config.rope_parameters == theirs.config.rope_parameters
    assert torch.equal(again(ids).logits, theirs(ids).logits)


def test_an_older_file_is_read(folder: tuple[Path, Any], tmp_path: Path, ids: torch.Tensor) -> None:
    """rope_theta beside a rope_scaling, which may be null, as transformers 4 writes it."""
    path, theirs = folder
    shutil.copytree(path, tmp_path / "old")
    config = json.loads((path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": None if rope["rope_type"] == "default" else rope}
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    ours: Any = read_member(tmp_path / "old").model
    assert difference(ours(ids), theirs(ids).logits) < TOLERANCE


@pytest.mark.parametrize("chunks", [[29], [5, 4, 20], [10, *[1] * 19]])
def test_a_text_beyond_the_positions_has_the_dynamic_angles_of_hugging_face(tmp_path: Path, chunks: list[int]) -> None:
    """Also in chunks after a cache, whose keys keep the angles of a shorter text."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    rope = {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 3.0}
    values = SIZES | {"max_position_embeddings": 8, "rope_parameters": rope}
    theirs = disturb(transformers.LlamaForCausalLM(transformers.LlamaConfig(**values)))
    ours, long = member_of(theirs, tmp_path), torch.randint(50, (2, 29))
    past, cache = NO_PAST, None
    for chunk in long.split(chunks, dim=1):
        states, past = ours.states(chunk, past)
        expected = theirs(chunk, past_key_values=cache, use_cache=True)
        cache = expected.past_key_values
        assert difference(ours.output(states), expected.logits) < TOLERANCE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu': expected 'silu'"),
        ({"attention_bias": True}, "attention_bias=True: expected False"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3: expected a divisor of num_attention_heads=4"),
        ({"head_dim": 5}, "head_dim=5: expected an even number"),
        ({"num_attention_heads": 5}, "hidden_size=24: expected a multiple of num_attention_heads=5"),
        ({"num_attention_heads": 8, "hidden_size": 24}, r"head_dim=\(absent\): expected an even number"),
        (
            {"rope_scaling": {"type": "longrope", "factor": 8.0}},
            "rope_scaling=.*expected rope_type 'default', 'linear'",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 8.0}, "head_dim": 2}, "head_dim=2: expected at least 4 values"),
        ({"rope_parameters": [1]}, "rope_parameters=.*expected an object"),
        ({"rope_theta": "10000"}, "rope_theta='10000': expected a number"),
        ({"rope_theta": 0}, "rope_theta=0: expected a number above 0"),
    ],
)
def test_values_that_are_not_supported_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CONVERSION.build(Settings(SIZES | changes, "config.json"))


@pytest.mark.parametrize(
    ("sizes", "options", "count"),
    [
        ((32_000, 4_096, 32, 32), {"d_ff": 11_008}, 6_738_415_616),  # Llama 7B
        ((32_000, 2_048, 22, 32), {"d_ff": 5_632, "n_kv_heads": 4}, 1_100_048_384),  # TinyLlama
        ((49_152, 576, 30, 9), {"d_ff": 1_536, "n_kv_heads": 3, "tied": True}, 134_515_008),  # SmolLM2-135M
        ((128_256, 4_096, 32, 32), {"d_ff": 14_336, "n_kv_heads": 8}, 8_030_261_248),  # Llama 3 8B
    ],
)
def test_public_sizes_have_their_number_of_parameters(sizes: Any, options: Any, count: int) -> None:
    with torch.device("meta"):
        names = ("vocab_size", "d_model", "n_layers", "n_heads")
        model = Llama(LlamaConfig(**dict(zip(names, sizes, strict=True)), **{"tied": False, **options}))
    assert parameter_count(model) == count
