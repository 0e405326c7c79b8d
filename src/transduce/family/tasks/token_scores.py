"""Scores of a model that restores tokens of a line: loss, perplexity and accuracy of these tokens."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from transduce.data.batches import Collate
from transduce.data.text import is_blank
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.batched_search import BATCH_TOKENS, length_batches
from transduce.decoding.segmentation import encode_lines
from transduce.errors import NotFiniteError
from transduce.evaluate import perplexity
from transduce.training.task import Outputs


@torch.inference_mode()
def score_tokens(
    model: Any, outputs: Outputs, collate: Collate, tokenizer: TokenizerLike, lines: Sequence[str]
) -> dict[str, float]:
    """Return loss and perplexity of a token to restore, and the percentage that the model predicts right.

    outputs, collate: of the task. Blank lines do not count. The tokens to restore depend on the number of a line alone,
    so they are the same in each evaluation. Raises NotFiniteError if a log-probability is not finite.
    """
    texts = [line for line in lines if not is_blank(line)]
    rows = [np.asarray(ids, np.int64) for ids in encode_lines(texts, tokenizer)]
    device = model.output.weight.device
    nats, right, count = 0.0, 0, 0
    for members in length_batches([len(row) for row in rows], 1, BATCH_TOKENS[device.type]):
        of_batch = [rows[i] for i in members]
        hidden, truth = outputs(model, collate(of_batch, of_batch, np.array(members), (0, 0)).to(device))
        log_probs = model.output(hidden).log_softmax(dim=-1)
        nats -= log_probs.gather(1, truth[:, None]).double().sum().item()
        right += int((log_probs.argmax(dim=-1) == truth).sum())
        count += len(truth)
    if not math.isfinite(nats):
        raise NotFiniteError("the model: expected log-probabilities that are finite; use an earlier checkpoint")
    loss = nats / count
    scores = {"loss": round(loss, 5), "perplexity": round(perplexity(loss), 4)}
    return {**scores, "accuracy": round(100 * right / count, 2)}
