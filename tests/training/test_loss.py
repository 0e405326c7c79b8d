"""The smoothed loss against its definition; the two ways to compute it against each other; micro-batches."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import reference
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from transduce.config.schema import ModelConfig
from transduce.data.batches import Batch, collate
from transduce.model.transformer import Transformer
from transduce.training import loss
from transduce.training.loss import label_smoothed_cross_entropy, projected_cross_entropy, token_log_probs

all_smoothings = pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.4])
N, D, V = 7, 6, 11


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


def targets_of(n: int = N) -> Tensor:
    return torch.randint(0, V, (n,), generator=torch.Generator().manual_seed(2))


def chunked(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setitem(loss.CHUNK_BYTES, "cpu", 4 * V * rows)


# ---- the distribution of section 5.4 -----------------------------------------------------------------------------


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("truth", [0, 1, 10])
def test_the_gradient_is_the_prediction_less_the_distribution(truth: int, label_smoothing: float) -> None:
    logits = random(1, V)
    label_smoothed_cross_entropy(logits, torch.tensor([truth]), label_smoothing).backward()
    assert logits.grad is not None
    wanted = torch.tensor([reference.smoothed(truth, V, label_smoothing)])
    assert_close(logits.softmax(1) - logits.grad, wanted, rtol=0, atol=2e-7)


def test_the_truth_gets_exactly_nine_tenths_and_all_others_the_same() -> None:
    distribution = -torch.autograd.functional.jacobian(
        lambda logits: label_smoothed_cross_entropy(logits, torch.tensor([3]), 0.1), torch.zeros(1, V)
    )[0]
    distribution += 1 / V  # what a row of equal scores predicts
    assert distribution[3].item() == pytest.approx(0.9, abs=1e-7)
    others = [p for token, p in enumerate(distribution.tolist()) if token != 3]
    assert others == pytest.approx([0.1 / (V - 1)] * (V - 1), abs=1e-7)


def test_the_best_prediction_costs_the_entropy_of_the_distribution() -> None:
    distribution = reference.smoothed(3, V, 0.1)
    entropy = -sum(p * math.log(p) for p in distribution)
    best, near = (
        label_smoothed_cross_entropy(torch.tensor([p]).log(), torch.tensor([3]), 0.1).item()
        for p in (distribution, reference.smoothed(3, V, 0.11))
    )
    assert best == pytest.approx(entropy, rel=1e-6)
    assert near > best


def test_equal_scores_cost_the_logarithm_of_the_vocabulary() -> None:
    for label_smoothing in (0.0, 0.1):
        found = label_smoothed_cross_entropy(torch.zeros(N, V), targets_of(), label_smoothing)
        assert found.item() == pytest.approx(N * math.log(V), rel=1e-6)


# ---- both ways, by loops and against each other ------------------------------------------------------------------


@all_smoothings
def test_both_losses_by_loops(label_smoothing: float) -> None:
    hidden, projection, targets = random(N, D), random(V, D, seed=3), targets_of()
    logits = hidden @ projection.T
    wanted = reference.smoothed_loss(logits.tolist(), targets.tolist(), label_smoothing)
    assert label_smoothed_cross_entropy(logits, targets, label_smoothing).item() == pytest.approx(wanted, rel=1e-6)
    found = projected_cross_entropy(hidden, projection, targets, label_smoothing)
    assert found.item() == pytest.approx(wanted, rel=1e-6)


@all_smoothings
@pytest.mark.parametrize("rows", [0, 1, 3, 7, 100])
@pytest.mark.parametrize("upstream", [1.0, 1 / 3, -2.0])
@pytest.mark.parametrize("biased", [False, True])
def test_projected_equals_plain(
    biased: bool, upstream: float, rows: int, label_smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked(monkeypatch, rows)  # with room for no row at all, one is taken at a time
    given, targets = [random(N, D), random(V, D, seed=3), *([random(V, seed=5)] if biased else [])], targets_of()
    bias = given[2] if biased else None
    before = [x.detach().clone() for x in given]
    found = projected_cross_entropy(given[0], given[1], targets, label_smoothing, bias)
    wanted = label_smoothed_cross_entropy(F.linear(given[0], given[1], bias), targets, label_smoothing)
    assert found.shape == ()
    assert_close(found, wanted, rtol=1e-6, atol=0)
    gradients = [torch.autograd.grad(upstream * total, given) for total in (found, wanted)]
    for mine, plain in zip(*gradients, strict=True):
        assert_close(mine, plain, rtol=1e-5, atol=2e-6)
    assert all(torch.equal(x, old) for x, old in zip(given, before, strict=True))


@all_smoothings
def test_projected_in_float64(label_smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    chunked(monkeypatch, 2)
    hidden, projection, targets = random(N, D, dtype=torch.float64), random(V, D, dtype=torch.float64), targets_of()
    logits = (hidden @ projection.T).tolist()
    wanted = reference.smoothed_loss(logits, targets.tolist(), label_smoothing)
    found = projected_cross_entropy(hidden, projection, targets, label_smoothing)
    assert found.item() == pytest.approx(wanted, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda h, p: projected_cross_entropy(h, p, targets, label_smoothing), (hidden, projection)
    )


def test_a_second_derivative_is_refused_not_wrong() -> None:
    hidden, projection = random(N, D), random(V, D)
    total = projected_cross_entropy(hidden, projection, targets_of())
    (gradient,) = torch.autograd.grad(total.square(), [hidden], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_only_what_wants_a_gradient_gets_one() -> None:
    hidden, projection, targets = random(N, D), random(V, D), targets_of()
    projected_cross_entropy(hidden, projection.detach(), targets, 0.1).backward()
    wanted = label_smoothed_cross_entropy(hidden @ projection.detach().T, targets, 0.1)
    assert_close(hidden.grad, *torch.autograd.grad(wanted, [hidden]), rtol=1e-5, atol=1e-6)
    assert projection.grad is None


@pytest.mark.parametrize("sign", [1, -1])
def test_scores_of_any_size_stay_finite(sign: int) -> None:
    hidden, projection = torch.full((1, 1), 1e4 * sign, requires_grad=True), torch.arange(V)[:, None].float()
    plain = label_smoothed_cross_entropy(hidden @ projection.T, torch.tensor([4]), 0.1)
    found = projected_cross_entropy(hidden, projection.requires_grad_(), torch.tensor([4]), 0.1)
    found.backward()
    assert_close(found, plain, rtol=1e-6, atol=0)
    assert hidden.grad is not None and hidden.grad.isfinite().all()
    assert projection.grad is not None and projection.grad.isfinite().all()


@all_smoothings
def test_no_rows_cost_nothing(label_smoothing: float) -> None:
    hidden, projection, targets = random(0, D), random(V, D), targets_of(0)
    found = projected_cross_entropy(hidden, projection, targets, label_smoothing)
    found.backward()
    plain = label_smoothed_cross_entropy(hidden @ projection.T, targets, label_smoothing)
    assert found.item() == plain.item() == 0
    assert hidden.grad is not None and hidden.grad.shape == (0, D)
    assert projection.grad is not None and not projection.grad.any()


def test_bf16_is_within_half_a_percent() -> None:
    """bf16 keeps 8 bits: a product of D terms is off by some 2^-9 of its size, and so are the gradients."""
    given = [random(200, 64), random(V, 64, seed=3)]
    targets = targets_of(200)
    with torch.no_grad():
        given[1] /= 8  # logits of size 1
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            total = projected_cross_entropy(*given, targets, 0.1)
        results.append((total, *torch.autograd.grad(total, given)))
    assert all(x.dtype == torch.float32 for x in results[1])
    for exact, rounded in zip(*results, strict=True):
        assert 0 < ((exact - rounded).norm() / exact.norm()).item() < 5e-3


# ---- what a target costs, for evaluation -------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 3, 100])
def test_log_probabilities_of_the_targets(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chunked(monkeypatch, rows)
    hidden, projection, bias, targets = random(N, D), random(V, D), random(V, seed=5), targets_of()
    found = token_log_probs(hidden, projection, targets, bias)
    wanted = (hidden @ projection.T + bias).log_softmax(1)[torch.arange(N), targets]
    assert_close(found, wanted.detach(), rtol=1e-6, atol=1e-6)
    assert not found.requires_grad
    total = projected_cross_entropy(hidden, projection, targets, 0.0, bias)
    assert -found.sum().item() == pytest.approx(total.item(), rel=1e-6)


def test_log_probabilities_of_nothing() -> None:
    assert token_log_probs(random(0, D), random(V, D), targets_of(0)).shape == (0,)


# ---- batches and micro-batches -----------------------------------------------------------------------------------

CONFIG = ModelConfig(vocab_size=13, d_model=8, n_layers=2, n_heads=2, d_ff=12, dropout=0.0)
SIZES = [(5, 7), (3, 1), (9, 2), (1, 6), (4, 4)]  # tokens of the source and of the target of each pair


def pairs(*which: int) -> Batch:
    generator = torch.Generator().manual_seed(4)
    drawn = [[torch.randint(4, 13, (n,), generator=generator).numpy() for n in sizes] for sizes in SIZES]
    return collate([drawn[i][0] for i in which], [drawn[i][1] for i in which])


def gradients(model: Transformer, batches: list[Batch]) -> tuple[float, dict[str, Tensor]]:
    """The loss per token and its gradients, one micro-batch after the other, as training does it."""
    from transduce.training.task import translation_loss

    model.zero_grad()
    tokens = sum(int(batch.tgt_mask.sum()) for batch in batches)
    total = 0.0
    for batch in batches:
        part = translation_loss(model, batch, 0.1) / tokens
        part.backward()
        total += part.item()
    return total, {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    "cut",
    [[[0, 1], [2, 3, 4]], [[0], [1], [2], [3], [4]], [[4, 2, 0], [3, 1]]],
    ids=["two", "one by one", "in another order"],
)
def test_micro_batches_give_the_gradients_of_the_whole(cut: list[list[int]], norm: Any) -> None:
    torch.manual_seed(1)
    model = Transformer(replace(CONFIG, norm=norm)).double()
    loss_of_all, of_all = gradients(model, [pairs(0, 1, 2, 3, 4)])
    loss_of_parts, of_parts = gradients(model, [pairs(*part) for part in cut])
    assert loss_of_parts == pytest.approx(loss_of_all, rel=1e-6)
    assert of_parts.keys() == of_all.keys() == dict(model.named_parameters()).keys()
    largest = max(gradient.norm() for gradient in of_all.values())
    for name, gradient in of_all.items():
        if name.endswith("w_k.bias"):  # it shifts all scores of a query alike: its gradient is rounding, around 0
            assert gradient.norm() < 1e-6 * largest
            continue
        assert (of_parts[name] - gradient).norm() <= 1e-6 * gradient.norm(), name


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("output_bias", [False, True])
def test_the_loss_of_a_batch_by_loops(output_bias: bool, label_smoothing: float) -> None:
    """The sum over the pairs of what each costs alone, by the plain-loop loss: padding and BOS cost nothing."""
    from transduce.training.task import translation_loss

    torch.manual_seed(1)
    model = Transformer(replace(CONFIG, output_bias=output_bias)).double()
    if output_bias:
        torch.nn.init.normal_(model.output.bias)
    wanted = 0.0
    for i in range(len(SIZES)):
        batch = pairs(i)
        logits = model(batch.src, batch.src_mask, batch.tgt_in)[0]
        assert len(logits) == SIZES[i][1] + 1
        wanted += reference.smoothed_loss(logits.tolist(), batch.tgt_out[0].tolist(), label_smoothing)
    found = translation_loss(model, pairs(0, 1, 2, 3, 4), label_smoothing)
    assert found.item() == pytest.approx(wanted, rel=1e-6)
