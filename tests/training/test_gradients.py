"""The gradient of a step: the same however the batch is cut, also where memory runs out; and what is not finite."""

import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.toy_task import CommandResult, Toy
from torch import Tensor, nn

from transduce.config.schema import ModelConfig, TrainConfig
from transduce.data.batches import Batch, collate
from transduce.errors import is_out_of_memory
from transduce.model.transformer import Transformer
from transduce.train import TranslationTask
from transduce.training.gradients import Gradient, Gradients, dropout_seed, halves, size, update
from transduce.training.loss import label_smoothed_cross_entropy
from transduce.training.optimizer import adam

ModelGradient = dict[str, Tensor]


def model_of(
    dtype: torch.dtype = torch.float64, *, dropout: float = 0.0, attention_dropout: float = 0.0
) -> Transformer:
    torch.manual_seed(1)
    config = ModelConfig(vocab_size=40, d_model=16, n_layers=2, n_heads=2, d_ff=32, dropout=dropout)
    return Transformer(config).to(dtype)


def ids(seed: int, count: int, longest: int = 11) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Both sides of so many pairs of different lengths."""
    rng = np.random.default_rng(seed)
    src, tgt = ([rng.integers(4, 40, rng.integers(1, longest + 1)) for _ in range(count)] for _ in range(2))
    return src, tgt


def parts(src: list[np.ndarray], tgt: list[np.ndarray], count: int) -> list[Batch]:
    """The pairs in so many micro-batches, which differ in size and in padding."""
    return [collate(src[part::count], tgt[part::count], np.arange(len(src))[part::count]) for part in range(count)]


def gradients_for(model: Transformer, said: list[str] | None = None) -> Gradients:
    say = said.extend if said is not None else lambda lines: None
    return Gradients(model, TranslationTask(), TrainConfig(label_smoothing=0.1), torch.device("cpu"), say)


def taken(model: Transformer) -> ModelGradient:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def by_torch(model: Transformer, batch: Batch) -> ModelGradient:
    """The gradient of the mean loss of a target token, from all logits of the whole batch at once."""
    model.zero_grad()
    logits = model(batch.src, batch.src_mask, batch.tgt_in)[batch.tgt_mask]
    targets = batch.tgt_out[batch.tgt_mask]
    (label_smoothed_cross_entropy(logits, targets, 0.1) / len(targets)).backward()
    return taken(model)


def assert_near(found: ModelGradient, expected: ModelGradient, tolerance: float) -> None:
    """Each parameter's gradient, relative to its own norm."""
    assert found.keys() == expected.keys()
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for name, gradient in expected.items():
        # What is added to every key shifts all scores of a query alike: its exact gradient is 0, its norm only noise.
        norm = largest if name.endswith("w_k.bias") else float(gradient.norm())
        assert (found[name] - gradient).norm() <= tolerance * norm, name


# ---- accumulation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_micro_batches_give_the_gradient_of_the_whole_batch(count: int, dtype: torch.dtype, tolerance: float) -> None:
    model = model_of(dtype)
    for seed in range(3):
        src, tgt = ids(seed, 13)
        found = gradients_for(model).of(parts(src, tgt, count), seed=1)
        in_parts = taken(model)
        assert in_parts.keys() == dict(model.named_parameters()).keys()
        assert_near(in_parts, by_torch(model, collate(src, tgt)), tolerance)
        assert found.src_tokens == sum(len(side) + 1 for side in src)
        assert found.tgt_tokens == sum(len(side) + 1 for side in tgt)
        norm = math.sqrt(sum(float(gradient.double().norm()) ** 2 for gradient in in_parts.values()))
        assert found.norm == pytest.approx(norm, rel=1e-5)


def test_nothing_is_left_of_the_step_before() -> None:
    model = model_of()
    src, tgt = ids(1, 5)
    gradients = gradients_for(model)
    found = gradients.of(parts(src, tgt, 2), seed=1)
    once = taken(model)
    again = gradients.of(parts(src, tgt, 2), seed=1)
    assert (again.loss, again.norm) == (found.loss, found.norm)
    assert all(gradient.equal(once[name]) for name, gradient in taken(model).items())


def test_dropout_is_drawn_by_the_seed_alone() -> None:
    model = model_of(dropout=0.3)
    batches = parts(*ids(1, 6), 2)
    norms = []
    for seed in (1, 2, 1):
        torch.rand(seed)
        norms.append(gradients_for(model).of(batches, seed=seed).norm)
    assert norms[0] == norms[2] != norms[1]


def test_every_step_and_rank_has_its_own_dropout() -> None:
    seeds = {dropout_seed(*key) for key in product(range(3), range(1, 200), range(4))}
    assert len(seeds) == 3 * 199 * 4
    assert all(0 <= seed < 1 << 64 for seed in seeds)
    torch.manual_seed(max(seeds))
    assert dropout_seed((1 << 63) - 1, 10**9, 10**4) == dropout_seed((1 << 63) - 1, 10**9, 10**4)


# ---- out of memory -----------------------------------------------------------------------------------------------

NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError("Unable to allocate 9.00 GiB for an array"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("could not create a primitive"),
    RuntimeError("std::bad_alloc"),
]


@contextmanager
def watched(model: nn.Module, event: Callable[[str, int], None]) -> Iterator[None]:
    """Call `event` with the positions of each use of a layer: "forward" before, "backward" when its gradient comes."""

    def before(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        event("forward", given[0].shape[:2].numel())

    def after(module: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> None:
        found.register_hook(lambda gradient: event("backward", found.shape[:2].numel()))

    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding)]
    hooks = [module.register_forward_pre_hook(before) for module in layers]
    hooks += [module.register_forward_hook(after) for module in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def count_events(model: Transformer, batches: list[Batch]) -> int:
    seen: list[str] = []
    with watched(model, lambda kind, positions: seen.append(kind)):
        gradients_for(model).of(batches, seed=1)
    assert seen.count("forward") > 50 and seen.count("backward") > 50
    return len(seen)


def test_memory_may_run_out_at_any_moment() -> None:
    """Sixty moments from the first module of the first micro-batch to the last gradient of the last one."""
    model = model_of()
    src, tgt = ids(1, 12)
    batches = parts(src, tgt, 3)
    expected = by_torch(model, collate(src, tgt))
    whole = gradients_for(model).of(batches, seed=1)
    moments = np.linspace(0, count_events(model, batches) - 1, 60).astype(int)
    assert len(set(moments)) == 60
    for moment, problem in zip(moments, NO_MEMORY * 10, strict=True):
        left = [moment]

        def event(kind: str, positions: int, left: list[int] = left, problem: Any = problem) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise problem

        said: list[str] = []
        with watched(model, event):
            found = gradients_for(model, said).of(batches, seed=1)
        assert left[0] < -1
        assert_near(taken(model), expected, 1e-6)
        assert found.norm == pytest.approx(whole.norm) and found.loss == pytest.approx(whole.loss)
        assert found.tgt_tokens == whole.tgt_tokens
        assert len(said) == 1 and "out of memory" in said[0]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize("limit", [150, 60, 30, 13])
def test_a_batch_is_cut_again_and_again(kind: str, limit: int, dtype: torch.dtype, tolerance: float) -> None:
    """A machine with room for so many positions in a layer; of the pairs, one is far longer than the others."""
    model = model_of(dtype)
    src, tgt = ids(2, 40)
    src[7] = np.arange(4, 4 + min(limit, 36) - 1)

    def event(now: str, positions: int) -> None:
        if now == kind and positions > limit:
            raise torch.OutOfMemoryError

    said: list[str] = []
    gradients = gradients_for(model, said)
    with watched(model, event):
        gradients.of([collate(src, tgt)], seed=1)
    assert_near(taken(model), by_torch(model, collate(src, tgt)), tolerance)
    assert len(said) >= 2


def test_what_did_not_fit_is_not_tried_again() -> None:
    model = model_of()
    sizes: list[int] = []
    failed: list[int] = []
    tried = TranslationTask.loss

    def loss(model: Transformer, batch: Batch, label_smoothing: float, precision: str) -> Tensor:
        sizes.append(size(batch))
        if size(batch) > 120:
            failed.append(size(batch))
            raise torch.OutOfMemoryError
        return tried(model, batch, label_smoothing, precision)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationTask, "loss", staticmethod(loss))
        gradients = gradients_for(model)
        for seed in range(20):
            src, tgt = ids(seed, 30)
            gradients.of(parts(src, tgt, 2), seed=1)
            if seed < 19:
                done = len(failed)
            assert_near(taken(model), by_torch(model, collate(src, tgt)), 1e-6)
    assert max(sizes) > 240 and 1 < len(failed) < 10
    assert failed == sorted(failed, reverse=True)
    assert len(failed) == done


def test_with_dropout_the_step_is_that_of_the_batch_cut_from_the_beginning() -> None:
    """Though what failed had drawn already."""
    model = model_of(dropout=0.3)
    batches = parts(*ids(3, 12), 2)
    left = [count_events(model, batches) - 2]  # almost at the end of the second micro-batch

    def event(kind: str, positions: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise torch.OutOfMemoryError

    gradients, other = gradients_for(model), gradients_for(model)
    with watched(model, event):
        gradients.of(batches, seed=5)
    after_failure = taken(model)
    assert left[0] < 0 and gradients.too_large == size(batches[1])
    other.too_large = gradients.too_large
    other.of(batches, seed=5)
    assert all(gradient.equal(after_failure[name]) for name, gradient in taken(model).items())
    other.of(batches, seed=6)
    assert not any(gradient.equal(after_failure[name]) for name, gradient in taken(model).items())


def test_one_pair_that_does_not_fit_ends_it() -> None:
    model = model_of()
    src, tgt = ids(2, 9)

    def event(kind: str, positions: int) -> None:
        if positions > 4:
            raise torch.OutOfMemoryError

    with watched(model, event), pytest.raises(MemoryError, match="a single pair of .* does not fit .* data.max_tokens"):
        gradients_for(model).of([collate(src, tgt)], seed=1)


def test_other_errors_are_not_taken_for_lack_of_memory() -> None:
    model = model_of()

    def event(kind: str, positions: int) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with watched(model, event), pytest.raises(RuntimeError, match="mat1 and mat2"):
        gradients_for(model).of(parts(*ids(2, 9), 1), seed=1)


@pytest.mark.parametrize("problem", NO_MEMORY, ids=lambda problem: str(problem)[:20])
def test_every_way_to_say_it_is_known(problem: Exception) -> None:
    assert is_out_of_memory(problem)


@pytest.mark.parametrize(
    "problem", [RuntimeError("nan"), ValueError("out of memory"), OSError("can't allocate memory")]
)
def test_what_is_no_lack_of_memory(problem: Exception) -> None:
    assert not is_out_of_memory(problem)


REAL = """
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
src, tgt = ([rng.integers(4, 500, rng.integers(20, 100)) for _ in range(256)] for _ in range(2))
said = []
def gradients():
    return Gradients(model, TranslationTask(), TrainConfig(), torch.device("cpu"), said.extend)
def gradient():
    found = gradients().of([collate(src, tgt)], seed=1)
    return found.loss, [p.grad.clone() for p in model.parameters()]
gradients().of([collate(src[:2], tgt[:2])], seed=1)
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (96 << 20), resource.RLIM_INFINITY))
loss, found = gradient()
cuts = len(said)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
whole, expected = gradient()
assert len(said) == cuts, "it did not fit without a limit"
worst = max(float((a - b).norm() / b.norm()) for a, b, (name, _) in zip(found, expected, model.named_parameters())
            if not name.endswith("w_k.bias"))
print(cuts, abs(loss - whole) / whole, worst)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS")
def test_a_process_that_may_take_no_more_memory() -> None:
    """Nothing simulated: 96 MiB more than the process has, for a batch that takes several times as much."""
    one_arena = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # each is 64 MiB of addresses, had by threads that have to wait
    done = subprocess.run([sys.executable, "-c", REAL], env=one_arena, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    cuts, loss, worst = map(float, done.stdout.split())
    assert cuts >= 1
    assert loss < 1e-6 and worst < 1e-5


def test_the_command_says_so_and_exits_with_3(
    toy: Toy, tmp_path: Any, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loss(*given: Any) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(TranslationTask, "loss", staticmethod(loss))
    texts = ["--train", *toy.train, "--valid", *toy.valid, "--out", tmp_path / "run"]
    done = cli("train", "--recipe", f"{toy.folder / 'recipe.py'}:reverse", *texts)
    assert done.code == 3
    assert "does not fit into memory" in done.err and "a single pair of" in done.err


# ---- cutting -----------------------------------------------------------------------------------------------------


@given(lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=12))
def test_halves_are_the_batch(lengths: list[tuple[int, int]]) -> None:
    """As if each half had been collated from its own pairs."""
    src, tgt = ([np.arange(4, 4 + pair[side]) for pair in lengths] for side in (0, 1))
    numbers = np.arange(100, 100 + len(lengths))
    middle = (len(lengths) + 1) // 2
    for part, rows in zip(halves(collate(src, tgt, numbers)), (slice(middle), slice(middle, None)), strict=True):
        expected = collate(src[rows], tgt[rows], numbers[rows])
        for field in ("src", "src_mask", "tgt_in", "tgt_out", "tgt_mask"):
            assert getattr(part, field).equal(getattr(expected, field)), field
        assert part.pairs.tolist() == expected.pairs.tolist()
        assert size(part) < size(collate(src, tgt))


# ---- the update --------------------------------------------------------------------------------------------------


def updated(monkeypatch: pytest.MonkeyPatch, failing: dict[int, str]) -> tuple[ModelGradient, list[dict[str, Tensor]]]:
    """Weights and Adam's state after six updates, in some of which memory runs out, "before" or "after" counting."""
    model = model_of(torch.float32)
    optimizer = adam(model.parameters())
    real = torch._fused_adam_
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    pending = [""]

    def hook(*given: Any) -> None:
        if pending[0] == "before":
            pending[0] = ""
            raise NO_MEMORY[1]

    def fused(*given: Any, **more: Any) -> None:
        if pending[0] == "after":
            pending[0] = ""
            raise NO_MEMORY[0]
        real(*given, **more)

    optimizer.register_step_pre_hook(hook)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "_fused_adam_", fused)
        for count in range(1, 7):
            gradients_for(model).of(parts(*ids(count, 6), 2), seed=count)
            pending[0] = failing.get(count, "")
            update(optimizer, count)
            assert not pending[0]
    return {name: p.detach().clone() for name, p in model.named_parameters()}, [*optimizer.state.values()]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("counts", [[1], [3], [1, 2, 6], [1, 2, 3, 4, 5, 6]], ids=str)
def test_an_update_for_which_memory_runs_out_is_done_once(
    when: str, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, states = updated(monkeypatch, dict.fromkeys(counts, when))
    expected, expected_states = updated(monkeypatch, {})
    assert all(values.equal(expected[name]) for name, values in weights.items())
    for state, wanted in zip(states, expected_states, strict=True):
        assert all(values.equal(wanted[name]) for name, values in state.items())
        assert state["step"] == 6


def test_an_update_is_tried_twice_and_not_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def fused(*given: Any, **more: Any) -> None:
        raise NO_MEMORY[0]

    model = model_of()
    optimizer = adam(model.parameters())
    gradients_for(model).of(parts(*ids(1, 6), 2), seed=1)
    monkeypatch.setattr(torch, "_fused_adam_", fused)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(torch.OutOfMemoryError):
        update(optimizer, 1)
    assert all(p.equal(before[name]) for name, p in model.named_parameters())


# ---- what is not finite ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", ["loss", "forward", "gradient", "weight"])
def test_one_number_that_is_not_finite_is_seen(place: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one row, one position, one element, of one of four micro-batches."""
    model = model_of(torch.float32)
    rng = random.Random(f"{place} {value}")
    chosen = rng.choice([*model.parameters()])
    real, calls = TranslationTask.loss, [0]

    def loss(*given: Any) -> Tensor:
        calls[0] += 1
        return real(*given) + (value if calls[0] == 3 else 0.0)

    def spoil(values: Tensor) -> Tensor:
        spoiled = values.clone()
        spoiled.view(-1)[rng.randrange(values.numel())] = value
        return spoiled

    if place == "loss":
        monkeypatch.setattr(TranslationTask, "loss", staticmethod(loss))
    elif place == "forward":
        layer = rng.choice([module for module in model.modules() if isinstance(module, nn.LayerNorm)])
        layer.register_forward_hook(lambda module, given, found: spoil(found))
    elif place == "gradient":
        chosen.register_hook(spoil)
    else:
        chosen.data = spoil(chosen.data)
    assert not gradients_for(model).of(parts(*ids(1, 24), 4), seed=1).is_finite


def test_finite_is_both_loss_and_norm() -> None:
    for loss, norm in combinations([1.0, 2.0, float("nan"), float("inf")], 2):
        assert Gradient(torch.tensor([loss, norm]), 1, 1).is_finite == (loss + norm == 3.0)


def test_what_would_overflow_adam_is_not_finite() -> None:
    """A gradient whose square is beyond fp32 would make a second moment infinite, for ever."""
    model = model_of(torch.float32)
    model.output.weight.register_hook(lambda gradient: gradient + 2e19)
    found = gradients_for(model).of(parts(*ids(1, 6), 1), seed=1)
    assert not found.is_finite
