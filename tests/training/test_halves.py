"""Two threads, each with a half of a micro-batch: the same gradient, and the same bits every time."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.gradients import (
    assert_near,
    expected_gradient,
    gradient_of,
    gradients_for,
    micro_batches_of,
    random_pairs,
    small_transformer,
)
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from transduce.config.schema import ModelConfig
from transduce.model.build import build
from transduce.model.dropout import Dropout
from transduce.model.transformer import Transformer
from transduce.training.gradients import Gradients, update
from transduce.training.halves import Workers, count
from transduce.training.optimizer import adam

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_one_part(model: nn.Module) -> Gradients:
    """Return the `Gradients` of a process with one thread."""
    torch.set_num_threads(1)
    gradients = gradients_for(model)  # pyright: ignore[reportArgumentType]
    torch.set_num_threads(2)
    return gradients


@pytest.mark.parametrize("n_pairs", [1, 2, 7])
def test_halves_have_the_gradient_of_the_whole_batch(n_pairs: int) -> None:
    src, tgt = random_pairs(3, n_pairs)
    (batch,) = micro_batches_of(src, tgt, 1)
    model = small_transformer()
    expected = expected_gradient(model, batch)
    gradients = gradients_for(model)
    assert len(gradients.workers.models) == 2
    gradients.of([batch], seed=1)
    assert_near(gradient_of(model), expected, 1e-12)
    figures = gradients.of([batch], seed=1)  # starts from no gradient
    assert_near(gradient_of(model), expected, 1e-12)
    assert figures.loss == pytest.approx(in_one_part(model).of([batch], seed=1).loss, rel=1e-12)


def test_micro_batches_in_halves_add_up() -> None:
    src, tgt = random_pairs(4, 9)
    model = small_transformer()
    (whole,) = micro_batches_of(src, tgt, 1)
    expected = expected_gradient(model, whole)
    gradients_for(model).of(micro_batches_of(src, tgt, 3), seed=1)
    assert_near(gradient_of(model), expected, 1e-12)


def test_dropout_gives_the_same_bits_every_time_and_other_masks_to_each_half() -> None:
    model = small_transformer(torch.float32, dropout=0.3)
    gradients, batches = gradients_for(model), micro_batches_of(*random_pairs(5, 24), 2)
    gradients.of(batches, seed=7)
    expected = gradient_of(model)
    for _ in range(5):
        gradients.of(batches, seed=7)
        assert all(values.equal(expected[name]) for name, values in gradient_of(model).items())
    gradients.of(batches, seed=8)
    assert not any(values.equal(expected[name]) for name, values in gradient_of(model).items())
    seeds = [generator.initial_seed() for generator in gradients.workers.generators]
    assert len({*seeds}) == 2


def test_copies_follow_an_update_of_the_weights() -> None:
    model = small_transformer()
    gradients, batches = gradients_for(model), micro_batches_of(*random_pairs(6, 8), 1)
    gradients.of(batches, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    gradients.of(batches, seed=1)
    computed = gradient_of(model)
    assert_near(computed, expected_gradient(model, batches[0]), 1e-12)


def test_each_worker_has_its_share_of_the_threads() -> None:
    workplaces: list[tuple[str, int]] = []
    workers = Workers(small_transformer(), 2)
    barrier = threading.Barrier(2, timeout=30)

    def work(model: nn.Module, part: object) -> None:
        workplaces.append((threading.current_thread().name, torch.get_num_threads()))
        barrier.wait()  # passes only if both run at the same time

    workers.run(work, [None, None])  # pyright: ignore[reportArgumentType]
    assert {threads for _, threads in workplaces} == {1} and len({name for name, _ in workplaces}) == 2
    assert torch.get_num_threads() == 2


def test_no_product_and_no_update_waits_for_all_threads() -> None:
    model, threads = small_transformer(), dict[str, int]()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = function.overloadpacket.__name__
            if not (isinstance(args[0], torch.Tensor) and args[0].dim() == 0):
                threads[name] = max(threads.get(name, 0), torch.get_num_threads())
            return function(*args, **(kwargs or {}))

    (batch,) = micro_batches_of(*random_pairs(3, 8), 1)
    gradients, optimizer = gradients_for(model), adam(model.parameters())
    gradients.of([batch], seed=1)  # the first call also examines the machine
    with Watch():
        gradients.of([batch], seed=1)
        update(optimizer, 1)
    assert {"mm", "add_", "linalg_vector_norm", "_fused_adam_"} <= threads.keys()
    assert {threads[name] for name in ("mm", "add_", "linalg_vector_norm", "_fused_adam_")} == {1}, threads


def test_a_failure_in_a_half_is_raised() -> None:
    workers = Workers(small_transformer(), 2)

    def work(model: nn.Module, part: str) -> None:
        if part == "second":
            raise RuntimeError("of the second half")

    with pytest.raises(RuntimeError, match="of the second half"):
        workers.run(work, ["first", "second"])  # pyright: ignore[reportArgumentType]


def test_a_model_with_another_generator_is_not_cut() -> None:
    model = small_transformer()
    assert count(model, CPU) == 2
    assert count(model, torch.device("cuda")) == 1
    recurrent = ModelConfig(kind="recurrent", vocab_size=40, d_model=16, n_layers=2, dropout=0.1)
    assert count(build(recurrent), CPU) == 1
    assert count(build(replace(recurrent, dropout=0.0)), CPU) == 2
    torch.set_num_threads(1)
    assert count(model, CPU) == 1


def test_every_dropout_of_the_transformer_draws_from_the_generator_of_its_thread() -> None:
    """torch.nn.Dropout would draw from the global generator, and the bits would depend on the threads."""
    config = ModelConfig(vocab_size=40, d_model=16, n_layers=1, n_heads=2, d_ff=32, attention_dropout=0.2)
    model = Transformer(replace(config, ffn_dropout=0.2, dropout=0.2))
    assert any(isinstance(module, Dropout) for module in model.modules())
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
    gradients, batches = gradients_for(model), micro_batches_of(*random_pairs(5, 24), 1)
    gradients.of(batches, seed=7)
    expected = gradient_of(model)
    for _ in range(5):
        gradients.of(batches, seed=7)
        assert all(values.equal(expected[name]) for name, values in gradient_of(model).items())
