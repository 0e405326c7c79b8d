"""Scaling laws of one text: the losses of small language models over parameters and tokens, and laws fitted to them.

    shapes x budgets -> trainings -> results.json -> fits (`scaling_fit.py`) -> report

A budget is a number of tokens, of which a training reads each once. Each training has a learning rate that rises in its
first tenth and falls to 0 at its own end: the loss in the middle of a longer training is higher (Hoffmann et al. 2022,
section 3.1). All budgets of a seed are the beginning of one order of segments.
"""

import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from transduce.decoding.batched_search import SHORT_TURNS
from transduce.errors import UserError
from transduce.evaluation.page import duration
from transduce.evaluation.study_report import write_report
from transduce.family.decoder import Decoder
from transduce.family.positions import Learned
from transduce.model.transformer import parameter_count
from transduce.studies.results import Results, cores, open_results
from transduce.studies.scaling_fit import RESAMPLES
from transduce.studies.scaling_report import fit_laws, report
from transduce.studies.schedule import exclusive_folder
from transduce.studies.segments import Sizes, Streams, hashes, perplexities, read_streams
from transduce.training.flops import ADDED_COUNTS
from transduce.training.halves import threads
from transduce.training.optimizer import adam
from transduce.training.signals import StopSignal

D_K = 16  # the width of a head
SEED = 1
LARGEST_GRADIENT = 1.0  # a larger norm is scaled down to this one


@dataclass(frozen=True)
class Cell:
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

    shapes: layers and widths. budgets: tokens, multiples of a batch. segment: tokens of a row. rows: of a batch.
    evaluated: at most this many tokens of the validation text. peak_rate: the highest learning rate, times d_model.
    Trainings of 128 to 1,024 steps with widths of 32, 64 and 192 gave it. One rate times sqrt(d_model), as in eq. 3,
    was too low for the smallest of them, or too high for the largest.
    """

    shapes: tuple[tuple[int, int], ...] = ((2, 32), (3, 48), (4, 64), (4, 96), (5, 128), (6, 160), (6, 208))
    budgets: tuple[int, ...] = tuple(262_144 * 2**i for i in range(5))
    vocab_size: int = 1_000
    segment: int = 128
    rows: int = 8
    evaluated: int = 65_536
    peak_rate: float = 0.35

    def cells(self) -> list[Cell]:
        """Return all trainings, those with the most work first: two jobs then end at about the same time."""
        cells = [Cell(*shape, tokens) for shape in self.shapes for tokens in self.budgets]
        return sorted(cells, key=lambda one: one.n_layers * one.d_model**2 * one.tokens, reverse=True)

    def as_settings(self) -> dict[str, Any]:
        """Return the sweep as results.json has it."""
        return {**asdict(self), "shapes": [list(shape) for shape in self.shapes], "budgets": list(self.budgets)}

    def sizes(self) -> Sizes:
        """Return the sizes of the texts."""
        return Sizes(
            self.vocab_size, segment=self.segment, rows=self.rows, lengths=(self.segment,), evaluated=self.evaluated
        )


SWEEP = Sweep()


# ---- the study ---------------------------------------------------------------------------------------------------


def run_scaling(
    train: Path, valid: Path, out: Path, *, jobs: int | None = None, sweep: Sweep = SWEEP, resamples: int = RESAMPLES
) -> Results:
    """Train the models that are not yet in OUT/results.json, fit the laws, and write the report.

    train, valid: texts. jobs: number of trainings at the same time, each on one thread; None: one for each core.
    Raises UserError for unusable texts, and at the end if trainings have failed. Raises KeyboardInterrupt after a
    signal: an interrupted training starts again from its first step.
    """
    results = open_results(out, "scaling", {**hashes(train, valid), "sweep": sweep.as_settings()})
    cells = sweep.cells()
    queue = [cell for cell in cells if not results.is_done(cell.name)]
    try:
        if queue:
            streams = read_streams(train, valid, sweep.sizes())
            _check_length(train, streams.train, sweep)
            with exclusive_folder(results):
                results.start_session([cell.name for cell in cells])
                _train_cells(queue, streams, sweep, results, min(jobs or cores(), len(queue)))
        else:
            _print(f"{results.path} has all {len(cells)} trainings; there is nothing to do")
    finally:
        if results.entries:
            _print("fitting the laws ...")
            write_report(out, report(results, fit_laws(results, resamples)), results.sessions)
    failures = [cell.name for cell in cells if not results.is_done(cell.name)]
    if failures:
        page = out / "report.md"
        raise UserError(f"{len(failures)} of {len(cells)} trainings failed: {', '.join(failures)}; see {page}")
    return results


def _check_length(train: Path, ids: Tensor, sweep: Sweep) -> None:
    """Raise UserError if a training would read a token twice."""
    available = (len(ids) - 1) // sweep.segment * sweep.segment
    if available < max(sweep.budgets):
        raise UserError(
            f"{train}: expected at least {max(sweep.budgets):,} tokens, so that no training reads one twice, not "
            f"{available:,}; give a longer text"
        )


def _train_cells(queue: Sequence[Cell], streams: Streams, sweep: Sweep, results: Results, jobs: int) -> None:
    """Train `jobs` models at a time, each on one thread, and record them in results.json.

    Threads are enough: a step is almost all in operations of torch, which leave the interpreter to the other threads.
    """
    flops = {cell.row: flops_per_token(build(cell, sweep), sweep) for cell in queue}
    with threads(1), SHORT_TURNS, StopSignal() as stop:
        with ThreadPoolExecutor(jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            futures = {pool.submit(_train_and_time, cell, streams, sweep, stop): cell for cell in queue}
            try:
                for future in as_completed(futures):
                    _record(futures[future], future, flops, results, len(sweep.cells()))
            except BaseException:
                stop.is_requested = True  # the trainings end after their step
                raise
        if stop.is_requested:
            raise KeyboardInterrupt


def _record(
    cell: Cell, future: "Future[dict[str, Any] | None]", flops: dict[str, int], results: Results, count: int
) -> None:
    """Record a training that has ended. One that was stopped has no figures, and is not recorded."""
    try:
        figures = future.result()
    except UserError as problem:
        results.record(cell.name, "failed", row=cell.row, tokens=cell.tokens, why=str(problem))
        _print(f"{cell.name}: failed, {problem}")
        return
    if figures:
        work = flops[cell.row] * cell.tokens
        results.record(cell.name, "done", row=cell.row, tokens=cell.tokens, seed=SEED, flops=work, **figures)
        n_done = sum(entry["status"] == "done" for entry in results.entries.values())
        spent = duration(figures["seconds"])
        _print(f"{cell.name}: loss {figures['loss']:.3f}, {spent}; {n_done} of {count} trainings done")


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- a training --------------------------------------------------------------------------------------------------

_DRAWING = threading.Lock()  # torch draws the first weights from one global generator


def build(cell: Cell, sweep: Sweep) -> Decoder:
    """Return the model of a training with random weights: GPT-2's form."""
    with _DRAWING:
        torch.manual_seed(SEED)
        shape = sweep.vocab_size, cell.d_model, cell.n_layers, cell.d_model // D_K
        return Decoder(*shape, Learned(sweep.segment, cell.d_model), n_positions=sweep.segment, dropout=0.0)


def embedding_count(model: Decoder) -> int:
    """Return the parameters of the embeddings, those of tokens (also the output) and of positions."""
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


def _train_and_time(cell: Cell, streams: Streams, sweep: Sweep, stop: StopSignal) -> dict[str, Any] | None:
    """Return the figures of a training; None after a signal. Raises UserError if its loss is not finite."""
    started_at, processor_started_at = time.monotonic(), time.thread_time()
    model = build(cell, sweep)
    if not train_model(model, cell, streams.train, sweep, stop):
        return None
    (perplexity,) = perplexities(model, streams.valid, sweep.sizes())
    return {
        "n_layers": cell.n_layers,
        "d_model": cell.d_model,
        "parameters": parameter_count(model),
        "embeddings": embedding_count(model),
        "steps": cell.tokens // (sweep.rows * sweep.segment),
        "loss": round(math.log(perplexity), 6),
        "seconds": round(time.monotonic() - started_at, 1),
        "cpu_seconds": round(time.thread_time() - processor_started_at, 1),
    }


def train_model(model: Decoder, cell: Cell, ids: Tensor, sweep: Sweep, stop: StopSignal) -> bool:
    """Train the model on its budget. Return False if a signal stopped it. Raises UserError for a loss of nan."""
    optimizer, n_steps = adam(model.parameters()), cell.tokens // (sweep.rows * sweep.segment)
    model.train()
    for step, (inputs, targets) in enumerate(batches(ids, sweep, cell.tokens), 1):
        if stop.is_requested:
            return False
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        if not loss.isfinite():
            raise UserError(f"the loss of step {step} is {loss.item()}: expected a finite number; use a lower rate")
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
        rate = sweep.peak_rate / cell.d_model * learning_rate(step, n_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return True


def flops_per_token(model: Decoder, sweep: Sweep) -> int:
    """Return the FLOPs of the products in a training step, forward and backward, for each token of a segment."""
    inputs = torch.zeros(1, sweep.segment, dtype=torch.int64)
    with FlopCounterMode(display=False, custom_mapping=ADDED_COUNTS) as counter:
        F.cross_entropy(model(inputs).flatten(0, 1), inputs.flatten()).backward()
    return round(counter.get_total_flops() / sweep.segment)
