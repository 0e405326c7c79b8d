"""§3.5: models that are trained only on short pairs, and evaluated on longer ones.

A position is one piece of the tokenizer, so pairs are cut by pieces. The rows are sinusoids, learned positions, and
the relative positions of Shaw et al. (2018), which know no position but the distance between two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transduce.config.schema import Config, ModelConfig
from transduce.data.text import read_pairs
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.options import DecodingOptions
from transduce.errors import UserError
from transduce.evaluate import TestSet, evaluate_model
from transduce.family.positions import relative_attention
from transduce.model.attention import Attention, Mask, MultiHeadAttention, fast_attention
from transduce.model.positions import SinusoidalPositions
from transduce.model.transformer import DecoderLayer, EncoderLayer, Transformer
from transduce.storage.atomic_folder import write_file
from transduce.studies.in_process import load_last, train_here
from transduce.studies.texts import FilePair, Texts, score_figures
from transduce.studies.trainings import Training
from transduce.train import TranslationTask
from transduce.translate import Translator

SHORT = 16  # the maximum number of pieces on both sides of a short pair
LONGER = 22  # both sides of a longer pair have more pieces
REACH = 8  # distances that have a vector each; all occur often in short pairs

Pair = tuple[str, str]

# ---- the texts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """The short training pairs, the short pairs of the validation text, and its longer ones, with their figures."""

    train: list[Pair]
    valid: list[Pair]
    longer: list[Pair]
    figures: dict[str, Any]

    def write(self, folder: Path, language: str) -> Texts:
        """Write the texts to `folder`, and return them. The test text is the longer pairs."""
        folder.mkdir(parents=True, exist_ok=True)
        paths: dict[str, FilePair] = {}
        for name, pairs in (("train", self.train), ("valid", self.valid), ("longer", self.longer)):
            paths[name] = folder / f"{name}.src", folder / f"{name}.tgt"
            for side, path in enumerate(paths[name]):
                write_file(path, "".join(f"{pair[side]}\n" for pair in pairs).encode())
        return Texts(paths["train"], paths["valid"], paths["longer"], language)


def split_texts(texts: Texts, vocab_size: int) -> Split:
    """Return the short and the longer pairs. vocab_size: of the trainings.

    The tokenizer that a training learns from the short pairs gives the pieces. Raises UserError if there is no short
    or no longer pair.
    """
    train, tokenizer = _short_pairs(list(read_pairs(*texts.train)), vocab_size, texts.train)
    pairs = list(read_pairs(*texts.valid))
    pieces = _pieces(pairs, tokenizer)
    valid = [pair for pair, length in zip(pairs, pieces.max(axis=1), strict=True) if length <= SHORT]
    is_longer = pieces.min(axis=1) > LONGER
    longer = [pair for pair, is_long in zip(pairs, is_longer, strict=True) if is_long]
    if not valid or not longer:
        raise UserError(
            f"{texts.valid[0]}: expected pairs of at most {SHORT} pieces, and pairs of more than {LONGER} on both "
            "sides; give another text"
        )
    targets = pieces[is_longer, 1]
    figures = {
        "most pieces of short pairs": SHORT,
        "least pieces of longer pairs": LONGER + 1,
        "short training pairs": len(train),
        "short pairs": len(valid),
        "longer pairs": len(longer),
        "new positions, %": round(100 * float((targets - SHORT).sum() / targets.sum()), 1),
    }
    return Split(train, valid, longer, figures)


def _short_pairs(pairs: list[Pair], vocab_size: int, paths: FilePair) -> tuple[list[Pair], Tokenizer]:
    """Return the short pairs, and the tokenizer that a training learns from them.

    A tokenizer that is learned from fewer pairs can have more pieces in one of them, so pairs are left out until all
    are short by the tokenizer that is learned from them.
    """
    while True:
        if not pairs:
            raise UserError(f"{paths[0]}: expected pairs of at most {SHORT} pieces on both sides; give another text")
        tokenizer = Tokenizer.learn((side for pair in pairs for side in pair), vocab_size=vocab_size)
        is_short = _pieces(pairs, tokenizer).max(axis=1) <= SHORT
        if is_short.all():
            return pairs, tokenizer
        pairs = [pair for pair, short in zip(pairs, is_short, strict=True) if short]


def _pieces(pairs: Sequence[Pair], tokenizer: Tokenizer) -> np.ndarray:
    """Return the numbers of pieces of source and target: (pairs, 2)."""
    sides = (tokenizer.encode_batch([pair[side] for pair in pairs]) for side in (0, 1))
    return np.stack([np.array([len(ids) for ids in side], dtype=np.int64) for side in sides], axis=1)


# ---- the model with relative positions ---------------------------------------------------------------------------


class RelativeSelfAttention(MultiHeadAttention):
    """Self-attention with a learned vector for each distance, which is added to keys and to values.

    As in Shaw et al. (2018), the heads of a layer share the vectors, and distances beyond `REACH` have the last one.
    """

    def __init__(self, config: ModelConfig) -> None:
        widths = {"d_k": config.d_k, "d_v": config.d_v}
        dropout = config.attention_dropout
        super().__init__(config.d_model, config.n_heads, **widths, bias=config.attention_bias, dropout=dropout)
        d_k, d_v = (linear.out_features // config.n_heads for linear in (self.w_k, self.w_v))
        self.to_keys = nn.Parameter(d_k**-0.5 * torch.randn(2 * REACH + 1, d_k))
        self.to_values = nn.Parameter(d_v**-0.5 * torch.randn(2 * REACH + 1, d_v))

    def forward(
        self, x: Tensor, keys_values: Sequence[Tensor], mask: Mask, attention: Attention = fast_attention
    ) -> Tensor:
        return super().forward(x, keys_values, mask, relative_attention(self.to_keys, self.to_values))


class NoPositions(SinusoidalPositions):
    """Zeros, which are added to the embeddings."""

    def forward(self, start: int, end: int) -> Tensor:
        return torch.zeros_like(super().forward(start, end))


class RelativeTransformer(Transformer):
    """The Transformer with relative positions in all self-attention, and no others."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.positions = NoPositions(config.d_model)
        for layer in (*self.encoder, *self.decoder):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            plain, layer.self_attention = layer.self_attention, RelativeSelfAttention(config)
            layer.self_attention.load_state_dict(plain.state_dict(), strict=False)  # initialised as the paper's


class RelativeTask(TranslationTask):
    """Translation by a model with relative positions."""

    def build(self, config: Config) -> RelativeTransformer:
        return RelativeTransformer(config.model)


def train_relative(training: Training, short: Texts, run: Path) -> dict[str, Any]:
    """Train in the folder `run`, or resume there, and return the scores on short and on longer pairs.

    Raises KeyboardInterrupt after a signal, and NotFiniteError if the training diverged.
    """
    assert short.test is not None
    loaded, last = train_here(training, short, run, RelativeTask())
    sizes = load_last(loaded, last)
    translator = Translator([loaded])
    evaluations = {}
    for name, pair in (("valid", short.valid), ("test", short.test)):
        evaluation = evaluate_model(translator, TestSet(*pair, short.language), DecodingOptions())
        evaluations[name] = score_figures(evaluation.lines, evaluation.perplexity or 0.0, evaluation.systems["model"])
    headline = {key: evaluations["valid"][key] for key in Texts.headline}
    return {**headline, **sizes, **evaluations}
