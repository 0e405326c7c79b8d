"""The training of LLaDA: a model restores masked tokens of a line, any number of them (Nie et al. 2025, 2.1 and 2.2).

    text       the man went to the store
    input      <s> the [MASK] [MASK] to the [MASK] </s>
    loss       6/3 * (-log p(man) - log p(went) - log p(store)) - log p(6 tokens)

A line is a row. What is masked depends only on the seed, the epoch and the number of the line.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from torch import Tensor, nn

from transduce.config.schema import Config, TrainConfig
from transduce.data.batches import Batch
from transduce.data.vocabulary import TokenizerLike
from transduce.family.llada import Llada, weights_by_count
from transduce.family.tasks.diffusion_bound import SAMPLES, masked_batch, score_bound, summed_bound
from transduce.family.tasks.text_scores import check_lines
from transduce.model.build import build
from transduce.model.transformer import mixed_precision
from transduce.training.progress import format_scores


@dataclass(frozen=True)
class DiffusionTask:
    """The model predicts the masked tokens of a line from the others.

    weights: draws the weights of the tokens of a line in the loss, see `llada.weights_by_count`.
    """

    weights: Callable[[int, np.random.Generator], np.ndarray] = weights_by_count

    def build(self, config: Config) -> nn.Module:
        return build(config.model)

    def collate(
        self, src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray, key: tuple[int, int] = (0, 0)
    ) -> Batch:
        """Return the batch of lines, which are both `src` and `tgt`; see `masked_batch`."""
        numbers = pairs.tolist() or [0] * len(tgt)  # a rank without pairs has a row without a number
        generators = [np.random.default_rng([*key, number]) for number in numbers]
        weights = [self.weights(len(ids), generator) for ids, generator in zip(tgt, generators, strict=True)]
        return masked_batch(tgt, weights, pairs)

    def check(
        self, pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, longest: int, names: tuple[str, ...]
    ) -> None:
        check_lines([line for line, _ in pairs], tokenizer, longest - 1, names[0])  # both BOS and EOS are inputs

    def loss(self, model: Llada, batch: Batch, config: TrainConfig) -> Tensor:
        with mixed_precision(config.precision, batch.src.device):
            return summed_bound(model, batch, config.label_smoothing)

    def evaluate(
        self, model: Llada, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        """Return upper bounds of the scores of a language model, each estimated with `SAMPLES` masks of each line."""
        scores = asdict(score_bound(model, tokenizer, [line for line, _ in pairs]))
        digits = {"loss": 5, "perplexity": 4, "word_perplexity": 4, "bits_per_character": 5}
        return {name: round(scores[name], n) for name, n in digits.items()}

    def describe(self, scores: dict[str, float]) -> str:
        return f"at most {format_scores(scores)}: a bound, estimated with {SAMPLES} masks of each line"
