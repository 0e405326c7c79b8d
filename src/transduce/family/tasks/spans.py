"""The training of T5 by span corruption (Raffel et al. 2020, sections 3.1.4 and 3.3.4).

A line is a row. `spans.corrupted` makes a source and a target of it, which name the spans by sentinels. The encoder
reads the source, and the decoder predicts each token of the target from those before it. Each epoch draws other spans.

In a batch sentinel i has the id -1 - i, which counts from the end of the vocabulary, as Python's indices do. So a batch
does not depend on the size of the vocabulary.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from transduce.config.schema import Config, TrainConfig
from transduce.data.batches import Batch, indices_of, pad
from transduce.data.vocabulary import EOS, TokenizerLike
from transduce.family.configs import SENTINELS
from transduce.family.inference.model_folder import START
from transduce.family.span_corruption import DENSITY, MEAN_SPAN, corrupted
from transduce.family.t5 import T5
from transduce.family.tasks.text_scores import check_lines
from transduce.family.tasks.token_scores import score_tokens
from transduce.model.build import build
from transduce.training.progress import format_scores
from transduce.training.task import summed_loss


class SpanTask:
    """The model restores spans of a line from the rest of it."""

    def build(self, config: Config) -> nn.Module:
        return build(config.model)

    def collate(
        self, src: list[np.ndarray], tgt: list[np.ndarray], pairs: np.ndarray, key: tuple[int, int] = (0, 0)
    ) -> Batch:
        """Return the batch of lines, which are both `src` and `tgt`. tgt_in (B,T) begins with START instead of BOS."""
        numbers = pairs.tolist() or [0] * len(tgt)  # a rank without pairs has a row without a number
        generators = [np.random.default_rng([*key, number]) for number in numbers]
        rows = [corrupted_line(ids, generator) for ids, generator in zip(tgt, generators, strict=True)]
        sources, src_mask = pad([source for source, _ in rows])
        targets, tgt_mask = pad([target for _, target in rows])
        inputs, _ = pad([target[:-1] for _, target in rows], first=START)
        return Batch(sources, src_mask, inputs, targets, tgt_mask, indices_of(tgt_mask), pairs)

    def check(
        self, pairs: Sequence[tuple[str, str]], tokenizer: TokenizerLike, longest: int, names: tuple[str, ...]
    ) -> None:
        check_lines([line for line, _ in pairs], tokenizer, longest, names[0])

    def loss(self, model: T5, batch: Batch, config: TrainConfig) -> Tensor:
        return summed_loss(span_outputs, model, batch, config.label_smoothing, config.precision, config.rdrop)

    def evaluate(
        self, model: T5, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        """Return loss and perplexity of a token of a target, and the percentage that the model predicts right.

        Each token is predicted from the real tokens before it. Sentinels and EOS count. The spans are the same in each
        evaluation.
        """
        return score_tokens(model, span_outputs, self.collate, tokenizer, [line for line, _ in pairs])

    def describe(self, scores: dict[str, float]) -> str:
        return f"{format_scores(scores)} of the tokens of the targets"


def corrupted_line(ids: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the source and the target of a line. Very long lines have longer spans, so that the sentinels suffice."""
    mean_span = max(MEAN_SPAN, DENSITY * len(ids) / SENTINELS)
    source, target = corrupted(ids.tolist(), generator, sentinel=-1, eos=EOS, mean_span=mean_span)
    return np.array(source), np.array(target)


def span_outputs(model: T5, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the states (N,D) at the real target tokens, as `model.output` takes them, and these tokens (N,)."""
    n = model.embedding.num_embeddings
    memory = model.encode(batch.src % n, batch.src_mask)
    states, truth = batch.real(model.decode(batch.tgt_in % n, memory, batch.src_mask))
    return model.scaled(states), truth % n
