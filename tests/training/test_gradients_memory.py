"""Memory that runs out in a step: micro-batches are cut in two, and the update is made once."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from support.gradients import (
    NO_MEMORY,
    ModelGradient,
    assert_near,
    expected_gradient,
    gradient_of,
    gradients_for,
    micro_batches_of,
    random_pairs,
    small_transformer,
)
from support.toy_task import CommandResult, Toy
from torch import Tensor, nn

from transduce.config.schema import TrainConfig
from transduce.data.batches import Batch, collate
from transduce.errors import is_out_of_memory
from transduce.model.transformer import Transformer
from transduce.train import TranslationTask
from transduce.training.gradients import size, update
from transduce.training.optimizer import adam

# ---- the gradient --------------------------------------------------------------------------------------------------


@contextmanager
def watch(model: nn.Module, event: Callable[[str, int], None]) -> Iterator[None]:
    """Call `event` with "forward" before a layer runs and "backward" when its gradient exists, and its positions."""

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        event("forward", inputs[0].shape[:2].numel())

    def after(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        output.register_hook(lambda gradient: event("backward", output.shape[:2].numel()))

    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding)]
    hooks = [module.register_forward_pre_hook(before) for module in layers]
    hooks += [module.register_forward_hook(after) for module in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def count_events(model: Transformer, batches: list[Batch]) -> int:
    """Return the number of calls of the function of `watch` for the gradient of these micro-batches."""
    kinds: list[str] = []
    with watch(model, lambda kind, positions: kinds.append(kind)):
        gradients_for(model).of(batches, seed=1)
    assert kinds.count("forward") > 50 and kinds.count("backward") > 50
    return len(kinds)


def test_memory_may_run_out_at_any_moment() -> None:
    """Memory runs out at 60 moments, from the first layer of the first micro-batch to the last gradient of the last."""
    model = small_transformer()
    src, tgt = random_pairs(1, 12)
    batches = micro_batches_of(src, tgt, 3)
    expected = expected_gradient(model, collate(src, tgt))
    reference = gradients_for(model).of(batches, seed=1)
    moments = np.linspace(0, count_events(model, batches) - 1, 60).astype(int)
    assert len(set(moments)) == 60
    for moment, problem in zip(moments, NO_MEMORY * 10, strict=True):
        remaining = [moment]

        def event(kind: str, positions: int, remaining: list[int] = remaining, problem: Any = problem) -> None:
            remaining[0] -= 1
            if remaining[0] == -1:
                raise problem

        notices: list[str] = []
        with watch(model, event):
            gradient = gradients_for(model, notices).of(batches, seed=1)
        assert remaining[0] < -1
        assert_near(gradient_of(model), expected, 1e-6)
        assert gradient.norm == pytest.approx(reference.norm) and gradient.loss == pytest.approx(reference.loss)
        assert gradient.tgt_tokens == reference.tgt_tokens
        assert len(notices) == 1 and "out of memory" in notices[0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize("limit", [150, 60, 30, 13])
def test_a_batch_is_cut_until_it_fits(kind: str, limit: int, dtype: torch.dtype, tolerance: float) -> None:
    """The machine has room for `limit` positions in a layer, and one pair is much longer than the others."""
    model = small_transformer(dtype)
    src, tgt = random_pairs(2, 40)
    src[7] = np.arange(4, 4 + min(limit, 36) - 1)

    def event(current_kind: str, positions: int) -> None:
        if current_kind == kind and positions > limit:
            raise torch.OutOfMemoryError

    notices: list[str] = []
    gradients = gradients_for(model, notices)
    with watch(model, event):
        gradients.of([collate(src, tgt)], seed=1)
    assert_near(gradient_of(model), expected_gradient(model, collate(src, tgt)), tolerance)
    assert len(notices) >= 2


def test_a_size_that_did_not_fit_is_not_tried_again() -> None:
    model = small_transformer()
    sizes: list[int] = []
    sizes_that_failed: list[int] = []
    original = TranslationTask.loss

    def loss(model: Transformer, batch: Batch, config: TrainConfig) -> Tensor:
        sizes.append(size(batch))
        if size(batch) > 120:
            sizes_that_failed.append(size(batch))
            raise torch.OutOfMemoryError
        return original(model, batch, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationTask, "loss", staticmethod(loss))
        gradients = gradients_for(model)
        for seed in range(20):
            src, tgt = random_pairs(seed, 30)
            gradients.of(micro_batches_of(src, tgt, 2), seed=1)
            if seed < 19:
                failures_before_the_last_step = len(sizes_that_failed)
            assert_near(gradient_of(model), expected_gradient(model, collate(src, tgt)), 1e-6)
    assert max(sizes) > 240 and 1 < len(sizes_that_failed) < 10
    assert sizes_that_failed == sorted(sizes_that_failed, reverse=True)
    assert len(sizes_that_failed) == failures_before_the_last_step


def test_with_dropout_a_failed_attempt_does_not_change_the_gradient() -> None:
    """The failed attempt used random numbers; the second starts from the seed."""
    model = small_transformer(dropout=0.3)
    batches = micro_batches_of(*random_pairs(3, 12), 2)
    remaining = [count_events(model, batches) - 2]  # almost at the end of the second micro-batch

    def event(kind: str, positions: int) -> None:
        remaining[0] -= 1
        if remaining[0] == 0:
            raise torch.OutOfMemoryError

    gradients, other = gradients_for(model), gradients_for(model)
    with watch(model, event):
        gradients.of(batches, seed=5)
    after_failure = gradient_of(model)
    assert remaining[0] < 0 and gradients.too_large == size(batches[1])
    other.too_large = gradients.too_large
    other.of(batches, seed=5)
    assert all(gradient.equal(after_failure[name]) for name, gradient in gradient_of(model).items())
    other.of(batches, seed=6)
    assert not any(gradient.equal(after_failure[name]) for name, gradient in gradient_of(model).items())


def test_a_single_pair_that_does_not_fit_raises() -> None:
    model = small_transformer()
    src, tgt = random_pairs(2, 9)

    def event(kind: str, positions: int) -> None:
        if positions > 4:
            raise torch.OutOfMemoryError

    with watch(model, event), pytest.raises(MemoryError, match="a single pair of .* does not fit .* data.max_tokens"):
        gradients_for(model).of([collate(src, tgt)], seed=1)


def test_other_errors_pass_through() -> None:
    model = small_transformer()

    def event(kind: str, positions: int) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with watch(model, event), pytest.raises(RuntimeError, match="mat1 and mat2"):
        gradients_for(model).of(micro_batches_of(*random_pairs(2, 9), 1), seed=1)


@pytest.mark.parametrize("problem", NO_MEMORY, ids=lambda problem: str(problem)[:20])
def test_exceptions_for_lack_of_memory_are_recognised(problem: Exception) -> None:
    assert is_out_of_memory(problem)


@pytest.mark.parametrize(
    "problem", [RuntimeError("nan"), ValueError("out of memory"), OSError("can't allocate memory")]
)
def test_other_exceptions_do_not_mean_lack_of_memory(problem: Exception) -> None:
    assert not is_out_of_memory(problem)


PROGRAM = """
import resource, sys
import numpy as np, torch
from transduce.data.batches import collate
from transduce.config.schema import ModelConfig, TrainConfig
from transduce.train import TranslationTask
from transduce.training.gradients import Gradients
from transduce.model.transformer import Transformer

torch.set_num_threads(1)
torch.manual_seed(1)
model = Transformer(ModelConfig(vocab_size=500, d_model=64, n_layers=2, n_heads=4, d_ff=256, dropout=0.0))
rng = np.random.default_rng(1)
src, tgt = ([rng.integers(4, 500, rng.integers(20, 100)) for _ in range(128)] for _ in range(2))
notices = []
def gradients():
    return Gradients(model, TranslationTask(), TrainConfig(), torch.device("cpu"), notices.extend)
def gradient():
    result = gradients().of([collate(src, tgt)], seed=1)
    return result.loss, [p.grad.clone() for p in model.parameters()]
gradients().of([collate(src[:2], tgt[:2])], seed=1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (80 << 20), resource.RLIM_INFINITY))
loss, actual = gradient()
cuts = len(notices)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
whole, expected = gradient()
assert len(notices) == cuts, "it did not fit without a limit"
worst = max(float((a - b).norm() / b.norm()) for a, b, (name, _) in zip(actual, expected, model.named_parameters())
            if not name.endswith("w_k.bias"))
print(cuts, abs(loss - whole) / whole, worst)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS")
def test_a_process_with_a_memory_limit_cuts_its_batch() -> None:
    """The limit is real: 80 MiB more than the process uses, for a batch that takes several times as much."""
    one_arena = {"MALLOC_ARENA_MAX": "1"}  # each arena of a thread reserves 64 MiB of addresses
    freed_at_once = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # otherwise the heap keeps the tensors of failed attempts
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **one_arena, **freed_at_once},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    cuts, loss, worst = map(float, process.stdout.split())
    assert cuts >= 1
    assert loss < 1e-6 and worst < 1e-5


def test_the_command_reports_lack_of_memory_and_exits_with_3(
    toy: Toy, tmp_path: Any, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(*arguments: Any) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(TranslationTask, "loss", staticmethod(loss))
    texts = ["--train", *toy.train, "--valid", *toy.valid, "--out", tmp_path / "run"]
    result = cli("train", "--recipe", f"{toy.folder / 'recipe.py'}:reverse", *texts)
    assert result.code == 3
    assert "does not fit into memory" in result.err and "a single pair of" in result.err


# ---- the update ----------------------------------------------------------------------------------------------------


def six_updates(
    monkeypatch: pytest.MonkeyPatch, failing: dict[int, str]
) -> tuple[ModelGradient, list[dict[str, Tensor]]]:
    """Return the weights and the states of Adam after six updates.

    failing: the updates in which memory runs out, "before" or "after" Adam has counted the update.
    """
    model = small_transformer(torch.float32)
    optimizer = adam(model.parameters())
    original = torch._fused_adam_
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    pending = [""]

    def hook(*arguments: Any) -> None:
        if pending[0] == "before":
            pending[0] = ""
            raise NO_MEMORY[1]

    def fused(*arguments: Any, **options: Any) -> None:
        if pending[0] == "after":
            pending[0] = ""
            raise NO_MEMORY[0]
        original(*arguments, **options)

    optimizer.register_step_pre_hook(hook)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "_fused_adam_", fused)
        for count in range(1, 7):
            gradients_for(model).of(micro_batches_of(*random_pairs(count, 6), 2), seed=count)
            pending[0] = failing.get(count, "")
            update(optimizer, count)
            assert not pending[0]
    return {name: p.detach().clone() for name, p in model.named_parameters()}, [*optimizer.state.values()]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("counts", [[1], [3], [1, 2, 6], [1, 2, 3, 4, 5, 6]], ids=str)
def test_an_update_that_runs_out_of_memory_is_made_once(
    when: str, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, states = six_updates(monkeypatch, dict.fromkeys(counts, when))
    expected, expected_states = six_updates(monkeypatch, {})
    assert all(values.equal(expected[name]) for name, values in weights.items())
    for state, expected_state in zip(states, expected_states, strict=True):
        assert all(values.equal(expected_state[name]) for name, values in state.items())
        assert state["step"] == 6


def test_an_update_is_tried_at_most_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def fused(*arguments: Any, **options: Any) -> None:
        raise NO_MEMORY[0]

    model = small_transformer()
    optimizer = adam(model.parameters())
    gradients_for(model).of(micro_batches_of(*random_pairs(1, 6), 2), seed=1)
    monkeypatch.setattr(torch, "_fused_adam_", fused)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(torch.OutOfMemoryError):
        update(optimizer, 1)
    assert all(p.equal(before[name]) for name, p in model.named_parameters())
