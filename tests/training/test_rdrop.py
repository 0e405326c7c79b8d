"""R-Drop: its loss by definition, two passes with other masks, and the same gradient for any division of a batch."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.gradients import (
    assert_near,
    gradient_of,
    micro_batches_of,
    random_pairs,
    small_transformer,
)
from support.trainings import CONFIG, Texts, act_at_step, assert_same, train, with_train
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from transduce.config.schema import ModelConfig, TrainConfig
from transduce.data.batches import Batch, collate
from transduce.model.build import build
from transduce.model.dropout import Dropout
from transduce.model.transformer import Transformer
from transduce.train import TranslationTask
from transduce.training import loss
from transduce.training.gradients import Gradients
from transduce.training.loss import label_smoothed_cross_entropy, projected_cross_entropy, projected_rdrop
from transduce.training.task import translation_loss

N = 7
D = 6
V = 11
CPU = torch.device("cpu")


def definition(p_logits: Tensor, q_logits: Tensor, targets: Tensor, label_smoothing: float, alpha: float) -> Tensor:
    """Return the loss of the paper's equation 4, summed over the target tokens, from the logits (N,V) of two passes."""
    p, q = p_logits.softmax(1), q_logits.softmax(1)
    divergence = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
    cross_entropies = [label_smoothed_cross_entropy(x, targets, label_smoothing) for x in (p_logits, q_logits)]
    return sum(cross_entropies) + alpha * divergence


def inputs_of(dtype: torch.dtype = torch.float64, *, bias: bool = True) -> tuple[list[Tensor], Tensor]:
    """Return hidden states of 2N rows, projection and bias, and the target of each row."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(2 * N, D), (V, D), *([(V,)] if bias else [])]
    inputs = [torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]
    return inputs, torch.randint(V, (N,), generator=generator).repeat_interleave(2)


# ---- the loss ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.3, 5.0])
@pytest.mark.parametrize("rows", [0, 4, 5, 100])
@pytest.mark.parametrize("has_bias", [False, True])
def test_loss_and_gradient_follow_the_definition(
    has_bias: bool, rows: int, alpha: float, label_smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loss.CHUNK_BYTES, "cpu", 4 * V * rows)
    inputs, targets = inputs_of(bias=has_bias)
    hidden, projection, bias = (*inputs, None)[:3]
    logits = F.linear(hidden, projection, bias)
    expected = definition(logits[0::2], logits[1::2], targets[0::2], label_smoothing, alpha)
    value, cross_entropy = projected_rdrop(hidden, projection, targets, label_smoothing, bias, alpha)
    assert_close(value, expected, rtol=1e-12, atol=0)
    assert_close(cross_entropy, label_smoothed_cross_entropy(logits, targets, label_smoothing), rtol=1e-12, atol=0)
    assert not cross_entropy.requires_grad
    for actual, gradient in zip(*(torch.autograd.grad(x, inputs) for x in (value, expected)), strict=True):
        assert_close(actual, gradient, rtol=1e-9, atol=1e-12)


def test_equal_passes_have_no_divergence() -> None:
    inputs, targets = inputs_of()
    with torch.no_grad():
        inputs[0][1::2] = inputs[0][0::2]
    value, cross_entropy = projected_rdrop(inputs[0], inputs[1], targets, 0.1, inputs[2], 5.0)
    plain = projected_cross_entropy(inputs[0], inputs[1], targets, 0.1, inputs[2])
    assert_close(value, plain, rtol=1e-12, atol=0)
    assert value.item() == cross_entropy.item()
    for actual, gradient in zip(*(torch.autograd.grad(x, inputs) for x in (value, plain)), strict=True):
        assert_close(actual, gradient, rtol=1e-12, atol=1e-14)


def test_passes_that_exclude_each_others_tokens_have_a_finite_loss() -> None:
    """Probabilities of 0 in fp32: the logarithm of a probability would be infinite."""
    hidden = torch.tensor([[300.0], [-300.0]], requires_grad=True)
    projection = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    value, cross_entropy = projected_rdrop(hidden, projection, torch.tensor([0, 0]), 0.0, None, 1.0)
    value.backward()
    assert cross_entropy.item() == 600 and value.item() == 600 + 600
    assert hidden.grad is not None and hidden.grad.isfinite().all()


def test_the_divergence_in_bf16_is_near_that_in_fp32() -> None:
    """The products are in bf16, with a relative error of 2^-9, and the divergence is not."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(400, 64, generator=generator)
    projection, targets = torch.randn(500, 64, generator=generator) / 8, torch.zeros(400, dtype=torch.int64)
    losses = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            value, cross_entropy = projected_rdrop(hidden, projection, targets, 0.1, None, 2.0)
        assert value.dtype == torch.float32
        losses.append((value - cross_entropy).item())
    assert losses[1] != losses[0] and losses[1] == pytest.approx(losses[0], rel=5e-3)


# ---- two passes of a model ---------------------------------------------------------------------------------------


def test_both_passes_of_a_pair_have_other_masks() -> None:
    model = small_transformer(dropout=0.3).train()
    masks: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, Dropout) and module.p:
            module.register_forward_hook(lambda module, inputs, output: masks.append(output == 0))
    batch = collate(*random_pairs(1, 5, longest=9))
    translation_loss(model, batch, 0.1, rdrop=1.0)
    assert len(masks) == 2 + 2 * 2 + 2 * 3  # embeddings, encoder and decoder layers
    for mask in masks:
        first, second = mask.chunk(2)
        assert len(first) == 5 and all(not a.equal(b) for a, b in zip(first, second, strict=True))


def test_without_dropout_loss_and_gradient_are_the_plain_ones() -> None:
    model, batch = small_transformer().train(), collate(*random_pairs(2, 6))
    expected = translation_loss(model, batch, 0.1)
    expected.backward()
    gradient = gradient_of(model)
    model.zero_grad()
    value = translation_loss(model, batch, 0.1, rdrop=5.0)
    value.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    assert_near(gradient_of(model), gradient, 1e-12)


class FixedDropout(torch.nn.Module):
    """Instead of a random mask: the first pass loses every third value, and the second every fifth."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2)
        places = torch.arange(x.size(-1))
        return torch.cat([first * (places % 3 > 0), second * (places % 5 > 0)])


def model_with_two_passes() -> Transformer:
    """Return a model with dropout that depends only on the pass, so that two divisions of a batch can be compared."""
    model = small_transformer(dropout=0.3)
    for module in [*model.modules()]:
        for name, child in module.named_children():
            if isinstance(child, Dropout):
                setattr(module, name, FixedDropout())
    return model.train()


def gradients_with_rdrop(model: torch.nn.Module, alpha: float = 5.0) -> Gradients:
    return Gradients(model, TranslationTask(), TrainConfig(rdrop=alpha), CPU, lambda lines: None)


def expected_of(model: Transformer, batch: Batch) -> tuple[float, float]:
    """Set .grad to half of the gradient of the definition for a whole batch, each token once. Return loss and norm."""
    model.zero_grad()
    two = [torch.cat([x, x]) for x in (batch.src, batch.src_mask, batch.tgt_in)]
    logits = model(*two).chunk(2)
    p, q = (x[batch.tgt_mask] for x in logits)
    targets = batch.tgt_out[batch.tgt_mask]
    (definition(p, q, targets, 0.1, 5.0) / 2 / len(targets)).backward()
    norm = torch.nn.utils.get_total_norm([x.grad for x in model.parameters() if x.grad is not None])
    return sum(label_smoothed_cross_entropy(x, targets, 0.1).item() for x in (p, q)) / 2, norm.item()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("limit", [None, 100])
def test_every_division_of_a_batch_gives_the_same_gradient(limit: int | None, count: int, threads: int) -> None:
    """Micro-batches, halves and micro-batches that did not fit. Padding has no divergence. The log has the loss."""
    model, (src, tgt) = model_with_two_passes(), random_pairs(3, 13)
    expected_loss, norm = expected_of(model, collate(src, tgt))
    expected = gradient_of(model)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        gradients = gradients_with_rdrop(model)
        assert len(gradients.workers.models) == threads
        gradients.too_large = limit or gradients.too_large
        figures = gradients.of(micro_batches_of(src, tgt, count), seed=1)
    finally:
        torch.set_num_threads(before)
    assert_near(gradient_of(model), expected, 1e-9)
    assert figures.loss == pytest.approx(expected_loss, rel=1e-9)
    assert figures.norm == pytest.approx(norm, rel=1e-9)
    assert figures.tgt_tokens == sum(len(ids) + 1 for ids in tgt)


@pytest.mark.parametrize("kind", ["transformer", "recurrent", "convolutional"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_kind_of_model_can_be_trained(kind: str, precision: str) -> None:
    torch.manual_seed(1)
    sizes = {"n_heads": 2, "d_ff": 32} if kind == "transformer" else {}
    model = build(ModelConfig(kind=kind, vocab_size=40, d_model=16, n_layers=2, dropout=0.3, **sizes)).train()  # pyright: ignore[reportArgumentType]
    batches = micro_batches_of(*random_pairs(4, 12), 2)
    norms = []
    losses = []
    for alpha in (1.0, 5.0, 1.0):
        config = TrainConfig(rdrop=alpha, precision=precision)  # pyright: ignore[reportArgumentType]
        figures = Gradients(model, TranslationTask(), config, CPU, lambda lines: None).of(batches, seed=3)
        norms.append(figures.norm)
        losses.append(figures.loss)
    assert norms[0] == norms[2] != norms[1] and np.isfinite(norms).all()
    assert losses[0] == losses[1] == losses[2]  # cross entropy, without the divergence


# ---- a run -------------------------------------------------------------------------------------------------------


def test_a_stopped_run_resumes_to_the_same_end(
    run_texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_train(CONFIG, rdrop=2.0, max_steps=30)
    train(config, out=tmp_path / "expected", **run_texts)
    with monkeypatch.context() as patch:
        act_at_step(patch, 13, lambda: os.kill(os.getpid(), signal.SIGTERM))
        train(config, out=tmp_path / "run", **run_texts)
    train(config, out=tmp_path / "run", resume=True, **run_texts)
    assert_same(tmp_path / "run", tmp_path / "expected")
    plain = replace(config, train=replace(config.train, rdrop=0.0))
    train(plain, out=tmp_path / "plain", **run_texts)
    models = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("run", "plain")]
    assert models[0] != models[1]
