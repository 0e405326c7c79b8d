"""Small language models for studies of their parts: a text as a stream of tokens, one training loop, one evaluation.

    text -> ids, with EOS after each line -> segments of equal length -> training -> perplexity at several lengths

Rows of a batch are streams: the next batch continues the text of this one, so that a model may remember.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.data.text import file_sha256, is_blank, read_lines
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import EOS
from transduce.errors import UserError
from transduce.evaluate import perplexity
from transduce.family.configs import DecoderConfig
from transduce.family.decoder import Decoder
from transduce.family.recurrence import NO_MEMORY, TransformerXL
from transduce.training.optimizer import adam, learning_rate

SmallModel = Decoder | TransformerXL
BATCH = 4_096  # tokens of an evaluation at a time


@dataclass(frozen=True)
class Sizes:
    """The sizes of a study: of its models, of their training, and of the evaluation.

    segment: tokens of a row in training. rows: of a batch. lengths: multiples of `segment` at which the models are
    evaluated, in ascending order. evaluated: at most this many tokens of the validation text.
    """

    vocab_size: int = 4_000
    d_model: int = 128
    n_layers: int = 4
    n_heads: int = 4
    segment: int = 64
    rows: int = 32
    steps: int = 900
    warmup: int = 200
    lr_factor: float = 0.4
    dropout: float = 0.1
    lengths: tuple[int, ...] = (64, 128, 256, 512)
    evaluated: int = 32_768

    def decoder(self) -> DecoderConfig:
        """Return the configuration of a decoder of these sizes."""
        return DecoderConfig(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            max_positions=self.lengths[-1],
            dropout=self.dropout,
        )

    def as_settings(self) -> dict[str, Any]:
        """Return the sizes as results.json has them."""
        return {**asdict(self), "lengths": list(self.lengths)}


@dataclass(frozen=True)
class Streams:
    """The training text and the validation text as ids (n,)."""

    train: Tensor
    valid: Tensor


def hashes(train: Path, valid: Path) -> dict[str, str]:
    """Return the hashes of the two texts, as settings of a study. Raises UserError for a missing file."""
    for path in (train, valid):
        if not path.is_file():
            raise UserError(f"{path}: expected a text file; check the path")
    return {"training text": file_sha256(train), "validation text": file_sha256(valid)}


def read_streams(train: Path, valid: Path, sizes: Sizes) -> Streams:
    """Return both texts as ids of a tokenizer that is learned from the first.

    Raises UserError for a text that is too short: the training text needs a segment for each row, the validation text
    one of the longest length.
    """
    lines = list(read_lines(train))
    if all(map(is_blank, lines)):
        raise UserError(f"{train}: expected a line that is not blank; give another text")
    if len({*"".join(lines)}) > sizes.vocab_size // 2:
        raise UserError(f"{train}: expected at most {sizes.vocab_size // 2:,} different characters; give another text")
    tokenizer = Tokenizer.learn(lines, vocab_size=sizes.vocab_size)
    streams = Streams(*(_stream(path, tokenizer) for path in (train, valid)))
    needs = (sizes.rows * sizes.segment + 1, sizes.lengths[-1] + 1)
    for path, ids, need in zip((train, valid), (streams.train, streams.valid), needs, strict=True):
        if len(ids) < need:
            raise UserError(
                f"{path}: expected a text of at least {need:,} tokens, not {len(ids):,}; give a longer text"
            )
    return streams


def _stream(path: Path, tokenizer: Tokenizer) -> Tensor:
    lines = tokenizer.encode_batch(list(read_lines(path)))
    return torch.tensor([token for line in lines for token in (*line, EOS)], dtype=torch.int64)


# ---- training ----------------------------------------------------------------------------------------------------


def batches(ids: Tensor, sizes: Sizes, seed: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
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


def train_on(
    model: SmallModel,
    ids: Tensor,
    sizes: Sizes,
    seed: int,
    added_loss: Callable[[SmallModel], Tensor] | None = None,
) -> None:
    """Train the model. added_loss: joins the cross-entropy of each step.

    Raises UserError if the loss is not finite.
    """
    optimizer, memory = adam(model.parameters()), NO_MEMORY
    model.train()
    for step, (inputs, targets, is_first) in enumerate(batches(ids, sizes, seed), 1):
        if isinstance(model, TransformerXL):
            states, memory = model.states(inputs, NO_MEMORY if is_first else memory)
        else:
            states, _ = model.states(inputs)
        loss = F.cross_entropy(model.output(states).flatten(0, 1), targets.flatten())
        if not loss.isfinite():
            raise UserError(f"the loss of step {step} is {loss.item()}: expected a finite number; use a lower rate")
        (loss + added_loss(model) if added_loss else loss).backward()
        rate = learning_rate(step, d_model=sizes.d_model, warmup_steps=sizes.warmup, lr_factor=sizes.lr_factor)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


# ---- evaluation --------------------------------------------------------------------------------------------------


def perplexities(model: SmallModel, ids: Tensor, sizes: Sizes) -> list[float]:
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
    kept, model.n_memory = model.n_memory, ids.size(1)
    memory, states = NO_MEMORY, list[Tensor]()
    for one in ids.split(segment, dim=1):
        new, memory = model.states(one, memory)
        states.append(new)
    model.n_memory = kept
    return torch.cat(states, dim=1)


def points(lengths: Sequence[int], values: Sequence[float]) -> list[dict[str, float]]:
    """Return perplexities as figures of an entry."""
    return [{"length": length, "perplexity": round(value, 4)} for length, value in zip(lengths, values, strict=True)]
