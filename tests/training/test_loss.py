"""The label-smoothed loss: by its definition, computed in two ways, and over micro-batches."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import reference
from support.fused import compile_on_cpu, needs_compiler
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from transduce.config.schema import ModelConfig
from transduce.data.batches import Batch, collate
from transduce.model.transformer import Transformer
from transduce.training import loss
from transduce.training.loss import label_smoothed_cross_entropy, projected_cross_entropy, token_log_probs

all_smoothings = pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.4])
N = 7
D = 6
V = 11


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


def targets_of(n: int = N) -> Tensor:
    return torch.randint(0, V, (n,), generator=torch.Generator().manual_seed(2))


def set_chunk_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let the loss project `rows` rows at a time."""
    monkeypatch.setitem(loss.CHUNK_BYTES, "cpu", 4 * V * rows)


# ---- the distribution of section 5.4 -----------------------------------------------------------------------------


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("target", [0, 1, 10])
def test_the_gradient_is_the_softmax_minus_the_target_distribution(target: int, label_smoothing: float) -> None:
    logits = random(1, V)
    label_smoothed_cross_entropy(logits, torch.tensor([target]), label_smoothing).backward()
    assert logits.grad is not None
    expected = torch.tensor([reference.target_distribution(target, V, label_smoothing)])
    assert_close(logits.softmax(1) - logits.grad, expected, rtol=0, atol=2e-7)


def test_the_target_has_probability_nine_tenths_and_all_others_an_equal_share() -> None:
    distribution = -torch.autograd.functional.jacobian(
        lambda logits: label_smoothed_cross_entropy(logits, torch.tensor([3]), 0.1), torch.zeros(1, V)
    )[0]
    distribution += 1 / V  # the softmax of equal logits
    assert distribution[3].item() == pytest.approx(0.9, abs=1e-7)
    others = [p for token, p in enumerate(distribution.tolist()) if token != 3]
    assert others == pytest.approx([0.1 / (V - 1)] * (V - 1), abs=1e-7)


def test_the_minimum_of_the_loss_is_the_entropy_of_the_target_distribution() -> None:
    distribution = reference.target_distribution(3, V, 0.1)
    entropy = -sum(p * math.log(p) for p in distribution)
    best, near = (
        label_smoothed_cross_entropy(torch.tensor([p]).log(), torch.tensor([3]), 0.1).item()
        for p in (distribution, reference.target_distribution(3, V, 0.11))
    )
    assert best == pytest.approx(entropy, rel=1e-6)
    assert near > best


def test_the_loss_of_equal_logits_is_the_logarithm_of_the_vocabulary_size() -> None:
    for label_smoothing in (0.0, 0.1):
        total = label_smoothed_cross_entropy(torch.zeros(N, V), targets_of(), label_smoothing)
        assert total.item() == pytest.approx(N * math.log(V), rel=1e-6)


# ---- the two functions -------------------------------------------------------------------------------------------


@all_smoothings
def test_both_losses_equal_the_reference(label_smoothing: float) -> None:
    hidden = random(N, D)
    projection = random(V, D, seed=3)
    targets = targets_of()
    logits = hidden @ projection.T
    expected = reference.smoothed_loss(logits.tolist(), targets.tolist(), label_smoothing)
    assert label_smoothed_cross_entropy(logits, targets, label_smoothing).item() == pytest.approx(expected, rel=1e-6)
    value = projected_cross_entropy(hidden, projection, targets, label_smoothing)
    assert value.item() == pytest.approx(expected, rel=1e-6)


@all_smoothings
@pytest.mark.parametrize("rows", [0, 1, 3, 7, 100])
@pytest.mark.parametrize("upstream", [1.0, 1 / 3, -2.0])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_projected_loss_equals_the_plain_one(
    has_bias: bool, upstream: float, rows: int, label_smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_chunk_rows(monkeypatch, rows)  # 0: at least one row is projected at a time
    inputs, targets = [random(N, D), random(V, D, seed=3), *([random(V, seed=5)] if has_bias else [])], targets_of()
    bias = inputs[2] if has_bias else None
    before = [x.detach().clone() for x in inputs]
    value = projected_cross_entropy(inputs[0], inputs[1], targets, label_smoothing, bias)
    plain = label_smoothed_cross_entropy(F.linear(inputs[0], inputs[1], bias), targets, label_smoothing)
    assert value.shape == ()
    assert_close(value, plain, rtol=1e-6, atol=0)
    gradients = [torch.autograd.grad(upstream * total, inputs) for total in (value, plain)]
    for actual, expected in zip(*gradients, strict=True):
        assert_close(actual, expected, rtol=1e-5, atol=2e-6)
    assert all(torch.equal(x, old) for x, old in zip(inputs, before, strict=True))


@all_smoothings
def test_the_projected_loss_in_float64(label_smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    set_chunk_rows(monkeypatch, 2)
    hidden = random(N, D, dtype=torch.float64)
    projection = random(V, D, dtype=torch.float64)
    targets = targets_of()
    logits = (hidden @ projection.T).tolist()
    expected = reference.smoothed_loss(logits, targets.tolist(), label_smoothing)
    total = projected_cross_entropy(hidden, projection, targets, label_smoothing)
    assert total.item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda h, p: projected_cross_entropy(h, p, targets, label_smoothing), (hidden, projection)
    )


@all_smoothings
def test_weights_scale_the_loss_of_each_target(label_smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    set_chunk_rows(monkeypatch, 3)
    hidden = random(N, D)
    projection = random(V, D, seed=3)
    targets = targets_of()
    weights = torch.tensor([0.0, 1.0, 2.5, 0.5, 1.0, 7.0, 3.0])
    value = projected_cross_entropy(hidden, projection, targets, label_smoothing, weights=weights)
    rows = hidden @ projection.T
    alone = [label_smoothed_cross_entropy(rows[i : i + 1], targets[i : i + 1], label_smoothing) for i in range(N)]
    expected = sum((weight * loss for weight, loss in zip(weights, alone, strict=True)), torch.zeros(()))
    assert_close(value, expected, rtol=1e-6, atol=0)
    gradients = [torch.autograd.grad(total, [hidden, projection]) for total in (value, expected)]
    for actual, of_definition in zip(*gradients, strict=True):
        assert_close(actual, of_definition, rtol=1e-5, atol=4e-6)


def test_a_second_derivative_is_refused() -> None:
    hidden, projection = random(N, D), random(V, D)
    total = projected_cross_entropy(hidden, projection, targets_of())
    (gradient,) = torch.autograd.grad(total.square(), [hidden], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_detached_input_gets_no_gradient() -> None:
    hidden = random(N, D)
    projection = random(V, D)
    targets = targets_of()
    projected_cross_entropy(hidden, projection.detach(), targets, 0.1).backward()
    plain = label_smoothed_cross_entropy(hidden @ projection.detach().T, targets, 0.1)
    assert_close(hidden.grad, *torch.autograd.grad(plain, [hidden]), rtol=1e-5, atol=1e-6)
    assert projection.grad is None


@pytest.mark.parametrize("sign", [1, -1])
def test_large_logits_give_finite_losses_and_gradients(sign: int) -> None:
    hidden, projection = torch.full((1, 1), 1e4 * sign, requires_grad=True), torch.arange(V)[:, None].float()
    plain = label_smoothed_cross_entropy(hidden @ projection.T, torch.tensor([4]), 0.1)
    value = projected_cross_entropy(hidden, projection.requires_grad_(), torch.tensor([4]), 0.1)
    value.backward()
    assert_close(value, plain, rtol=1e-6, atol=0)
    assert hidden.grad is not None and hidden.grad.isfinite().all()
    assert projection.grad is not None and projection.grad.isfinite().all()


@all_smoothings
def test_the_loss_of_no_rows_is_zero(label_smoothing: float) -> None:
    hidden = random(0, D)
    projection = random(V, D)
    targets = targets_of(0)
    value = projected_cross_entropy(hidden, projection, targets, label_smoothing)
    value.backward()
    plain = label_smoothed_cross_entropy(hidden @ projection.T, targets, label_smoothing)
    assert value.item() == plain.item() == 0
    assert hidden.grad is not None and hidden.grad.shape == (0, D)
    assert projection.grad is not None and not projection.grad.any()


def test_bf16_differs_by_less_than_half_a_percent() -> None:
    """bf16 has 8 bits, so products and gradients have a relative error of about 2^-9."""
    inputs = [random(200, 64), random(V, 64, seed=3)]
    targets = targets_of(200)
    with torch.no_grad():
        inputs[1] /= 8  # logits of size 1
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            total = projected_cross_entropy(*inputs, targets, 0.1)
        results.append((total, *torch.autograd.grad(total, inputs)))
    assert all(x.dtype == torch.float32 for x in results[1])
    for exact, rounded in zip(*results, strict=True):
        assert 0 < ((exact - rounded).norm() / exact.norm()).item() < 5e-3


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "has_bias", "has_factors", "alpha"),
    [
        (torch.bfloat16, False, False, 0.0),
        (torch.bfloat16, True, False, 3.0),
        (torch.float32, True, True, 0.0),
        (torch.float32, False, False, 3.0),
    ],
)
def test_the_compiled_loss_equals_the_plain_one(
    dtype: torch.dtype, has_bias: bool, has_factors: bool, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled code adds the probability of the target in another way. Both are near the result in float64."""
    plain = loss._loss_of_logits.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    notices = compile_on_cpu(monkeypatch)
    for rows in (6, 4):  # the last chunk of a batch is smaller
        logits = (3 * random(rows, V)).detach().to(dtype)
        targets = targets_of(rows // 2).repeat_interleave(2)[:, None]
        bias = random(V, seed=5).detach() if has_bias else None
        factors = random(rows, 1, seed=6).detach() if has_factors else None
        options = [None if x is None else x.double() for x in (bias, factors)]
        expected = plain(logits.double(), targets, 0.1, *options, alpha)
        for function in (plain, loss._loss_of_logits):
            values = function(logits.clone(), targets, 0.1, bias, factors, alpha)
            assert values.grad.dtype == dtype
            for name, actual, exact in zip(values._fields, values, expected, strict=True):
                assert (actual is None) == (exact is None)
                if exact is not None:
                    rtol = 2**-8 if name == "grad" and dtype == torch.bfloat16 else 1e-5
                    assert_close(actual.double(), exact, rtol=rtol, atol=2e-6)
    assert not notices


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="pretends to have a GPU")
def test_torch_compile_makes_one_kernel_of_the_loss() -> None:
    """It reads the bf16 logits twice, row by row, and once at the target, and writes the gradient and the loss."""
    from support.gpu_kernels import kernels  # loads the compiler, which takes seconds

    def args() -> tuple[Any, ...]:
        logits = torch.empty(3_600, 37_000, dtype=torch.bfloat16, device="cuda")
        return logits, torch.empty(3_600, 1, dtype=torch.int64, device="cuda"), 0.1, None, None, 0.0

    (kernel,) = kernels(loss._loss_of_logits.__wrapped__, args)  # pyright: ignore[reportFunctionMemberAccess]
    assert kernel.count("tl.load(in_ptr0 ") == 3 and kernel.count("tl.store(") == 2
    assert "'in_ptr0': '*bf16'" in kernel and "'out_ptr2': '*bf16'" in kernel


# ---- log-probabilities, for evaluation ---------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 3, 100])
def test_log_probabilities_of_the_targets(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_chunk_rows(monkeypatch, rows)
    hidden = random(N, D)
    projection = random(V, D)
    bias = random(V, seed=5)
    targets = targets_of()
    log_probs = token_log_probs(hidden, projection, targets, bias)
    expected = (hidden @ projection.T + bias).log_softmax(1)[torch.arange(N), targets]
    assert_close(log_probs, expected.detach(), rtol=1e-6, atol=1e-6)
    assert not log_probs.requires_grad
    total = projected_cross_entropy(hidden, projection, targets, 0.0, bias)
    assert -log_probs.sum().item() == pytest.approx(total.item(), rel=1e-6)


def test_log_probabilities_of_no_rows() -> None:
    assert token_log_probs(random(0, D), random(V, D), targets_of(0)).shape == (0,)


# ---- batches and micro-batches -----------------------------------------------------------------------------------

CONFIG = ModelConfig(vocab_size=13, d_model=8, n_layers=2, n_heads=2, d_ff=12, dropout=0.0)
SIZES = [(5, 7), (3, 1), (9, 2), (1, 6), (4, 4)]  # tokens of the source and of the target of each pair


def batch_of(*indices: int) -> Batch:
    """Return a batch of the pairs at these indices of `SIZES`."""
    generator = torch.Generator().manual_seed(4)
    pairs = [[torch.randint(4, 13, (n,), generator=generator).numpy() for n in sizes] for sizes in SIZES]
    return collate([pairs[i][0] for i in indices], [pairs[i][1] for i in indices])


def gradients(model: Transformer, batches: list[Batch]) -> tuple[float, dict[str, Tensor]]:
    """Return the loss per token and its gradients, summed over the micro-batches as in training."""
    from transduce.training.task import translation_loss

    model.zero_grad()
    tokens = sum(int(batch.tgt_mask.sum()) for batch in batches)
    total = 0.0
    for batch in batches:
        share = translation_loss(model, batch, 0.1) / tokens
        share.backward()
        total += share.item()
    return total, {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    "parts",
    [[[0, 1], [2, 3, 4]], [[0], [1], [2], [3], [4]], [[4, 2, 0], [3, 1]]],
    ids=["two", "one by one", "in another order"],
)
def test_micro_batches_give_the_gradients_of_the_whole_batch(parts: list[list[int]], norm: Any) -> None:
    torch.manual_seed(1)
    model = Transformer(replace(CONFIG, norm=norm)).double()
    batch_loss, batch_gradients = gradients(model, [batch_of(0, 1, 2, 3, 4)])
    summed_loss, summed_gradients = gradients(model, [batch_of(*indices) for indices in parts])
    assert summed_loss == pytest.approx(batch_loss, rel=1e-6)
    assert summed_gradients.keys() == batch_gradients.keys() == dict(model.named_parameters()).keys()
    largest = max(gradient.norm() for gradient in batch_gradients.values())
    for name, gradient in batch_gradients.items():
        if name.endswith("w_k.bias"):  # shifts all scores of a query equally: its gradient is 0, except for rounding
            assert gradient.norm() < 1e-6 * largest
            continue
        assert (summed_gradients[name] - gradient).norm() <= 1e-6 * gradient.norm(), name


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("output_bias", [False, True])
def test_the_loss_of_a_batch_equals_the_reference(output_bias: bool, label_smoothing: float) -> None:
    """The loss is the sum of the losses of single pairs, so padding and BOS have no loss."""
    from transduce.training.task import translation_loss

    torch.manual_seed(1)
    model = Transformer(replace(CONFIG, output_bias=output_bias)).double()
    if output_bias:
        torch.nn.init.normal_(model.output.bias)
    expected = 0.0
    for i in range(len(SIZES)):
        batch = batch_of(i)
        logits = model(batch.src, batch.src_mask, batch.tgt_in)[0]
        assert len(logits) == SIZES[i][1] + 1
        expected += reference.smoothed_loss(logits.tolist(), batch.tgt_out[0].tolist(), label_smoothing)
    total = translation_loss(model, batch_of(0, 1, 2, 3, 4), label_smoothing)
    assert total.item() == pytest.approx(expected, rel=1e-6)
