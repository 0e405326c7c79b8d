"""The bound of LLaDA on -log p of lines: batches of masked lines, their loss, and the scores of a text.

    -log p(line) <= E [n/k * sum over the k masked tokens of -log p(token | the others)] - log p(n tokens)

The expectation is over k and over what is masked (Nie et al. 2025, eq. 4 and 6). It is estimated by a few masks of each
line. The sum over a text is one of many independent estimates, so it is far more precise than the estimate of a line.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from transduce.data.batches import Batch, indices_of, pad
from transduce.data.text import is_blank
from transduce.data.vocabulary import BOS, EOS, TokenizerLike
from transduce.decoding.batched_search import by_length
from transduce.decoding.segmentation import encode_lines
from transduce.errors import NotFiniteError, UserError
from transduce.family.inference.model_folder import MASK
from transduce.family.inference.text_filler import TextFiller
from transduce.family.llada import Llada, weights_of_count
from transduce.family.tasks.text_scores import TextScores, encoded_text, scores_of
from transduce.model.devices import in_float64
from transduce.training.loss import projected_cross_entropy, token_log_probs

SAMPLES = 8  # masks of each line of which the bound is estimated


def masked_batch(rows: Sequence[np.ndarray], weights: Sequence[np.ndarray], numbers: np.ndarray) -> Batch:
    """Return the batch of lines, `rows` of ids, in which the tokens with a weight above 0 are masked.

    src (B,S): BOS, the line with masks, EOS. tgt_in (B,T): the weights, float32, and 0 for EOS. tgt_out (B,T): the line
    and EOS, so that a line counts as many tokens as in the training of a decoder. numbers: of the lines.
    """
    inputs = [np.where(of_row > 0, MASK, ids) for ids, of_row in zip(rows, weights, strict=True)]
    src, src_mask = pad(inputs, first=BOS, last=EOS)
    truth, is_real = pad([*rows], last=EOS)
    padded = torch.zeros(truth.shape)
    for i, of_row in enumerate(weights):
        padded[i, : len(of_row)] = torch.from_numpy(of_row)
    return Batch(src, src_mask, padded, truth, is_real, indices_of(padded > 0), numbers)


def masked_outputs(model: Llada, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the states (N,D) at the masked tokens, these tokens (N,), and their weights (N,)."""
    hidden, truth = batch.real(model.states(batch.src, batch.src_mask)[:, 1:])  # BOS is no token of the line
    return hidden, truth, batch.tgt_in.flatten()[batch.tgt_indices]


def length_nats(model: Llada, batch: Batch) -> Tensor:
    """Return the sum of -log p of the numbers of tokens of the lines, a scalar: what EOS costs in a decoder."""
    lengths = batch.tgt_mask.sum(dim=1) - 1
    return -model.length_log_probs(lengths.clamp(min=1)).where(lengths > 0, 0).sum()


def summed_bound(model: Llada, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Return the estimated bound summed over the lines of a batch, a scalar in nats, with a gradient."""
    hidden, truth, weights = masked_outputs(model, batch)
    loss = projected_cross_entropy(hidden, model.output.weight, truth, label_smoothing, weights=weights)
    return loss + length_nats(model, batch)


@dataclass(frozen=True)
class BoundScores(TextScores):
    """Upper bounds of the scores of a model on a text. samples: masks of each line of which they are estimated."""

    samples: int

    def __str__(self) -> str:
        """Return the scores as text to read."""
        return f"{super().__str__()}\n\nupper bounds, estimated with {self.samples} masks of each line"


def score_bound(model: Llada, tokenizer: TokenizerLike, lines: Sequence[str], samples: int = SAMPLES) -> BoundScores:
    """Return upper bounds of the scores of a model, on lines that `check_lines` accepts, as `bound_of_rows` does."""
    texts = [line for line in lines if not is_blank(line)]
    return bound_of_rows(model, [ids or [] for ids in encode_lines(texts, tokenizer)], texts, samples)


def evaluate_bound(model: TextFiller, path: Path) -> BoundScores:
    """Return upper bounds of the scores of a model on the lines of a text.

    Raises UserError, before it computes anything, for a line that is longer than the model takes, and for a model
    without a table of lengths.
    """
    if model.model.lengths is None:
        raise UserError(f"{model.folder}: expected a table of lengths; use a LLaDA that was trained here")
    rows, texts = encoded_text(model, path, len(model.model.lengths))
    return bound_of_rows(model.model, rows, texts)


@torch.inference_mode()
def bound_of_rows(
    model: Llada, tokens: Sequence[Sequence[int]], texts: Sequence[str], samples: int = SAMPLES
) -> BoundScores:
    """Return upper bounds of the scores of `model`, in evaluation mode, on texts and their tokens.

    samples: number of masks of each line. The masks of a line depend only on its number, and so are the same in each
    evaluation. Raises NotFiniteError if a log-probability is not finite.
    """
    rows = [np.asarray(ids, np.int64) for ids in tokens]
    weights = [each for i, row in enumerate(rows) for each in spread_weights(len(row), samples, i)]
    device = model.output.weight.device

    def nats_of(members: Sequence[int]) -> float:
        batch = masked_batch([rows[i // samples] for i in members], [weights[i] for i in members], np.array(members))
        hidden, truth, of_tokens = masked_outputs(model, batch := batch.to(device))
        log_probs = token_log_probs(hidden, model.output.weight, truth)
        return length_nats(model, batch).item() - (in_float64(log_probs) * in_float64(of_tokens)).sum().item()

    nats = sum(
        of_batch for _, of_batch in by_length(nats_of, [len(row) for row in rows for _ in range(samples)], device)
    )
    if not math.isfinite(nats):
        raise NotFiniteError("the model: expected log-probabilities that are finite numbers; use an earlier checkpoint")
    scores = scores_of(nats / samples, texts, tokens=sum(len(row) + 1 for row in rows))
    return BoundScores(**asdict(scores), samples=samples)


def spread_weights(n: int, samples: int, number: int) -> list[np.ndarray]:
    """Return the weights of several masks of a line of n tokens, which is line `number` of a text.

    The numbers k of masked tokens are spread evenly over 1..n: each is drawn from its own part of that range, and all
    parts have the same size. So the estimates have the same mean as independent draws, and vary less.
    """
    generator = np.random.default_rng([number])
    start = generator.random()
    if not n:  # a line of characters that the tokenizer drops
        return [np.zeros(0)] * samples
    counts = [1 + int(n * (i + start) / samples) for i in range(samples)]
    return [weights_of_count(n, k, generator) for k in counts]
