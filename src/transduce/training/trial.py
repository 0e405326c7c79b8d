"""A short trial of a model: the time of a step on this device, before any text is prepared."""

import dataclasses
import time

import numpy as np
import torch

from transduce.config.recipes.auto import TextSize, Trial
from transduce.config.schema import Config
from transduce.data.batches import Batch, collate
from transduce.data.vocabulary import CONTROLS
from transduce.model import devices
from transduce.model.transformer import parameter_count
from transduce.training.gradients import Gradients, update
from transduce.training.lora import freeze
from transduce.training.optimizer import optimizer_of
from transduce.training.task import task_of

SECONDS = 2.0  # of a trial, after the first steps
MOST_TOKENS = 4_000  # of a step of the trial on a CPU, on each side; the time of a longer one follows from it
SMALL = 512  # tokens of the first step, which shows whether the model is far too slow to wait for a whole one
SLOW = 8.0  # seconds of a whole step that no trial waits for
DECODED = 1.2  # time to translate and score a token, in the time that training takes for one


def run_trial(config: Config, text: TextSize, n_valid: int) -> Trial:
    """Train a model of `config` for about two seconds on random tokens, in sentences as long as the text's.

    n_valid: number of pairs that an evaluation will have.
    """
    device = devices.device()
    vocab_size = config.model.vocab_size or config.data.vocab_size
    output_size = config.model.tgt_vocab_size or vocab_size
    model_config = dataclasses.replace(config.model, vocab_size=vocab_size)
    task = task_of(config.train.task)
    model = task.build(dataclasses.replace(config, model=model_config)).to(device)
    freeze(model, config.train)
    gradients = Gradients(model, task, config.train, device, lambda lines: None)
    optimizer = optimizer_of(model, config.train)

    def seconds(tokens: int, n_steps: int = 1) -> float:
        batch = random_batch(tokens, max(1, round(text.mean_tokens)), output_size)
        times = []
        started_at = time.perf_counter()
        while len(times) < n_steps or (n_steps > 1 and time.perf_counter() - started_at < SECONDS):
            step_started_at = time.perf_counter()
            loss = gradients.of([batch], seed=len(times)).loss
            assert loss  # waits for a GPU
            update(optimizer, 1)
            optimizer.zero_grad()
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
            times.append(time.perf_counter() - step_started_at)
        return float(np.median(times))

    whole = config.data.batch_tokens if device.type != "cpu" else min(config.data.batch_tokens, MOST_TOKENS)
    seconds(SMALL)  # memory and code of the first step
    step = seconds(SMALL) * whole / SMALL
    if step < SLOW:
        seconds(whole)
        step = seconds(whole, 3)
    step *= config.data.batch_tokens / whole
    evaluation = DECODED * step / config.data.batch_tokens * n_valid * text.mean_tokens
    return Trial(step, evaluation, parameter_count(model))


def random_batch(tokens: int, length: int, vocab_size: int) -> Batch:
    """Return a batch of sentences of `length` tokens with EOS, with about `tokens` tokens on each side."""
    generator = np.random.default_rng(1)
    n = max(2, tokens // length)
    lengths = generator.integers(max(1, length - 1), length + 1, n)
    rows = [generator.integers(len(CONTROLS), vocab_size, size) for size in lengths]
    return collate(rows, rows)
