"""The state of a training: a restored snapshot continues with the same bits."""

import dataclasses
from pathlib import Path

import pytest
import torch
from support.gradients import gradients_for, micro_batches_of, random_pairs, small_transformer
from torch import Tensor

from transduce.config.schema import ModelConfig, TrainConfig
from transduce.data.batches import DataPosition
from transduce.errors import UserError
from transduce.model.transformer import Transformer
from transduce.training.state import Checkpoint, Counters, Meter, TrainingState, move_average
from transduce.training.weights import weights

CONFIG = TrainConfig(max_steps=40, ema_decay=0.9, evaluate_every_steps=2, patience=3)
RECORD = {"texts": {"train": "key"}, "made_with": {"torch": "2"}}


def new_state(config: TrainConfig = CONFIG) -> TrainingState:
    return TrainingState(small_transformer(torch.float32), config, RECORD)


def train_step(state: TrainingState) -> None:
    """Train one step on pairs that depend only on the number of the step."""
    state.counters.step += 1
    state.optimizer.param_groups[0]["lr"] = 1e-2
    batches = micro_batches_of(*random_pairs(state.counters.step, 6), 2)
    state.update(gradients_for(state.model).of(batches, seed=state.counters.step))
    state.optimizer.zero_grad()


def copy_of(checkpoint: Checkpoint) -> Checkpoint:
    """Return a copy, because a snapshot may share memory with the state."""
    optimizer, ema = clones(checkpoint.optimizer), clones(checkpoint.ema or {})
    return Checkpoint(clones(checkpoint.weights), optimizer, ema, checkpoint.state)


def clones(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.clone() for name, values in tensors.items()}


def assert_equal(actual: Checkpoint, expected: Checkpoint) -> None:
    """Check that two snapshots have the same bits and the same JSON values."""
    for kind in ("weights", "optimizer", "ema"):
        tensors, others = getattr(actual, kind), getattr(expected, kind)
        assert tensors.keys() == others.keys() and tensors
        assert all(values.equal(others[name]) for name, values in tensors.items()), kind
    assert actual.state == expected.state


def test_a_restored_snapshot_is_equal_and_the_next_update_has_the_same_bits() -> None:
    """The counters include a skipped step: Adam counts updates, not steps."""
    original = new_state()
    for _ in range(3):
        train_step(original)
    original.counters.step += 1
    original.skip()
    train_step(original)
    original.note_scores({"loss": 2.5})
    original.position = DataPosition(epoch=2, index=7)
    original.counters = dataclasses.replace(original.counters, seconds=1.5, best_step=4, best_score=2.5)
    snapshot = original.snapshot()

    copy = new_state()
    with torch.no_grad():
        for parameter in copy.model.parameters():
            parameter.zero_()
    copy.restore(snapshot, Path("step-00000005"))
    assert_equal(copy.snapshot(), snapshot)
    assert copy.counters == original.counters and copy.counters.skipped == 1
    assert copy.position == original.position
    for state in (original, copy):
        train_step(state)
    assert_equal(copy.snapshot(), original.snapshot())
    assert not any(values.equal(snapshot.weights[name]) for name, values in weights(copy.model).items())


def test_a_snapshot_does_not_change_with_the_training() -> None:
    state = new_state()
    train_step(state)
    snapshot = state.snapshot()
    before = copy_of(snapshot)
    train_step(state)
    assert_equal(snapshot, before)


def test_a_snapshot_without_a_moving_average_restores_none() -> None:
    original = new_state(dataclasses.replace(CONFIG, ema_decay=None))
    train_step(original)
    copy = new_state()  # has its own average
    copy.restore(original.snapshot(), Path("checkpoint"))
    assert copy.ema is None and copy.snapshot().ema is None
    averages = copy.weights_to_evaluate()
    assert all(values.equal(averages[name]) for name, values in original.weights_to_evaluate().items())


def test_a_snapshot_without_a_counter_is_refused() -> None:
    state = new_state()
    train_step(state)
    snapshot = state.snapshot()
    del snapshot.state["skipped_in_a_row"]
    with pytest.raises(UserError, match="step-1: expected a checkpoint of this version .*; start a new run"):
        new_state().restore(snapshot, Path("step-1"))


def test_a_snapshot_stores_the_record() -> None:
    state = new_state()
    train_step(state)
    assert {name: state.snapshot().state[name] for name in RECORD} == RECORD


def test_only_evaluations_at_their_interval_count() -> None:
    state = new_state()
    for step, loss, is_best in ((2, 3.0, True), (4, 2.0, True), (5, 1.0, False), (6, 2.0, False), (8, 2.5, False)):
        state.counters.step = step
        assert state.is_best({"loss": loss}) == (is_best or step == 5)  # step 5 is out of turn, and does not count
        assert state.note_scores({"loss": loss}) == is_best
    assert (state.counters.best_step, state.counters.best_score) == (4, 2.0)
    assert not state.is_out_of_patience
    state.counters.step = 10
    state.note_scores({"loss": 2.1})
    assert state.is_out_of_patience and state.is_finished


def test_a_run_is_finished_after_its_last_step() -> None:
    state = new_state()
    state.counters = Counters(step=39)
    assert not state.is_finished
    state.counters = Counters(step=40)
    assert state.is_finished


def test_the_meter_restarts_only_at_its_interval() -> None:
    state = new_state(dataclasses.replace(CONFIG, log_every_steps=2))
    train_step(state)
    loss = state.report(lr=0.1)["loss"]
    assert state.report(lr=0.1)["loss"] == loss and state.meter.tgt_tokens > 0
    train_step(state)
    state.report(lr=0.1)
    assert state.meter.tgt_tokens == 0


def test_the_share_of_the_processor_is_its_time_over_threads_and_clock() -> None:
    state = new_state()
    state.meter = Meter(threads=2)
    train_step(state)
    assert "processor_share" not in state.report(lr=0.1)
    state.meter.add_time(3.0, 4.0)
    state.meter.add_time(1.0, 1.0)
    assert state.report(lr=0.1)["processor_share"] == 0.62
    state.meter.threads = 0  # a GPU
    assert "processor_share" not in state.report(lr=0.1)


def test_a_nonfinite_parameter_is_named() -> None:
    state = new_state()
    assert state.nonfinite_parameter() is None
    name, parameter = [*state.model.named_parameters()][3]
    parameter.data.view(-1)[0] = float("inf")
    assert state.nonfinite_parameter() == name


def test_the_weights_to_evaluate_are_the_moving_average() -> None:
    state = new_state()
    train_step(state)
    assert state.ema is not None
    assert all(values.equal(state.ema[name]) for name, values in state.weights_to_evaluate().items())
    without = new_state(dataclasses.replace(CONFIG, ema_decay=None))
    train_step(without)
    model_weights = weights(without.model)
    assert all(values.equal(model_weights[name]) for name, values in without.weights_to_evaluate().items())


def test_the_moving_average_follows_its_definition() -> None:
    """The expected values are computed in fp64."""
    model = Transformer(ModelConfig(vocab_size=9, d_model=4, n_layers=1, n_heads=1, d_ff=4))
    ema = weights(model)
    expected = {name: value.double() for name, value in ema.items()}
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        move_average(ema, model, 0.9)
        expected = {n: 0.9 * expected[n] + 0.1 * p.detach().double() for n, p in model.named_parameters()}
    for name in ema:
        torch.testing.assert_close(ema[name].double(), expected[name], rtol=1e-5, atol=1e-6)
