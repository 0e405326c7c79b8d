"""Scaling laws of one text: the losses of small language models over parameters and tokens, and laws fitted to them.

    shapes x budgets -> trainings -> results.json -> fits (`scaling_fit.py`) -> report

A budget is a number of tokens, of which a training reads each once. Each training has a learning rate that rises in its
first tenth and falls to 0 at its own end: the loss in the middle of a longer training is higher (Hoffmann et al. 2022,
section 3.1). All budgets of a seed are the beginning of one order of segments.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor
from torch.nn import functional as F

from transduce.evaluation.study_report import Report
from transduce.family.configs import DecoderConfig
from transduce.family.decoder_only import DecoderOnly
from transduce.model.transformer import parameter_count
from transduce.studies.results import Cost, Figures, Loss, PositiveInt, Results, Study, figures_type, settings_type
from transduce.studies.runner import CellTask, in_pool, print_line, run_tasks, timed
from transduce.studies.scaling_fit import RESAMPLES
from transduce.studies.scaling_report import fit_laws, report
from transduce.studies.small_models import SegmentSizes, Streams, hashes, perplexities, read_streams, train_small
from transduce.training.flops import flops_per_token

SHAPES = ((2, 32), (3, 48), (4, 64), (4, 96), (5, 128), (6, 160), (6, 208))  # layers and widths
D_K = 16  # the width of a head
SEED = 1
LARGEST_GRADIENT = 1.0  # a larger norm is scaled down to this one


@dataclass(frozen=True)
class SweepTraining:
    """A training: the layers and the width of its model, and the tokens that it reads."""

    n_layers: int
    d_model: int
    tokens: int

    @property
    def row(self) -> str:
        """The shape as a word: layers x width."""
        return f"{self.n_layers}x{self.d_model}"

    @property
    def name(self) -> str:
        return f"{self.row}-{self.tokens}"


@dataclass(frozen=True)
class Sweep:
    """The trainings of the study.

    shapes: as `SHAPES`. budgets: tokens, multiples of a batch. segment: tokens of a row. rows: of a batch.
    evaluated: maximum number of tokens of the validation text. peak_rate: the highest learning rate, times d_model.
    """

    shapes: Annotated[tuple[tuple[PositiveInt, PositiveInt], ...], Meta(min_length=1)] = SHAPES
    budgets: Annotated[tuple[PositiveInt, ...], Meta(min_length=1)] = tuple(262_144 * 2**i for i in range(5))
    vocab_size: PositiveInt = 1_000
    segment: PositiveInt = 128
    rows: PositiveInt = 8
    evaluated: PositiveInt = 65_536
    # Trainings of 128 to 1,024 steps with widths of 32, 64 and 192 gave this rate. One rate times sqrt(d_model), as in
    # eq. 3, was too low for the smallest of them, or too high for the largest.
    peak_rate: Cost = 0.35

    def trainings(self) -> list[SweepTraining]:
        """Return all trainings, those with the most work first: two jobs then end at about the same time."""
        trainings = [SweepTraining(*shape, tokens) for shape in self.shapes for tokens in self.budgets]
        return sorted(trainings, key=lambda training: -training.n_layers * training.d_model**2 * training.tokens)


SWEEP = Sweep()

# A training. row: layers x width. embeddings: parameters of tokens and positions.
TRAINING = figures_type(
    *("row", "steps", "parameters", "seconds", "cpu_seconds"),
    tokens=PositiveInt,
    embeddings=PositiveInt,
    loss=Loss,
    flops=Cost,
)
STUDY = Study("scaling", lambda name, settings: [TRAINING], figures_type(sweep=settings_type(Sweep)))

# ---- the study ---------------------------------------------------------------------------------------------------


def run_scaling(
    train: Path, valid: Path, out: Path, *, jobs: int | None = None, sweep: Sweep = SWEEP, resamples: int = RESAMPLES
) -> Results:
    """Train the models that are not yet in OUT/results.json, fit the laws, and write the report.

    train, valid: texts. jobs: number of trainings at the same time, each on one thread; None: one for each core.
    Raises UserError for unusable texts. Raises the errors of `runner.run_cells`, too.
    """
    results = STUDY.open(out, {**hashes(train, valid), "sweep": sweep})
    trainings = sweep.trainings()

    def prepare() -> list[CellTask]:
        least = (max(sweep.budgets) + 1, sweep.segment + 1)  # no training reads a token twice
        streams = read_streams(train, valid, sweep.vocab_size, least)
        return [
            CellTask(
                cell.name,
                {"row": cell.row, "tokens": cell.tokens},
                partial(timed, train_and_evaluate, cell, sweep, streams),
            )
            for cell in trainings
        ]

    def fitted_report(results: Results) -> Report:
        print_line("fitting the laws ...")
        return report(results, fit_laws(results, resamples))

    return run_tasks([cell.name for cell in trainings], prepare, in_pool(jobs), results, fitted_report)


# ---- a training --------------------------------------------------------------------------------------------------


def build(training: SweepTraining, sweep: Sweep) -> DecoderOnly:
    """Return the model of a training with random weights: GPT-2's form."""
    torch.manual_seed(SEED)
    config = DecoderConfig(
        vocab_size=sweep.vocab_size,
        d_model=training.d_model,
        n_layers=training.n_layers,
        n_heads=training.d_model // D_K,
        positions="learned",
        max_positions=sweep.segment,
        dropout=0.0,
    )
    return DecoderOnly(config)


def embedding_count(model: DecoderOnly) -> int:
    """Return the number of parameters of the embeddings of tokens (also the output) and of positions."""
    return parameter_count(model.embedding) + parameter_count(model.positions)


def batches(ids: Tensor, sweep: Sweep, tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets (R,T) until `tokens` tokens: segments of the text in a random order, each once."""
    starts = torch.arange((len(ids) - 1) // sweep.segment) * sweep.segment
    starts = starts[torch.randperm(len(starts), generator=torch.Generator().manual_seed(SEED))]
    for rows in starts[: tokens // sweep.segment].split(sweep.rows):
        segments = ids[rows[:, None] + torch.arange(sweep.segment + 1)]
        yield segments[:, :-1], segments[:, 1:]


def learning_rate(step: int, n_steps: int) -> float:
    """Return the learning rate of step 1, 2, ... over the highest: up in the first tenth, then down, both linearly.

    It is above 0 in the first step and in the last.
    """
    warmup = max(1, n_steps // 10)
    return min(step / warmup, (n_steps + 1 - step) / (n_steps + 1 - warmup))


def train_and_evaluate(training: SweepTraining, sweep: Sweep, streams: Streams) -> Figures:
    """Return the figures of a training. Raises UserError if its loss is not finite."""
    model = build(training, sweep)
    n_steps = training.tokens // (sweep.rows * sweep.segment)

    def losses() -> Iterator[Tensor]:
        for inputs, targets in batches(streams.train, sweep, training.tokens):
            yield F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def rate(step: int) -> float:
        return sweep.peak_rate / training.d_model * learning_rate(step, n_steps)

    train_small(model, losses(), rate, largest_gradient=LARGEST_GRADIENT)
    sizes = SegmentSizes(segment=sweep.segment, lengths=(sweep.segment,), evaluated=sweep.evaluated)
    (perplexity,) = perplexities(model, streams.valid, sizes)
    inputs = torch.zeros(1, sweep.segment, dtype=torch.int64)
    return {
        "seed": SEED,
        "flops": flops_per_token(model, inputs, inputs) * training.tokens,
        "n_layers": training.n_layers,
        "d_model": training.d_model,
        "parameters": parameter_count(model),
        "embeddings": embedding_count(model),
        "steps": n_steps,
        "loss": round(math.log(perplexity), 6),
    }
