"""RWKV-4: against loops over numbers, and beside Hugging Face transformers with the same random weights."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference, member_of
from support.small_members import tokenizer_json
from support.whole_text import continuation_without_states
from torch import Tensor

import transduce
from transduce.errors import UserError
from transduce.family.configs import RWKVConfig
from transduce.family.hugging_face.folder import Member, write_member
from transduce.family.inference.continuation import GREEDY, continue_ids
from transduce.family.row_states import NO_STATES
from transduce.family.rwkv import RWKV, ChannelMix, Sums, TimeMix, wkv
from transduce.model.transformer import parameter_count

SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3}
PROMPTS = [[5], [7, 3, 9], [1, 2, 3], [30, 8, 8, 2, 41, 6]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    config = transformers.RwkvConfig(**SIZES, intermediate_size=60, use_cache=False)
    theirs = transformers.RwkvForCausalLM(config)
    return member_of(disturb(theirs), tmp_path_factory.mktemp("theirs")), theirs


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(50, (3, 17), generator=torch.Generator().manual_seed(2))


def small_rwkv() -> Any:
    torch.manual_seed(1)
    return disturb(RWKV(RWKVConfig(vocab_size=50, d_model=24, n_layers=2)))


def start(n_rows: int, n_channels: int) -> Sums:
    nothing = torch.zeros(n_rows, n_channels)
    return nothing, nothing, nothing - torch.inf


def test_logits_and_gradients_are_those_of_hugging_face(models: tuple[Any, Any], ids: Tensor) -> None:
    ours, theirs = models
    assert difference(ours(ids), theirs(ids).logits) < TOLERANCE
    assert gradient_difference(ours, theirs, ids) < TOLERANCE


def test_greedy_search_gives_the_ids_of_hugging_face(models: tuple[Any, Any]) -> None:
    ours, theirs = models
    outputs = continue_ids(ours, PROMPTS, [], replace(GREEDY, max_extra_tokens=12))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": 49_999, "pad_token_id": 0}
        expected = theirs.generate(torch.tensor([prompt]), use_cache=True, **options)[0, len(prompt) :]
        assert output.ids == expected.tolist()


def test_it_starts_as_hugging_face_does_but_for_matrices_and_u(tmp_path: Path) -> None:
    """The other vectors: theirs has u = 1, and no matrix of zeros."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    ours, theirs = (
        RWKV(RWKVConfig(vocab_size=50, d_model=24, n_layers=3)),
        member_of(transformers.RwkvForCausalLM(transformers.RwkvConfig(**SIZES)), tmp_path),
    )
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        if parameter.dim() != 2 and not name.endswith(".u"):
            torch.testing.assert_close(parameter, expected[name])


def test_an_average_of_three_tokens() -> None:
    """With w = 1 and equal keys: the last but one counts as much as the last, and the first 1/e as much."""
    v = torch.tensor([3.0, 5.0, 7.0])[None, :, None]
    averages, _ = wkv(torch.zeros(1, 3, 1), v, torch.ones(1), torch.zeros(1), start(1, 1))
    weights = [1 / math.e, 1, 1]
    assert [weight / sum(weights) for weight in weights] == pytest.approx([0.1554, 0.4223, 0.4223], abs=5e-5)
    expected = [3, 4, sum(a * b for a, b in zip(weights, v.flatten().tolist(), strict=True)) / sum(weights)]
    assert averages.flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_averages_are_their_definition(size: float) -> None:
    """Eq. 16 by a loop over texts, positions, channels and earlier positions, in fp64. e^100 overflows in fp32."""
    torch.manual_seed(1)
    k, v, w, u = size * torch.randn(2, 7, 3), torch.randn(2, 7, 3), torch.rand(3), size * torch.randn(3)
    averages, _ = wkv(k, v, w, u, start(2, 3))
    expected = torch.zeros(2, 7, 3)
    for n in range(2):
        for t in range(7):
            for e in range(3):
                weights = [math.exp(float(k[n, i, e] - (t - 1 - i) * w[e])) for i in range(t)]
                weights.append(math.exp(float(u[e] + k[n, t, e])))
                total = sum(weight * float(v[n, i, e]) for i, weight in enumerate(weights))
                expected[n, t, e] = total / sum(weights)
    torch.testing.assert_close(averages, expected, rtol=1e-4, atol=1e-4 if size > 1 else 1e-6)


def test_gradients_of_averages_are_those_without_a_maximum() -> None:
    """The maximum has no gradient: it cancels. The reference has none, in fp64."""
    torch.manual_seed(1)
    k, v, w, u = (torch.randn(*shape, dtype=torch.double) for shape in ((2, 6, 3), (2, 6, 3), (3,), (3,)))
    inputs = k, v, w.abs(), u
    for x in inputs:
        x.requires_grad_()

    def direct(k: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Tensor:
        averages = []
        for t in range(6):
            back = torch.arange(t - 1, -1, -1)[:, None]
            weights = torch.cat([(k[:, :t] - back * w).exp(), (u + k[:, t : t + 1]).exp()], dim=1)
            averages.append((weights * v[:, : t + 1]).sum(1) / weights.sum(1))
        return torch.stack(averages, dim=1)

    factors = torch.randn(2, 6, 3, dtype=torch.double)
    sums = [x.double() for x in start(2, 3)]
    losses = (
        (wkv(k, v, inputs[2], u, (sums[0], sums[1], sums[2]))[0] * factors).sum(),
        (direct(*inputs) * factors).sum(),
    )
    ours, expected = (torch.autograd.grad(loss, inputs) for loss in losses)
    torch.testing.assert_close(ours, expected)


@torch.no_grad()
def test_the_parts_of_a_layer_are_their_definitions() -> None:
    """By loops over texts, positions and channels; the averages are tested above."""
    torch.manual_seed(1)
    time: Any = disturb(TimeMix(6, 1, 3))
    channels: Any = disturb(ChannelMix(6, 10, 1, 3))
    x = torch.randn(2, 5, 6)
    k, v, gated, expected = torch.zeros(2, 5, 6), torch.zeros(2, 5, 6), torch.zeros(2, 5, 6), torch.zeros(2, 5, 6)
    for n in range(2):
        for t in range(5):
            before = x[n, t - 1] if t else torch.zeros(6)

            def mix(mu: Tensor, now: Tensor = x[n, t], before: Tensor = before) -> Tensor:
                return torch.stack([mu[0, 0, e] * now[e] + (1 - mu[0, 0, e]) * before[e] for e in range(6)])

            k[n, t], v[n, t] = time.w_k.weight @ mix(time.mu_k), time.w_v.weight @ mix(time.mu_v)
            gated[n, t] = 1 / (1 + (-(time.w_r.weight @ mix(time.mu_r))).exp())
            inner = [max(float(y), 0.0) ** 2 for y in channels.w_k.weight @ mix(channels.mu_k)]
            gate = 1 / (1 + (-(channels.w_r.weight @ mix(channels.mu_r))).exp())
            expected[n, t] = gate * (channels.w_v.weight @ torch.tensor(inner))
    torch.testing.assert_close(channels(x, None)[0], expected)
    averages, _ = wkv(k, v, time.log_w.exp(), time.u, start(2, 6))
    torch.testing.assert_close(time(x, None)[0], (gated * averages) @ time.w_o.weight.T)


@pytest.mark.parametrize("chunks", [[1] * 17, [5, 12], [16, 1]])
def test_steps_are_the_scan_of_the_whole(ids: Tensor, chunks: list[int]) -> None:
    model, past, states = small_rwkv(), NO_STATES, []
    for chunk in ids.split(chunks, dim=1):
        new, past = model.states(chunk, past)
        states.append(new)
    assert difference(model.output(torch.cat(states, dim=1)), model(ids)) < TOLERANCE


def test_a_state_is_selected_by_rows(ids: Tensor) -> None:
    model, rows = small_rwkv(), torch.tensor([2, 0, 0])
    _, past = model.states(ids[:, :9])
    states, _ = model.states(ids[rows, 9:], past.select(rows))
    assert difference(model.output(states), model(ids[rows])[:, 9:]) < TOLERANCE


def test_a_state_has_five_numbers_of_each_channel(ids: Tensor) -> None:
    model = small_rwkv()
    sizes = {sum(x.numel() for part in model.states(ids[:, :n])[1].parts for x in part) for n in (1, 2, 17)}
    assert sizes == {2 * 3 * 24 * 5}  # layers, rows, channels


@pytest.mark.parametrize(("d_model", "n_layers", "count"), [(768, 12, 169_342_464), (1_024, 24, 430_397_440)])
def test_public_sizes_have_their_number_of_parameters(d_model: int, n_layers: int, count: int) -> None:
    with torch.device("meta"):
        model = RWKV(RWKVConfig(vocab_size=50_277, d_model=d_model, n_layers=n_layers))
    assert parameter_count(model) == count


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_search_with_states_is_one_of_the_whole_text(beam_size: int) -> None:
    model = small_rwkv()
    settings = replace(GREEDY, beam_size=beam_size, max_extra_tokens=10)
    outputs = continue_ids(model, PROMPTS, [11], settings)
    expected = [continuation_without_states(model, prompt, 11, settings) for prompt in PROMPTS]
    assert [output.ids for output in outputs] == expected


def test_a_folder_continues_text_in_fp32(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = disturb(RWKV(RWKVConfig(vocab_size=300, d_model=24, n_layers=2, d_ff=36)))
    write_member(tmp_path / "rwkv", Member(model, {"eos_token_id": 0}, {"tokenizer.json": tokenizer_json()}))
    loaded = transduce.family.load(tmp_path / "rwkv", precision="auto")
    assert loaded.precision == "fp32"
    ids = torch.tensor([loaded.tokenizer.encode("a dog").ids])
    torch.testing.assert_close(loaded.model(ids), model(ids), rtol=0, atol=0)
    assert loaded.continue_("a dog", max_tokens=5, beam_size=2).text
    with pytest.raises(UserError, match="precision='int8': expected fp32 for RWKV; take fp32"):
        transduce.family.load(tmp_path / "rwkv", precision="int8").continue_("a dog")
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    theirs = transformers.RwkvForCausalLM.from_pretrained(tmp_path / "rwkv")
    assert difference(model(ids), theirs(ids).logits) < TOLERANCE


@pytest.mark.parametrize(
    "change",
    [{"attention_hidden_size": 48}, {"layer_norm_epsilon": 1e-6}, {"tie_word_embeddings": True}, {"hidden_size": 0}],
)
def test_a_config_that_it_cannot_have_is_refused(change: dict[str, Any]) -> None:
    from transduce.family.hugging_face.rwkv import build
    from transduce.family.hugging_face.settings import Settings

    values = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2}
    with torch.device("meta"):
        assert build(Settings(values, "config.json")).d_ff == 96
        with pytest.raises(UserError, match=r"config.json: .*expected"):
            build(Settings(values | change, "config.json"))
