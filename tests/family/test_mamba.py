"""Mamba: against loops over numbers, and beside Hugging Face transformers with the same random weights."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference, member_of
from support.small_members import tokenizer_json
from support.whole_text import continuation_without_states
from torch.nn import functional as F

import transduce
from transduce.errors import UserError
from transduce.family.configs import MambaConfig
from transduce.family.hugging_face.folder import Member, write_member
from transduce.family.inference.continuation import GREEDY, continue_ids
from transduce.family.mamba import Mamba, SelectiveMixer, selective_scan
from transduce.family.row_states import NO_STATES
from transduce.model.transformer import parameter_count

SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "state_size": 5, "time_step_rank": 4}
END = 35  # an id at which some texts end
PROMPTS = [[5], [7, 3, 9], [1, 2, 3], [30, 8, 8, 2, 41, 6]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    theirs = transformers.MambaForCausalLM(transformers.MambaConfig(**SIZES, conv_kernel=3))
    return member_of(disturb(theirs), tmp_path_factory.mktemp("theirs")), theirs


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(50, (3, 17), generator=torch.Generator().manual_seed(2))


def small_mamba() -> Any:
    torch.manual_seed(1)
    return disturb(Mamba(MambaConfig(vocab_size=50, d_model=24, n_layers=2, d_state=5)))


def test_logits_and_gradients_are_those_of_hugging_face(models: tuple[Any, Any], ids: torch.Tensor) -> None:
    ours, theirs = models
    assert difference(ours(ids), theirs(ids).logits) < TOLERANCE
    assert gradient_difference(ours, theirs, ids) < TOLERANCE


def test_greedy_search_gives_the_ids_of_hugging_face(models: tuple[Any, Any]) -> None:
    ours, theirs = models
    outputs = continue_ids(ours, PROMPTS, [], replace(GREEDY, max_extra_tokens=12))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = torch.tensor([prompt])
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": 49_999, "pad_token_id": 0}
        expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :]
        assert output.ids == expected.tolist()


def test_beam_search_gives_the_ids_of_hugging_face(models: tuple[Any, Any]) -> None:
    ours, theirs = models
    prompts = torch.tensor([[7, 3, 9], [1, 2, 3], [30, 8, 41]])
    options: dict[str, Any] = {"num_beams": 3, "length_penalty": 0.0, "do_sample": False, "max_new_tokens": 8}
    expected = theirs.generate(
        prompts, attention_mask=torch.ones_like(prompts), eos_token_id=END, pad_token_id=END, **options
    )
    outputs = continue_ids(ours, prompts.tolist(), [END], replace(GREEDY, beam_size=3, max_extra_tokens=8))
    assert {one.finished for one in outputs} == {True, False}
    for output, ids in zip(outputs, expected[:, 3:].tolist(), strict=True):
        assert output.ids == (ids[: ids.index(END)] if output.finished else ids)


def test_three_steps_of_the_scan() -> None:
    """A state of one number that halves in each step, as exp(-ln 2) = 1/2: y = ln 2 (1, 3/2, 7/4)."""
    ones = torch.ones(1, 3, 1)
    y, state = selective_scan(ones, math.log(2) * ones, -torch.ones(1, 1), ones, ones, torch.zeros(1, 1, 1))
    torch.testing.assert_close(y.flatten(), math.log(2) * torch.tensor([1, 1.5, 1.75]))
    assert y.flatten().tolist() == pytest.approx([0.6931, 1.0397, 1.2130], abs=5e-5)
    assert state.item() == y[0, 2].item()


@torch.no_grad()
def test_the_mixer_is_its_definition() -> None:
    """By a loop over texts, positions, channels and numbers of the state, in fp64."""
    torch.manual_seed(1)
    mixer: Any = disturb(SelectiveMixer(6, 10, 3, 2, 4)).double()
    x = torch.randn(2, 5, 6, dtype=torch.double)
    expected = torch.zeros(2, 5, 6, dtype=torch.double)
    for n in range(2):
        h = [[0.0] * 3 for _ in range(10)]
        for t in range(5):
            u, y = torch.zeros(10, dtype=torch.double), torch.zeros(10, dtype=torch.double)
            for e in range(10):
                inputs = [mixer.w_in(x[n, t - 3 + k])[e] if t - 3 + k >= 0 else 0.0 for k in range(4)]
                total = sum(mixer.conv.weight[e, 0, k] * inputs[k] for k in range(4)) + mixer.conv.bias[e]
                u[e] = F.silu(total)
            dt, b, c = mixer.w_x(u).split([2, 3, 3])
            dt = F.softplus(mixer.w_dt(dt))
            for e in range(10):
                for s in range(3):
                    a = -math.exp(mixer.log_a[e, s])
                    h[e][s] = math.exp(dt[e] * a) * h[e][s] + float(dt[e] * b[s] * u[e])
                y[e] = sum(float(c[s]) * h[e][s] for s in range(3)) + mixer.d[e] * u[e]
            expected[n, t] = mixer.w_out(y * F.silu(mixer.w_in(x[n, t])[10:]))
    torch.testing.assert_close(mixer(x, None)[0], expected)


@pytest.mark.parametrize("chunks", [[1] * 17, [5, 12], [16, 1]])
def test_steps_are_the_scan_of_the_whole(ids: torch.Tensor, chunks: list[int]) -> None:
    model, past, states = small_mamba(), NO_STATES, []
    for chunk in ids.split(chunks, dim=1):
        new, past = model.states(chunk, past)
        states.append(new)
    assert difference(model.output(torch.cat(states, dim=1)), model(ids)) < TOLERANCE


def test_a_state_is_selected_by_rows(ids: torch.Tensor) -> None:
    model, rows = small_mamba(), torch.tensor([2, 0, 0])
    _, past = model.states(ids[:, :9])
    states, _ = model.states(ids[rows, 9:], past.select(rows))
    assert difference(model.output(states), model(ids[rows])[:, 9:]) < TOLERANCE


def test_a_state_does_not_grow(ids: torch.Tensor) -> None:
    model = small_mamba()
    sizes = {sum(x.numel() for part in model.states(ids[:, :n])[1].parts for x in part) for n in (1, 2, 17)}
    assert sizes == {2 * 3 * 48 * (3 + 5)}  # layers, rows, channels, numbers of each


def test_a_channel_starts_with_a_step_from_a_thousandth_to_a_tenth() -> None:
    torch.manual_seed(1)
    biases = [
        bias
        for name, bias in Mamba(MambaConfig(vocab_size=50, d_model=128, n_layers=4)).named_parameters()
        if name.endswith("w_dt.bias")
    ]
    steps = F.softplus(torch.cat(tuple(biases))).detach()
    assert 0.00099 < steps.min() < 0.0011 and 0.09 < steps.max() < 0.101
    assert steps.log().mean().item() == pytest.approx(math.log(0.01), abs=0.1)


@pytest.mark.parametrize(("d_model", "n_layers", "count"), [(768, 24, 129_135_360), (1_024, 48, 371_516_416)])
def test_public_sizes_have_their_number_of_parameters(d_model: int, n_layers: int, count: int) -> None:
    with torch.device("meta"):
        model = Mamba(MambaConfig(vocab_size=50_280, d_model=d_model, n_layers=n_layers))
    assert parameter_count(model) == count


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_search_with_states_is_one_of_the_whole_text(beam_size: int) -> None:
    model = small_mamba()
    settings = replace(GREEDY, beam_size=beam_size, max_extra_tokens=10)
    outputs = continue_ids(model, PROMPTS, [11], settings)
    expected = [continuation_without_states(model, prompt, 11, settings) for prompt in PROMPTS]
    assert [output.ids for output in outputs] == expected


def test_a_folder_continues_text_in_fp32(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = disturb(Mamba(MambaConfig(vocab_size=300, d_model=24, n_layers=2, d_state=5), d_inner=36))
    write_member(tmp_path / "mamba", Member(model, {"eos_token_id": 0}, {"tokenizer.json": tokenizer_json()}))
    loaded = transduce.family.load(tmp_path / "mamba", precision="auto")
    assert loaded.precision == "fp32"
    ids = torch.tensor([loaded.tokenizer.encode("a dog").ids])
    torch.testing.assert_close(loaded.model(ids), model(ids), rtol=0, atol=0)
    assert loaded.continue_("a dog", max_tokens=5, beam_size=2).text
    with pytest.raises(UserError, match="precision='int8': expected fp32 for Mamba; take fp32"):
        transduce.family.load(tmp_path / "mamba", precision="int8").continue_("a dog")


@pytest.mark.parametrize("change", [{"use_bias": True}, {"hidden_act": "gelu"}, {"expand": 0}, {"state_size": 0}])
def test_a_config_that_it_cannot_have_is_refused(change: dict[str, Any]) -> None:
    from transduce.family.hugging_face.mamba import build
    from transduce.family.hugging_face.settings import Settings

    values = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2}
    with torch.device("meta"):
        assert build(Settings(values, "config.json")).d_inner == 48
        with pytest.raises(UserError, match=r"config.json: .*expected"):
            build(Settings(values | change, "config.json"))
