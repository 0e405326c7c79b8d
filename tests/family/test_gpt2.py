"""GPT-2 and GPT-1 beside Hugging Face transformers, with the same random weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference, member_of

from transduce.family.attention_wrappers import NO_PAST, Past
from transduce.family.configs import GPT2Config
from transduce.family.gpt2 import GPT2
from transduce.model.transformer import parameter_count

SIZES = {"n_embd": 24, "n_layer": 3, "n_head": 4, "vocab_size": 50, "n_positions": 40}


@pytest.fixture(scope="module", params=["gpt2", "openai-gpt"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    ids: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    if request.param == "gpt2":
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, n_inner=60, **ids))
    else:
        theirs = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**SIZES))
    disturb(theirs)
    folder: Path = tmp_path_factory.mktemp("theirs")
    return member_of(theirs, folder), theirs


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(50, (3, 17), generator=torch.Generator().manual_seed(2))


def test_logits_are_those_of_hugging_face(models: tuple[Any, Any], ids: torch.Tensor) -> None:
    ours, theirs = models
    assert difference(ours(ids), theirs(ids).logits) < TOLERANCE


def test_gradients_are_those_of_hugging_face(models: tuple[Any, Any], ids: torch.Tensor) -> None:
    assert gradient_difference(*models, ids) < TOLERANCE


@pytest.mark.parametrize("chunks", [[1] * 17, [5, 12], [16, 1]])
def test_chunks_after_a_cache_are_the_whole(models: tuple[Any, Any], ids: torch.Tensor, chunks: list[int]) -> None:
    ours, theirs = models
    past, states = NO_PAST, []
    for chunk in ids.split(chunks, dim=1):
        new, past = ours.states(chunk, past)
        states.append(new)
    assert past.length == 17
    assert difference(ours.output(torch.cat(states, dim=1)), theirs(ids).logits) < TOLERANCE


def test_padding_before_a_row_changes_nothing(models: tuple[Any, Any], ids: torch.Tensor) -> None:
    ours, _ = models
    padded = torch.cat([torch.full((3, 4), 7), ids[:, :10]], dim=1)
    padded[0] = torch.cat([ids[0, :10], ids[0, 10:14]])  # the longest row has no padding
    _, past = ours.states(padded, Past(padding=torch.tensor([0, 4, 4])))
    states, past = ours.states(ids[:, 10:13], past)
    assert past.length == 17
    alone, _ = ours.states(ids[1:, :13])
    torch.testing.assert_close(states[1:], alone[:, 10:])


@pytest.mark.parametrize(
    ("d_model", "n_layers", "n_heads", "count"),
    [
        (768, 12, 12, 124_439_808),  # gpt2
        (768, 6, 12, 81_912_576),  # distilgpt2
        (1_024, 24, 16, 354_823_168),  # gpt2-medium
        (1_280, 36, 20, 774_030_080),  # gpt2-large
        (1_600, 48, 25, 1_557_611_200),  # gpt2-xl
    ],
)
def test_public_sizes_have_their_number_of_parameters(d_model: int, n_layers: int, n_heads: int, count: int) -> None:
    with torch.device("meta"):
        model = GPT2(GPT2Config(vocab_size=50_257, d_model=d_model, n_layers=n_layers, n_heads=n_heads))
    assert parameter_count(model) == count
    of_layer = 12 * d_model**2 + 13 * d_model
    assert count == (50_257 + 1_024) * d_model + n_layers * of_layer + 2 * d_model


def test_gpt1_has_its_number_of_parameters() -> None:
    with torch.device("meta"):
        model = GPT2(GPT2Config(vocab_size=40_478, d_model=768, n_layers=12, n_heads=12, max_positions=512), post=True)
    assert parameter_count(model) == 116_534_784


def test_matrices_before_a_residual_start_smaller() -> None:
    torch.manual_seed(1)
    model = GPT2(GPT2Config(vocab_size=500, d_model=64, n_layers=8, n_heads=4))
    deviations = {name: float(parameter.detach().std()) for name, parameter in model.named_parameters()}
    assert deviations["embedding.weight"] == pytest.approx(0.02, rel=0.1)
    assert deviations["layers.3.self_attention.w_q.weight"] == pytest.approx(0.02, rel=0.1)
    assert deviations["layers.3.self_attention.w_o.weight"] == pytest.approx(0.005, rel=0.1)
    assert deviations["layers.3.feed_forward.w_2.weight"] == pytest.approx(0.005, rel=0.1)
