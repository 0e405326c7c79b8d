"""The cost of checking the gradient norm of every step before the update.

    python benchmarks/gradient_norm.py

The script measures the share of the norm in a step of multi30k-tiny on one core, medians of 20 steps.
"""

import statistics
import time
from dataclasses import replace

import numpy as np
import torch
from torch.nn.utils import get_total_norm

from transduce.config.recipes.studies.multi30k import tiny
from transduce.data.batches import collate
from transduce.model.transformer import Transformer
from transduce.train import TranslationTask
from transduce.training.gradients import Gradients, update
from transduce.training.optimizer import adam

PIECES = 6_000
PAIRS = 136  # as many as in a batch of the recipe
TOKENS = 14  # a typical length
STEPS = 20


def main() -> None:
    torch.set_num_threads(1)
    config = tiny()
    model = Transformer(replace(config.model, vocab_size=PIECES))
    optimizer = adam(model.parameters(), config.train.adam_beta2)
    gradients = Gradients(model, TranslationTask(), config.train, torch.device("cpu"), print)
    rng = np.random.default_rng(1)
    src, tgt = ([rng.integers(4, PIECES, TOKENS) for _ in range(PAIRS)] for _ in range(2))
    batch = collate(src, tgt)
    steps = []
    norms = []
    for count in range(1, STEPS + 1):
        begin = time.perf_counter()
        gradients.of([batch], seed=count)
        update(optimizer, count)
        end = time.perf_counter()
        get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        steps.append(end - begin)
        norms.append(time.perf_counter() - end)
    step, norm = statistics.median(steps), statistics.median(norms)
    print(f"{1e3 * norm:.1f} ms of {1e3 * step:.0f} ms, {norm / step:.1%} of a step")


if __name__ == "__main__":
    main()
