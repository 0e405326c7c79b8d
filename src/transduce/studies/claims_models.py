"""The models of `study claims` that no model folder can hold, and their trainings in the process of the study.

    §3.2.1  attention without the factor 1/sqrt(d_k), and the softmax of attention with it and without it
    §3.5    the relative positions of Shaw et al. (2018)

Their tasks are not tasks of `transduce train`: they build a model with another attention. The folders of the trainings
are removed when their figures are known, since others would read RUN/model as the model of its configuration.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from transduce.config.recipes.studies.table3 import schedule
from transduce.config.schema import Config, ModelConfig
from transduce.data.batches import Batch, collate
from transduce.data.text import read_pairs
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.options import DecodingOptions
from transduce.evaluate import TestSet, evaluate_model, mean_loss, perplexity
from transduce.family.positions import relative_attention
from transduce.model.attention import Attention, Mask, MultiHeadAttention, fast_attention
from transduce.model.build import Model
from transduce.model.positions import SinusoidalPositions
from transduce.model.transformer import DecoderLayer, EncoderLayer, Transformer, parameter_count
from transduce.storage.checkpoints import checkpoints, load_checkpoint, step_of
from transduce.storage.model_folder import LoadedModel
from transduce.storage.run_request import TrainRequest
from transduce.studies.results import Figures, Results, encode_config
from transduce.studies.runner import CellTask, in_turn, run_cells, timed
from transduce.studies.schedule import outdated_trainings
from transduce.studies.trainings import Texts, Training, read_config, remove_training, score_figures
from transduce.train import TranslationTask, train
from transduce.training.weights import set_weights
from transduce.translate import Translator

WIDTHS = (16, 64, 256)  # d_k
SEEDS = (1, 2)
STEPS = 600
SENTENCES = 64  # of the validation text, on which the softmax is measured
REACH = 8  # distances that have a vector each; all occur often in short pairs


def scaling_trainings() -> list[Training]:
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


# ---- a training in this process ----------------------------------------------------------------------------------


def run_in_process(
    trainings: Sequence[Training], results: Results, measure: Callable[[Training, Path], Figures], *, rerun: bool
) -> None:
    """Train the models that are not done, one by one, and record their figures.

    measure: trains in a folder, or resumes there, and returns the figures. A training that diverged has an entry with
    `diverged`, and is not trained again without `rerun`. A training that fails is only recorded. rerun: train also
    the models that diverged, and the models whose settings have changed since their entry.
    """
    runs = results.path.parent / "runs"
    by_name = {training.name: training for training in trainings if rerun or not results.has_diverged(training.name)}

    def tidy() -> None:
        for name in (training.name for training in trainings):
            if results.is_done(name) or results.has_diverged(name):
                remove_training(runs / name)

    def work(training: Training) -> Figures:
        tidy()
        return timed(measure, training, runs / training.name)

    def make(names: list[str]) -> list[CellTask]:
        cells = [by_name[name] for name in names]
        return [CellTask(cell.name, {"row": cell.row, "seed": cell.seed}, partial(work, cell)) for cell in cells]

    diverged = filter(results.has_diverged, (training.name for training in trainings))
    names = [*outdated_trainings(trainings, results), *diverged] if rerun else []
    again = {name: partial(remove_training, runs / name) for name in names}
    try:
        run_cells([*by_name], make, in_turn, results, again=again)
    finally:
        tidy()


def train_here(training: Training, texts: Texts, run: Path, task: TranslationTask) -> tuple[LoadedModel, Path]:
    """Train in the folder `run`, or resume there; return the model with its first weights, and the last checkpoint.

    Raises KeyboardInterrupt after a signal, and NotFiniteError if the training diverged.
    """
    settings = training.all_settings()
    train(TrainRequest(training.recipe, texts.train, texts.valid, run, settings, resume=True), task)
    config, tokenizer = read_config(run), Tokenizer.load(run / "tokenizer.json")
    last = checkpoints(run)[-1]
    if step_of(last) < config.train.max_steps:
        raise KeyboardInterrupt
    torch.manual_seed(config.train.seed)
    return LoadedModel(task.build(config).eval(), config, tokenizer), last


def load_last(loaded: LoadedModel, last: Path) -> Figures:
    """Give the model the weights of its last checkpoint, and return its size, its steps and its configuration."""
    set_weights(loaded.model, load_checkpoint(last).weights, last)
    sizes = {"parameters": parameter_count(loaded.model), "steps": step_of(last)}
    return {**sizes, "config": encode_config(loaded.config)}


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


class ModelTask(TranslationTask):
    """Translation by the models of a class."""

    def __init__(self, model_class: type[Transformer]) -> None:
        self.model_class = model_class

    def build(self, config: Config) -> Transformer:
        return self.model_class(config.model)


class ScoringTask(ModelTask):
    """Translation, evaluated without a search."""

    def evaluate(
        self, model: Model, config: Config, tokenizer: TokenizerLike, pairs: Sequence[tuple[str, str]]
    ) -> dict[str, float]:
        translator = Translator([LoadedModel(model, config, tokenizer)])
        loss = mean_loss(translator, [src for src, _ in pairs], [ref for _, ref in pairs])
        return {"loss": round(loss, 5), "perplexity": round(perplexity(loss), 4)}

    def describe(self, scores: dict[str, float]) -> str:
        return f"loss {scores['loss']:.3f}"


# ---- a training --------------------------------------------------------------------------------------------------


def train_and_measure(training: Training, texts: Texts, run: Path) -> Figures:
    """Train in `run`, or resume there, and return the figures. Raises as `train_here`."""
    task = ScoringTask(Transformer if training.row.startswith("scaled") else UnscaledTransformer)
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


# ---- relative positions ------------------------------------------------------------------------------------------


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

    def attend(
        self, queries: Tensor, keys_values: Sequence[Tensor], mask: Mask, attention: Attention = fast_attention
    ) -> Tensor:
        return super().attend(queries, keys_values, mask, relative_attention(self.to_keys, self.to_values))


class NoPositions(SinusoidalPositions):
    """Zeros, which are added to the embeddings."""

    def forward(self, start: int, end: int) -> Tensor:
        return torch.zeros_like(super().forward(start, end))


class RelativeTransformer(Transformer):
    """The Transformer with relative positions in all self-attention, and no others."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.positions = NoPositions(config.d_model)
        for layer in cast(Iterable[EncoderLayer | DecoderLayer], (*self.encoder, *self.decoder)):
            plain, layer.self_attention = layer.self_attention, RelativeSelfAttention(config)
            layer.self_attention.load_state_dict(plain.state_dict(), strict=False)  # initialised as the paper's


def train_relative(training: Training, short: Texts, run: Path) -> Figures:
    """Train in `run`, or resume there, and return the scores on short and on longer pairs. Raises as `train_here`."""
    assert short.test is not None
    loaded, last = train_here(training, short, run, ModelTask(RelativeTransformer))
    sizes = load_last(loaded, last)
    translator = Translator([loaded])
    evaluations = {}
    for name, pair in (("valid", short.valid), ("test", short.test)):
        evaluation = evaluate_model(translator, TestSet(*pair, short.language), DecodingOptions())
        evaluations[name] = score_figures(evaluation.lines, evaluation.perplexity or 0.0, evaluation.systems["model"])
    headline = {key: evaluations["valid"][key] for key in Texts.headline}
    return {**headline, **sizes, **evaluations}
