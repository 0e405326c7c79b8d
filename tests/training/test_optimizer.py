"""The schedule of equation 3, and Adam with the paper's constants."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from torch import nn

from transduce.config.schema import ModelConfig, TrainConfig
from transduce.model.build import build
from transduce.training import gradients, sharding
from transduce.training import optimizer as module
from transduce.training.optimizer import Muon, adam, learning_rate, optimizer_of, orthogonalised

# ---- the schedule ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d_model", "peak"), [pytest.param(512, 6.99e-4, id="base"), pytest.param(1024, 4.94e-4, id="big")]
)
def test_peak_rates_of_the_paper(d_model: int, peak: float) -> None:
    assert learning_rate(4000, d_model=d_model, warmup_steps=4000) == pytest.approx(peak, rel=1e-3)


def test_the_first_rate_is_the_peak_divided_by_warmup_steps() -> None:
    assert learning_rate(1, d_model=512, warmup_steps=4000) == pytest.approx(1.7469e-7, rel=1e-4)


def test_the_rate_rises_to_the_peak_and_then_falls() -> None:
    rates = [learning_rate(step, d_model=64, warmup_steps=50) for step in range(1, 201)]
    assert max(rates) == rates[49] == pytest.approx((64 * 50) ** -0.5)
    assert rates[:50] == sorted(rates[:50])
    assert rates[49:] == sorted(rates[49:], reverse=True)


@pytest.mark.parametrize("k", [2, 4, 5, 10])
def test_the_rate_is_the_same_at_warmup_over_k_and_warmup_times_k_squared(k: int) -> None:
    before, after = (learning_rate(step, d_model=512, warmup_steps=4000) for step in (4000 // k, 4000 * k * k))
    assert before == pytest.approx(after) == pytest.approx((512 * 4000) ** -0.5 / k)


@given(step=st.integers(1, 10**7), d_model=st.integers(1, 4096), warmup_steps=st.integers(1, 10**5))
def test_the_schedule_equals_the_reference(step: int, d_model: int, warmup_steps: int) -> None:
    rate = learning_rate(step, d_model=d_model, warmup_steps=warmup_steps)
    assert rate == pytest.approx(reference.learning_rate(step, d_model, warmup_steps), rel=1e-12)


def test_lr_factor_multiplies_the_rate() -> None:
    plain, double = (learning_rate(7, d_model=16, warmup_steps=4, lr_factor=factor) for factor in (1.0, 2.0))
    assert double == 2 * plain


def test_the_rate_falls_to_nearly_0_in_the_last_decay_steps() -> None:
    plain, decayed = (
        [learning_rate(step, d_model=16, warmup_steps=4, max_steps=20, decay_steps=steps) for step in range(1, 21)]
        for steps in (0, 10)
    )
    factors = [b / a for a, b in zip(plain, decayed, strict=True)]
    assert factors == pytest.approx([1.0] * 10 + [n / 11 for n in range(10, 0, -1)])


@pytest.mark.parametrize("step", [0, -1])
def test_steps_count_from_one(step: int) -> None:
    with pytest.raises(ValueError, match=f"step={step}: expected at least 1"):
        learning_rate(step, d_model=512, warmup_steps=4000)


# ---- Adam --------------------------------------------------------------------------------------------------------


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def test_adam_has_the_constants_of_the_paper_and_no_weight_decay() -> None:
    settings = adam([parameter(0.0)]).defaults
    assert (settings["betas"], settings["eps"]) == ((0.9, 0.98), 1e-9)
    assert (settings["weight_decay"], settings["amsgrad"], settings["maximize"]) == (0, False, False)


def test_beta2_is_an_argument() -> None:
    assert adam([parameter(0.0)], 0.997).defaults["betas"] == (0.9, 0.997)


def test_weights_do_not_move_before_a_rate_is_set() -> None:
    weight = parameter(1.5, -2.0)
    optimizer = adam([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert weight.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("gradient", [3.0, -3.0, 1e-4])
def test_the_first_step_has_the_length_of_the_rate_for_any_gradient(gradient: float) -> None:
    weight = parameter(1.0)
    optimizer = adam([weight])
    optimizer.param_groups[0]["lr"] = 0.25
    weight.grad = torch.full_like(weight, gradient)
    optimizer.step()
    assert weight.item() == pytest.approx(1 - math.copysign(0.25, gradient), rel=1e-4)


# With gradients of 1e-9 epsilon is half of the divisor, so a wrong epsilon, or one under the root, fails the test.
@pytest.mark.parametrize("scale", [1.0, 1e-9], ids=["large", "as small as epsilon"])
@pytest.mark.parametrize("beta2", [0.98, 0.997])
def test_steps_under_the_schedule_equal_the_reference(scale: float, beta2: float) -> None:
    gradients = [[0.5 * scale, -1.0 * scale, 0.25 * scale, 2.0 * scale], [-0.1 * scale, 0.0, 3.0 * scale, 0.7 * scale]]
    rates = [learning_rate(step, d_model=16, warmup_steps=2) for step in range(1, 5)]
    weight = parameter(0.3, -0.7)
    optimizer = adam([weight], beta2)
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.tensor([row[step] for row in gradients], dtype=torch.float64)
        optimizer.step()
    for start, row, end in zip((0.3, -0.7), gradients, weight.tolist(), strict=True):
        expected = reference.adam(start, row, rates, beta1=0.9, beta2=beta2, eps=1e-9)
        assert end == pytest.approx(expected, rel=1e-12)


# ---- Muon --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 24), (2, 24, 8), (1, 1, 5)])
@pytest.mark.parametrize("has_bf16", [False, True])
def test_an_orthogonalised_matrix_has_the_same_vectors_and_singular_values_near_1(
    shape: tuple[int, int, int], has_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_fast_bf16", lambda device: has_bf16)
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    in_their_basis = u.mT @ orthogonalised(matrices) @ v.mT
    values = in_their_basis.diagonal(dim1=1, dim2=2)
    assert 0.4 < float(values.min()) and float(values.max()) < 1.3
    assert float((in_their_basis - torch.diag_embed(values)).abs().max()) < (0.05 if has_bf16 else 1e-4)
    assert orthogonalised(torch.zeros(shape)).equal(torch.zeros(shape))


def weights_after(optimizer: str, steps: int) -> tuple[list[torch.Tensor], Muon | None]:
    """Return two matrices of a shape, a third one and a vector after some steps towards random targets."""
    generator = torch.Generator().manual_seed(3)
    matrices = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((6, 6), (6, 6), (12, 6))]
    vector = nn.Parameter(torch.randn(5, generator=generator))
    if optimizer == "torch":
        others = adam([vector], 0.98)
        optimizers = [torch.optim.Muon(matrices, lr=0.0, weight_decay=0.0, momentum=0.95), others]
    else:
        optimizers = [Muon([*matrices, vector], matrices, 0.98)]
    for step in range(1, steps + 1):
        for parameter in (*matrices, vector):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for member in optimizers:
            factor = module.FACTOR if isinstance(member, torch.optim.Muon) else 1.0
            member.param_groups[0]["lr"] = factor * 0.01 / step
            member.step()
    weights = [parameter.detach() for parameter in (*matrices, vector)]
    return weights, optimizers[0] if isinstance(optimizers[0], Muon) else None


def polar_factors(matrices: torch.Tensor) -> torch.Tensor:
    u, _, v = torch.linalg.svd(matrices.double(), full_matrices=False)
    return (u @ v).to(matrices.dtype)


def test_muon_equals_torchs_for_matrices_and_adam_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both with exact singular values, because torch's iteration leaves other ones."""
    monkeypatch.setattr(module, "orthogonalised", polar_factors)
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", lambda x, *_: polar_factors(x))
    ours, optimizer = weights_after("ours", 10)
    theirs, _ = weights_after("torch", 10)
    start, _ = weights_after("ours", 0)
    assert optimizer is not None
    for our, their, first in zip(ours[:3], theirs[:3], start[:3], strict=True):
        assert float((our - their).norm()) < 1e-5 * float((their - first).norm())
    assert ours[3].equal(theirs[3])
    momenta = [{*state} for state in optimizer.state.values()]
    assert momenta[:3] == [{"momentum"}] * 3 and "exp_avg" in momenta[3]


def test_muon_has_the_matrices_of_the_layers_only() -> None:
    model = build(ModelConfig(vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_ff=16, tie_output=False))
    optimizer = optimizer_of(model, TrainConfig(optimizer="muon"))
    with_momentum = {name for name, p in model.named_parameters() if "momentum" in optimizer.state[p]}
    assert len(with_momentum) == 3 * 4 + 2 * 2
    assert {name.rpartition(".")[2] for name in with_momentum} == {"weight"}
    assert not any("embedding" in name or "norm" in name for name in with_momentum)


def test_a_lack_of_memory_changes_no_matrix_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_once(matrices: torch.Tensor) -> torch.Tensor:
        monkeypatch.setattr(module, "orthogonalised", orthogonalised)
        raise MemoryError

    weights, _ = weights_after("ours", 1)
    generator = torch.Generator().manual_seed(3)
    matrices = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((6, 6), (6, 6), (12, 6))]
    vector = nn.Parameter(torch.randn(5, generator=generator))
    optimizer = Muon([*matrices, vector], matrices, 0.98)
    for parameter in (*matrices, vector):
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.param_groups[0]["lr"] = 0.01
    monkeypatch.setattr(module, "orthogonalised", fail_once)
    gradients.update(optimizer, 1)
    assert all(a.equal(b) for a, b in zip([*matrices, vector], weights, strict=True))


def test_muon_needs_whole_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "world_size", lambda: 2)
    assert sharding.shard_problems(TrainConfig()) == []
    (line,) = sharding.shard_problems(TrainConfig(optimizer="muon"))
    assert line.startswith("--shard: expected train.optimizer='adam', not 'muon'")
