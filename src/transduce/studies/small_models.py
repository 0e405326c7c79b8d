"""Small language models for studies of their parts: the texts, one training loop, one evaluation, and the study.

text -> ids, with EOS after each line -> batches -> losses -> training -> perplexity at several lengths
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.data.text import file_sha256, is_blank, read_lines
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import EOS
from transduce.errors import UserError
from transduce.evaluate import perplexity
from transduce.evaluation.study_report import Report
from transduce.family.configs import DecoderConfig, sizes_of
from transduce.family.decoder_only import DecoderOnly
from transduce.family.transformer_xl import NO_MEMORY, TransformerXL
from transduce.studies.results import Cost, Figures, Percent, PositiveInt, Results, Study, figures_type, settings_type
from transduce.studies.runner import CellTask, in_pool, run_tasks, timed
from transduce.training.optimizer import adam, learning_rate

SmallModel = DecoderOnly | TransformerXL
BATCH = 4_096  # tokens of an evaluation at a time
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class SegmentSizes:
    """The sizes of a study: of its models, of their training, and of the evaluation.

    segment: tokens of a row in training. rows: of a batch. lengths: multiples of `segment` at which the models are
    evaluated, in ascending order. evaluated: maximum number of tokens of the validation text.
    """

    vocab_size: PositiveInt = 4_000
    d_model: PositiveInt = 128
    n_layers: PositiveInt = 4
    n_heads: PositiveInt = 4
    segment: PositiveInt = 64
    rows: PositiveInt = 32
    steps: PositiveInt = 900
    warmup: PositiveInt = 200
    lr_factor: Cost = 0.4
    dropout: Percent = 0.1
    lengths: Annotated[tuple[PositiveInt, ...], Meta(min_length=1)] = (64, 128, 256, 512)
    evaluated: PositiveInt = 32_768

    def decoder(self) -> DecoderConfig:
        """Return the configuration of a decoder of these sizes."""
        return replace(sizes_of(self, DecoderConfig), max_positions=self.lengths[-1])


# ---- a study -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Streams:
    """The training text and the validation text as ids: (n,), or (N,T) if they are cut into N texts of T tokens."""

    train: Tensor
    valid: Tensor
    vocab_size: int


@dataclass(frozen=True)
class SmallStudy(Study):
    """A study whose cells are rows of small models, each with all seeds. training: the type of their common figures.

    figures: trains a row with a seed, and returns its figures; it is sent to other processes, so it must be picklable.
    """

    training: ClassVar[type] = figures_type("row", "seed", "parameters", "steps", "seconds", "cpu_seconds")
    settings: type = figures_type(sizes=settings_type(SegmentSizes))
    _: KW_ONLY
    rows: Sequence[str]
    sizes: SegmentSizes = SegmentSizes()
    figures: Callable[[SegmentSizes, str, int, Streams], Figures]
    report: Callable[[Results], Report]

    def run(self, train: Path, valid: Path, out: Path, *, jobs: int | None = None) -> Results:
        """Train and evaluate the rows that are not yet in OUT/results.json, and write the report.

        train, valid: texts whose lines follow each other. jobs: number of trainings at a time; None: one for each core.
        Raises UserError for a text that is too short. Raises the errors of `runner.run_cells`, too.
        """
        sizes = self.sizes
        results = self.open(out, {**hashes(train, valid), "sizes": sizes})
        cells = {f"{row}-{seed}": (row, seed) for seed in SEEDS for row in self.rows}

        def prepare() -> list[CellTask]:
            least = (sizes.rows * sizes.segment + 1, sizes.lengths[-1] + 1)  # a segment for each row, and the longest
            streams = read_streams(train, valid, sizes.vocab_size, least)
            return [
                CellTask(name, {"row": row, "seed": seed}, partial(timed, self.figures, sizes, row, seed, streams))
                for name, (row, seed) in cells.items()
            ]

        return run_tasks([*cells], prepare, in_pool(jobs), results, self.report)


# ---- texts -------------------------------------------------------------------------------------------------------


def hashes(train: Path, valid: Path) -> dict[str, str]:
    """Return the hashes of the two texts, as settings of a study. Raises UserError for a missing file."""
    for path in (train, valid):
        if not path.is_file():
            raise UserError(f"{path}: expected a text file; check the path")
    return {"training text": file_sha256(train), "validation text": file_sha256(valid)}


def read_streams(train: Path, valid: Path, vocab_size: int, least: tuple[int, int]) -> Streams:
    """Return both texts, with EOS after each line, as ids (n,) of a tokenizer that is learned from the first.

    least: the number of tokens that each text needs. Raises UserError for a text that has fewer, or is unusable.
    """
    lines = list(read_lines(train))
    if all(map(is_blank, lines)):
        raise UserError(f"{train}: expected a line that is not blank; give another text")
    if len({*"".join(lines)}) > vocab_size // 2:
        raise UserError(f"{train}: expected at most {vocab_size // 2:,} different characters; give another text")
    tokenizer = Tokenizer.learn(lines, vocab_size=vocab_size)
    streams = []
    for path, need in zip((train, valid), least, strict=True):
        ids = [token for line in tokenizer.encode_batch(list(read_lines(path))) for token in (*line, EOS)]
        if len(ids) < need:
            raise UserError(
                f"{path}: expected a text of at least {need:,} tokens, not {len(ids):,}; give a longer text"
            )
        streams.append(torch.tensor(ids, dtype=torch.int64))
    return Streams(streams[0], streams[1], tokenizer.vocab_size)


# ---- training ----------------------------------------------------------------------------------------------------


def train_small(
    model: nn.Module,
    losses: Iterable[Tensor],
    rate: Callable[[int], float],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    largest_gradient: float | None = None,
    show: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train a model: a step for each of `losses`, which computes the next one with the weights after the last step.

    rate: the learning rate of step 1, 2, ... optimizer: None means the paper's Adam. largest_gradient: a gradient with
    a larger norm is scaled down to this norm. show: is called with the step and its loss, every 50 steps.
    Raises UserError if a loss is not finite.
    """
    optimizer = optimizer or adam(model.parameters())
    model.train()
    for step, loss in enumerate(losses, 1):
        if not loss.isfinite():
            raise UserError(f"the loss of step {step} is {loss.item()}: expected a finite number; use a lower rate")
        loss.backward()
        if largest_gradient:
            nn.utils.clip_grad_norm_(model.parameters(), largest_gradient)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            show(step, loss.item())
    model.eval()


def train_on_segments(
    model: SmallModel,
    ids: Tensor,
    sizes: SegmentSizes,
    seed: int,
    added_loss: Callable[[nn.Module], Tensor] | None = None,
) -> None:
    """Train the model on segments of a text. added_loss: joins the cross-entropy of each step.

    Rows of a batch are streams: the next batch continues the text of the last one, so that a model may remember.
    Raises UserError if the loss is not finite.
    """

    def losses() -> Iterator[Tensor]:
        memory = NO_MEMORY
        for inputs, targets, is_first in batches(ids, sizes, seed):
            if isinstance(model, TransformerXL):
                states, memory = model.states(inputs, NO_MEMORY if is_first else memory)
            else:
                states, _ = model.states(inputs)
            loss = F.cross_entropy(model.output(states).flatten(0, 1), targets.flatten())
            yield loss + added_loss(model) if added_loss else loss

    def rate(step: int) -> float:
        return learning_rate(step, d_model=sizes.d_model, warmup_steps=sizes.warmup, lr_factor=sizes.lr_factor)

    train_small(model, losses(), rate)


def batches(ids: Tensor, sizes: SegmentSizes, seed: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yield inputs and targets (R,T) of each step, and whether the streams begin here.

    The text starts at a place that depends on the seed, and is read again when it ends.
    """
    start = int(torch.randint(len(ids), (), generator=torch.Generator().manual_seed(seed)))
    ids = ids.roll(-start)
    n_segments = (len(ids) - 1) // (sizes.rows * sizes.segment)
    n = sizes.rows * n_segments * sizes.segment
    inputs, targets = (x.view(sizes.rows, n_segments, sizes.segment) for x in (ids[:n], ids[1 : n + 1]))
    for step in range(sizes.steps):
        i = step % n_segments
        yield inputs[:, i], targets[:, i], i == 0


# ---- evaluation --------------------------------------------------------------------------------------------------


def perplexities(model: SmallModel, ids: Tensor, sizes: SegmentSizes) -> list[float]:
    """Return the perplexity per token at each of the lengths.

    The text is cut into blocks of one length. So all lengths evaluate the same tokens, and differ in what is before.
    """
    longest = sizes.lengths[-1]
    n = min(sizes.evaluated, len(ids) - 1) // longest * longest
    return [
        perplexity(_loss(model, ids[:n].view(-1, length), ids[1 : n + 1].view(-1, length), sizes.segment))
        for length in sizes.lengths
    ]


@torch.inference_mode()
def _loss(model: SmallModel, inputs: Tensor, targets: Tensor, segment: int) -> float:
    """Return the mean loss per token of blocks (R,n). Transformer-XL reads them in segments, and remembers all."""
    total, rows = 0.0, max(1, BATCH // inputs.size(1))
    for part, truth in zip(inputs.split(rows), targets.split(rows), strict=True):
        states = _remembered(model, part, segment) if isinstance(model, TransformerXL) else model.states(part)[0]
        total += float(F.cross_entropy(model.output(states).flatten(0, 1), truth.flatten(), reduction="sum"))
    return total / inputs.numel()


def _remembered(model: TransformerXL, ids: Tensor, segment: int) -> Tensor:
    n_memory = model.n_memory
    model.n_memory = ids.size(1)
    memory, states = NO_MEMORY, list[Tensor]()
    for part in ids.split(segment, dim=1):
        new, memory = model.states(part, memory)
        states.append(new)
    model.n_memory = n_memory
    return torch.cat(states, dim=1)
