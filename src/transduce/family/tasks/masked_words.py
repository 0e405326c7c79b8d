"""Masked words: BERT learns to restore words of a line (Devlin et al. 2018, section 3.1, task 1).

    text      the man went to the store
    input     <s> the man [MASK] to the dog </s>
    truth     went, store

A line is a row, and 15 % of its tokens are to be predicted. In the input, 80 % of these are masked, 10 % are replaced
by tokens of the line, and 10 % stay. Each epoch chooses others (Liu et al. 2019). There is no next sentence.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from transduce.config.schema import Config, TrainConfig
from transduce.data.batches import Batch, indices_of, pad
from transduce.data.vocabulary import BOS, EOS, TokenizerLike
from transduce.family.bert import Bert
from transduce.family.inference.model_folder import MASK
from transduce.family.tasks.text_scores import check_lines
from transduce.family.tasks.token_scores import score_tokens
from transduce.model.build import build
from transduce.training.progress import format_scores
from transduce.training.task import summed_loss

SHARE = 0.15  # of the tokens that the model predicts
MASKED = 0.8  # share of these that are masked
REPLACED = 0.1  # share of these that are replaced


class MaskedWordsTask:
    """The model predicts masked tokens of a line from the others, before and after them."""

    def build(self, config: Config) -> nn.Module:
        return build(config.model)

    def collate(
        self, src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray, key: tuple[int, int] = (0, 0)
    ) -> Batch:
        """Return the batch of lines, which are both `src` and `tgt`.

        src (B,S): the input. tgt_in (B,M): the places in it of the tokens to predict. tgt_out (B,M): these tokens.
        """
        numbers = pairs.tolist() or [0] * len(tgt)
        rows = [masked(ids, np.random.default_rng([*key, number])) for ids, number in zip(tgt, numbers, strict=True)]
        inputs, mask = pad([row for row, _ in rows], first=BOS, last=EOS)
        places, is_real = pad([where + 1 for _, where in rows])  # after BOS
        truth, _ = pad([ids[where] for ids, (_, where) in zip(tgt, rows, strict=True)])
        return Batch(inputs, mask, places, truth, is_real, indices_of(is_real), pairs)

    def check(
        self, pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, longest: int, names: tuple[str, ...]
    ) -> None:
        check_lines([line for line, _ in pairs], tokenizer, longest - 1, names[0])  # both BOS and EOS are inputs

    def loss(self, model: Bert, batch: Batch, config: TrainConfig) -> Tensor:
        return summed_loss(masked_outputs, model, batch, config.label_smoothing, config.precision, config.rdrop)

    def evaluate(
        self, model: Bert, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        """Return loss and perplexity of a masked token, and the percentage that the model predicts right.

        The choice of the tokens is the same in each evaluation.
        """
        return score_tokens(model, masked_outputs, self.collate, tokenizer, [line for line, _ in pairs])

    def describe(self, scores: dict[str, float]) -> str:
        return f"{format_scores(scores)} of masked tokens"


def masked(ids: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the input of a line, and the places of the tokens to predict, at least one, in their order."""
    n = max(1, round(SHARE * len(ids)))
    places = np.sort(generator.choice(len(ids), n, replace=False))
    fate, inputs = generator.random(n), ids.astype(np.int64)
    inputs[places[fate < MASKED]] = MASK
    others = places[fate >= 1 - REPLACED]
    inputs[others] = generator.choice(ids, len(others))
    return inputs, places


def masked_outputs(model: Bert, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the states (N,D) at the tokens to predict, as `model.output` takes them, and these tokens (N,)."""
    states = model.encoder(batch.src, batch.src_mask)
    places = batch.tgt_in[..., None].expand(-1, -1, states.size(-1))
    hidden, truth = batch.real(states.gather(1, places))
    assert model.words is not None
    return model.words.states(hidden), truth
