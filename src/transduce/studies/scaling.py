"""The factor 1/sqrt(d_k) of §3.2.1: trainings with it and without it, and the softmax of attention in both.

The trainings run in this process (`in_process`): `UnscaledTask` builds a model whose attention has no factor.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduce.config.recipes.studies.table3 import schedule
from transduce.config.schema import Config
from transduce.data.batches import Batch, collate
from transduce.data.text import read_pairs
from transduce.data.vocabulary import TokenizerLike
from transduce.evaluate import mean_loss, perplexity
from transduce.model.attention import Attention, Mask, fast_attention
from transduce.model.build import Model
from transduce.model.transformer import Transformer
from transduce.storage.model_folder import LoadedModel
from transduce.studies.in_process import load_last, train_here
from transduce.studies.trainings import Texts, Training
from transduce.train import TranslationTask
from transduce.translate import Translator

WIDTHS = (16, 64, 256)  # d_k
SEEDS = (1, 2)
STEPS = 600
SENTENCES = 64  # of the validation text, on which the softmax is measured


def trainings() -> list[Training]:
    """Return the trainings: base of the small Table 3 with each d_k, with the factor ("scaled") and without it."""
    settings = ["model.d_v=32", *schedule(STEPS), "train.keep_checkpoints=2", f"train.checkpoint_every_steps={STEPS}"]
    return [
        Training(row_of(width, has_factor), seed, "small-table3-base", (f"model.d_k={width}", *settings))
        for seed in SEEDS
        for width in WIDTHS
        for has_factor in (True, False)
    ]


def row_of(width: int, has_factor: bool) -> str:
    """Return the name of the row with a d_k."""
    return f"{'scaled' if has_factor else 'unscaled'}-dk{width}"


# ---- attention without the factor --------------------------------------------------------------------------------


def unscaled_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
    """Return softmax(Q K^T) V: eq. 1 without the factor 1/sqrt(d_k)."""
    return fast_attention(queries * math.sqrt(queries.size(-1)), keys, values, mask, dropout)


class UnscaledTransformer(Transformer):
    """The Transformer without the factor, for training and scoring. It cannot search: `decode_step` has the factor."""

    def encode(self, src: Tensor, src_mask: Tensor, attention: Attention = unscaled_attention) -> Tensor:
        return super().encode(src, src_mask, attention)

    def decode(
        self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor, attention: Attention = unscaled_attention
    ) -> Tensor:
        return super().decode(tgt_in, memory, src_mask, attention)


class ScaledTask(TranslationTask):
    """Translation, evaluated without a search."""

    model_class = Transformer

    def build(self, config: Config) -> Transformer:
        return self.model_class(config.model)

    def evaluate(
        self, model: Model, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        translator = Translator([LoadedModel(model, config, tokenizer)])
        loss = mean_loss(translator, [src for src, _ in pairs], [ref for _, ref in pairs])
        return {"loss": round(loss, 5), "perplexity": round(perplexity(loss), 4)}

    def describe(self, scores: dict[str, float]) -> str:
        return f"loss {scores['loss']:.3f}"


class UnscaledTask(ScaledTask):
    """Translation by a model whose attention has no factor."""

    model_class = UnscaledTransformer


# ---- a training --------------------------------------------------------------------------------------------------


def train_and_measure(training: Training, texts: Texts, run: Path) -> dict[str, Any]:
    """Train in the folder `run`, or resume there, and return the figures. Raises KeyboardInterrupt after a signal."""
    task = ScaledTask() if training.row.startswith("scaled") else UnscaledTask()
    loaded, last = train_here(training, texts, run, task)
    pairs = list(read_pairs(*texts.valid))
    start = softmax_statistics(loaded.model, loaded.tokenizer, pairs[:SENTENCES])
    sizes = load_last(loaded, last)
    end = softmax_statistics(loaded.model, loaded.tokenizer, pairs[:SENTENCES])
    scores = task.evaluate(loaded.model, loaded.config, loaded.tokenizer, pairs)
    headline = {"perplexity": scores["perplexity"], "parameters": sizes["parameters"]}
    return {**headline, "softmax_start": start, "softmax_end": end, **sizes}


# ---- the softmax -------------------------------------------------------------------------------------------------


def softmax_statistics(model: Model, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return the means over all softmax rows of a Transformer on `pairs`, each pair without padding.

    variance: of the scores in a row, as they enter the softmax. gradient: the Frobenius norm of the Jacobian of the
    softmax, 0 where one weight is 1. components: the variance of a component of a query, times the
    variance of a component of a key.
    """
    assert isinstance(model, Transformer)
    recorder = _Recorder(1.0 if isinstance(model, UnscaledTransformer) else None)
    sides = [
        tokenizer.encode_batch([src for src, _ in pairs]),
        tokenizer.target.encode_batch([ref for _, ref in pairs]),
    ]
    with torch.inference_mode():
        for src, tgt in zip(*sides, strict=True):
            batch: Batch = collate([np.asarray(src)], [np.asarray(tgt)])
            memory = model.encode(batch.src, batch.src_mask, recorder)
            model.decode(batch.tgt_in, memory, batch.src_mask, recorder)
    return recorder.means()


class _Recorder:
    """An attention function that sums statistics of its softmax. factor: of the scores; None: 1/sqrt(d_k)."""

    def __init__(self, factor: float | None) -> None:
        self.factor = factor
        self.sums = dict.fromkeys(("variance", "gradient", "components"), 0.0)
        self.rows = 0

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        factor = queries.size(-1) ** -0.5 if self.factor is None else self.factor
        scores = queries @ keys.transpose(-2, -1) * factor
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool)
        visible = visible.tril() if isinstance(mask, str) else visible
        weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
        counts = visible.sum(-1)
        rows = counts > 1  # a softmax over one score is constant
        middle = (scores * visible).sum(-1, keepdim=True) / counts[:, None]
        variance = ((scores - middle) ** 2 * visible).sum(-1) / counts
        components = queries.var() * keys.var() * torch.ones_like(variance)
        for name, values_of in zip(self.sums, (variance, jacobian_norm(weights), components), strict=True):
            self.sums[name] += float(values_of[..., rows].sum())
        self.rows += int(rows.sum()) * scores.size(1)
        return weights @ values

    def means(self) -> dict[str, float]:
        return {name: round(total / self.rows, 6) for name, total in self.sums.items()}


def jacobian_norm(weights: Tensor) -> Tensor:
    """Return the Frobenius norm of diag(p) - p p^T for each row p of softmax weights: (..., S) -> (...)."""
    squares = (weights**2).sum(-1)
    return (squares - 2 * (weights**3).sum(-1) + squares**2).clamp(min=0).sqrt()
