"""The cost of a training step: its FLOPs, and its time on a core of its own."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from transduce.config.schema import Config
from transduce.data.batches import Batches, DataPosition
from transduce.data.corpora import Corpus
from transduce.data.token_store import open_store
from transduce.data.tokenizer import Tokenizer
from transduce.model.build import build
from transduce.studies.trainings import read_config
from transduce.train import TranslationTask
from transduce.training.flops import step_flops
from transduce.training.gradients import Gradients
from transduce.training.halves import threads
from transduce.training.state import TrainingState

COUNTED = 16  # batches, evenly over an epoch, whose FLOPs are counted
ROUNDS, STEPS = 5, 10  # rounds of a measurement, and steps of each


def measure_costs(runs: Sequence[Path], corpus: Corpus) -> list[dict[str, Any]]:
    """Return for each training run the FLOPs of a step and of a target token, and the seconds of a step.

    flops_per_step, flops_per_target_token: means over `COUNTED` batches of the first epoch.
    seconds_per_step: processor seconds on one thread, in each of `ROUNDS` rounds. The runs take turns, so that another
    program on the machine delays all of them. No training may run beside.
    """
    costs = [_flops(run, corpus) for run in runs]
    with threads(1):
        steppers = [_Stepper(run, corpus) for run in runs]
        rounds = [[stepper.seconds() for stepper in steppers] for _ in range(ROUNDS)]
    seconds = [[round(times[i], 4) for times in rounds] for i in range(len(runs))]
    return [{**cost, "seconds_per_step": times} for cost, times in zip(costs, seconds, strict=True)]


def _batches(run: Path, corpus: Corpus) -> tuple[Config, Batches]:
    """Return the configuration and the batches of a run."""
    config, tokenizer = read_config(run), Tokenizer.load(run / "tokenizer.json")
    store = open_store(run / "data" / "train", [corpus], tokenizer)
    return config, Batches(store, tokenizer, config.data, seed=config.train.seed)


def _flops(run: Path, corpus: Corpus) -> dict[str, Any]:
    config, batches = _batches(run, corpus)
    size = len(batches.plan(0))
    model = build(config.model).train()
    flops, tokens = [], 0
    for index in sorted({size * i // COUNTED for i in range(COUNTED)}):
        micro_batches, _ = next(batches.stream(DataPosition(0, index)))
        flops.append(step_flops(model, micro_batches, config.train.label_smoothing))
        tokens += sum(int(batch.tgt_mask.sum()) for batch in micro_batches)
    return {"flops_per_step": round(mean(flops)), "flops_per_target_token": round(sum(flops) / tokens)}


class _Stepper:
    """A training that takes a few steps at a time, from new weights, and writes nothing."""

    def __init__(self, run: Path, corpus: Corpus) -> None:
        config, batches = _batches(run, corpus)
        torch.manual_seed(config.train.seed)
        self.state = TrainingState(build(config.model).train(), config.train, {})
        self.gradients = Gradients(
            self.state.model, TranslationTask(), config.train, torch.device("cpu"), lambda _: None
        )
        self.stream = batches.stream(DataPosition())
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
