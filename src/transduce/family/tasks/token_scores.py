"""Scores of a model that restores tokens of a line: loss, perplexity and accuracy of these tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from transduce.console import printable
from transduce.data.batches import Collate
from transduce.data.text import empty, is_blank, read_lines
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.batched_search import by_length
from transduce.decoding.segmentation import encode_lines, most_tokens
from transduce.errors import NotFiniteError
from transduce.evaluate import perplexity
from transduce.model import devices
from transduce.model.devices import in_float64
from transduce.storage.model_folder import LoadedModel
from transduce.training.task import Projector, TargetStates, task_of

RESTORING_TASKS = ("masked_words", "spans")


@dataclass(frozen=True)
class TokenScores:
    """Scores of the tokens to restore in a text. loss: nats per token. accuracy: percentage of right tokens."""

    lines: int
    loss: float
    perplexity: float
    accuracy: float

    def __str__(self) -> str:
        """Return the scores as text to read."""
        return "\n".join(
            [
                f"{self.lines:,} lines; the scores are of the tokens that the model restored",
                "",
                f"perplexity per token {self.perplexity:10.3f}",
                f"accuracy             {self.accuracy:8.2f} %",
            ]
        )


def evaluate_restored(loaded: LoadedModel, path: Path) -> TokenScores:
    """Return the scores of a model of one of RESTORING_TASKS on a text, as a validation in training computes them.

    Raises UserError for a line that is longer than the model takes, and for a text that has only blank lines.
    """
    task, lines = task_of(loaded.config.train.task), list(read_lines(path))
    if not lines:
        raise empty(printable(path), printable(path))
    pairs, longest = [(line, line) for line in lines], most_tokens(loaded.config.model.max_positions)
    task.check(pairs, loaded.tokenizer, longest, (printable(path),))
    scores = task.evaluate(loaded.model.to(devices.device()), loaded.config, loaded.tokenizer, pairs)
    return TokenScores(sum(not is_blank(line) for line in lines), **scores)


@torch.inference_mode()
def score_tokens(
    model: Projector, outputs: TargetStates[Projector], collate: Collate, tokenizer: TokenizerLike, lines: Sequence[str]
) -> dict[str, float]:
    """Return loss and perplexity of a token to restore, and the percentage that the model predicts right.

    outputs, collate: functions of the task. Blank lines do not count. The tokens to restore depend only on the number
    of a line, so they are the same in each evaluation. Raises NotFiniteError if a log-probability is not finite.
    """
    texts = [line for line in lines if not is_blank(line)]
    rows = [np.asarray(ids, np.int64) for ids in encode_lines(texts, tokenizer)]
    device = model.output.weight.device

    def sums_of(members: Sequence[int]) -> tuple[float, int, int]:
        of_batch = [rows[i] for i in members]
        hidden, truth = outputs(model, collate(of_batch, of_batch, np.array(members), (0, 0)).to(device))
        log_probs = model.output(hidden).log_softmax(dim=-1)
        nats = -in_float64(log_probs.gather(1, truth[:, None])).sum().item()
        return nats, int((log_probs.argmax(dim=-1) == truth).sum()), len(truth)

    of_batches = [sums for _, sums in by_length(sums_of, [len(row) for row in rows], device)]
    nats, right, count = map(sum, zip(*of_batches, strict=True))
    if not math.isfinite(nats):
        raise NotFiniteError("the model: expected log-probabilities that are finite; use an earlier checkpoint")
    loss = nats / count
    scores = {"loss": round(loss, 5), "perplexity": round(perplexity(loss), 4)}
    return {**scores, "accuracy": round(100 * right / count, 2)}
