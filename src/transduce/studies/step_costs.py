"""The cost of a training step: its FLOPs, and its time on a core of its own."""

import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

import torch

from transduce.data.batches import DataPosition
from transduce.model.build import build
from transduce.storage import run_folder
from transduce.storage.run_request import TrainRequest
from transduce.studies.results import encode_config
from transduce.train import TranslationTask, prepare
from transduce.training.flops import step_flops
from transduce.training.gradients import Gradients
from transduce.training.halves import threads
from transduce.training.run import Run
from transduce.training.state import TrainingState

COUNTED = 16  # batches, evenly over an epoch, whose FLOPs are counted
ROUNDS, STEPS = 5, 10  # rounds of a measurement, and steps of each


def measure_costs(requests: Sequence[TrainRequest]) -> list[dict[str, Any]]:
    """Return for each training its configuration, the FLOPs of a step and of a target token, and the seconds of a step.

    requests: each with a folder of its own, in which `train` would start. No weights are written there.

    flops_per_step, flops_per_target_token: means over `COUNTED` batches of the first epoch.
    seconds_per_step: processor seconds on one thread, in each of `ROUNDS` rounds. The trainings take turns, so that
    another program on the machine delays all of them. Raises UserError if a training cannot start.
    """
    with threads(1):
        prepared = [_prepare(request) for request in requests]
        steppers = [_Stepper(*one) for one in prepared]
        rounds = [[stepper.seconds() for stepper in steppers] for _ in range(ROUNDS)]
    seconds = [[round(times[i], 4) for times in rounds] for i in range(len(requests))]
    return [
        {"config": encode_config(run.config), **_flops(run), "seconds_per_step": times}
        for (run, _), times in zip(prepared, seconds, strict=True)
    ]


def _prepare(request: TrainRequest) -> tuple[Run, TrainingState]:
    request.check()
    with run_folder.exclusive(request.out):
        return prepare(request, TranslationTask())


def _flops(run: Run) -> dict[str, Any]:
    size = len(run.batches.plan(0))
    model = build(run.config.model).train()
    flops, tokens = [], 0
    for index in sorted({size * i // COUNTED for i in range(COUNTED)}):
        micro_batches, _ = next(run.batches.stream(DataPosition(0, index)))
        flops.append(step_flops(model, micro_batches, run.config.train.label_smoothing))
        tokens += sum(int(batch.tgt_mask.sum()) for batch in micro_batches)
    return {"flops_per_step": round(mean(flops)), "flops_per_target_token": round(sum(flops) / tokens)}


class _Stepper:
    """A prepared training that takes a few steps at a time, and writes nothing."""

    def __init__(self, run: Run, state: TrainingState) -> None:
        self.state = state
        self.state.model.train()
        self.gradients = Gradients(state.model, run.task, run.config.train, torch.device("cpu"), lambda _: None)
        self.stream = run.batches.stream(DataPosition())
        self._step()  # the first step compiles kernels and allocates memory

    def seconds(self) -> float:
        """Take `STEPS` steps, and return the processor seconds of one."""
        started_at = time.process_time()
        for _ in range(STEPS):
            self._step()
        return (time.process_time() - started_at) / STEPS

    def _step(self) -> None:
        micro_batches, _ = next(self.stream)
        self.state.update(self.gradients.of(micro_batches, seed=1))
        self.state.optimizer.zero_grad()
