"""The training of language models: a model predicts each token of a line from the tokens before it.

A line of the text is a row of the batch: BOS and the line are the input, the line and EOS are the truth. Lines of
similar length share a batch, so little of it is padding. A line never sees another one. In a model with experts the
loss for their balance is added to the loss of the tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from transduce.config.schema import Config, TrainConfig
from transduce.data.batches import Batch, collate
from transduce.data.vocabulary import TokenizerLike
from transduce.family.experts import forget_routings, router_loss, routings
from transduce.family.tasks.text_scores import check_lines, score_lines
from transduce.family.text_model import TextModel
from transduce.model.build import build
from transduce.training.progress import format_scores
from transduce.training.task import summed_loss


class LanguageModelTask:
    """The model predicts the next token of a line."""

    def build(self, config: Config) -> nn.Module:
        return build(config.model)

    def collate(
        self, src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray, key: tuple[int, int] = (0, 0)
    ) -> Batch:
        """Return the batch of lines, which are both `src` and `tgt`. Its source is empty, (B,0)."""
        nothing = torch.zeros(len(tgt), 0, dtype=torch.int64)
        return replace(collate(tgt, tgt, pairs), src=nothing, src_mask=nothing.bool())

    def check(
        self, pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, longest: int, names: tuple[str, ...]
    ) -> None:
        check_lines([line for line, _ in pairs], tokenizer, longest, names[0])

    def loss(self, model: TextModel, batch: Batch, config: TrainConfig) -> Tensor:
        try:
            loss = summed_loss(next_token_outputs, model, batch, config.label_smoothing, config.precision, config.rdrop)
            if layers := routings(model):
                balance = router_loss(layers) * batch.tgt_mask.sum()
                loss = loss + (balance - balance.detach())  # the log has only the loss of the tokens
            return loss
        finally:
            forget_routings(model)  # a batch for which memory does not suffice would stay beside its halves

    def evaluate(
        self, model: TextModel, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        scores = score_lines(model, tokenizer, [line for line, _ in pairs])
        return {
            "loss": round(scores.loss, 5),
            "perplexity": round(scores.perplexity, 4),
            "word_perplexity": round(scores.word_perplexity, 4),
            "bits_per_character": round(scores.bits_per_character, 5),
        }

    def describe(self, scores: dict[str, float]) -> str:
        return format_scores(scores)


def next_token_outputs(model: TextModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the states (N,D) before the real tokens of a batch, and these tokens (N,)."""
    return batch.real(model.states(batch.tgt_in, model.no_past)[0])
