"""Forms of attention, measured: time and memory against the length, and the loss of a small model with each.

The costs of all forms at one length are measured in turn, and are one entry of results.json. Each training is another.
A causal form is trained to predict the next token, in GPT-2 or in T6. Another form sees both sides, so it is trained to
restore masked tokens, in BERT. All models of a kind have the same sizes, steps, texts and order of the texts.
"""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.data.vocabulary import UNK
from transduce.family.attention_configs import T6Config
from transduce.family.bert import Bert
from transduce.family.configs import BertConfig, GPT2Config, LlamaConfig
from transduce.family.gpt2 import GPT2
from transduce.family.initialisation import initialise
from transduce.family.llama import Llama
from transduce.family.longformer import LongformerAttention
from transduce.family.tensor_product_attention import T6
from transduce.model.attention import Attention
from transduce.model.transformer import parameter_count
from transduce.studies.attention_forms import SIZES, AttentionShape, AttentionSizes, TrainedForm, forms, measure, rows
from transduce.studies.attention_report import report
from transduce.studies.results import Cost, Duration, Figures, PositiveInt, Results, Study, figures_type, settings_type
from transduce.studies.runner import CellTask, in_turn, print_line, run_tasks, timed
from transduce.studies.small_models import Streams, hashes, read_streams, train_small

# The costs of a form of attention, or of a layer with it, at a length.
COSTS = figures_type(
    forward_seconds=Cost, backward_seconds=Cost, peak_bytes=PositiveInt, optional={"cache_bytes_per_token": PositiveInt}
)
COSTS_OF_FORMS = figures_type("n", forms=dict[str, COSTS])
TRAINING = figures_type("row", "seed", "parameters", "cpu_seconds", loss=Duration)  # in nats for a predicted token

STUDY = Study(
    "attention",
    lambda name, settings: [COSTS_OF_FORMS if name.startswith("costs-") else TRAINING],
    figures_type(sizes=settings_type(AttentionSizes)),
)


def run_attention(train: Path, valid: Path, out: Path, *, sizes: AttentionSizes = SIZES) -> Results:
    """Measure and train what is not yet in OUT/results.json, and write the report.

    train, valid: texts whose lines follow one another. It runs on the CPU, with torch's number of threads. An
    interrupted training starts again. Raises UserError if `out` has results of other texts or sizes, or for an unusable
    text. Raises the errors of `runner.run_cells`, too.
    """
    results = STUDY.open(out, {**hashes(train, valid), "sizes": sizes})
    trainings = {f"{row.name}-{seed}": (row, seed) for row in rows(sizes) for seed in row.seeds}
    costs = [CellTask(f"costs-{n}", {"n": n}, partial(measure, n, sizes)) for n in sizes.lengths]

    def prepare() -> list[CellTask]:
        texts = token_texts(train, valid, sizes)
        tasks = [
            CellTask(name, {"row": row.name, "seed": seed}, partial(timed, train_and_evaluate, row, seed, texts, sizes))
            for name, (row, seed) in trainings.items()
        ]
        return [*costs, *tasks]

    return run_tasks([*trainings, *(task.name for task in costs)], prepare, in_turn, results, report)


# ---- models ------------------------------------------------------------------------------------------------------


class MaskedWords(nn.Module):
    """BERT with a form of attention: the logits of all tokens from ids (B,T)."""

    def __init__(self, config: BertConfig, attention: Attention) -> None:
        super().__init__()
        self.bert, self.attention = Bert(config), attention

    def forward(self, ids: Tensor) -> Tensor:
        assert self.bert.words is not None
        mask = torch.ones_like(ids, dtype=torch.bool)
        return self.bert.words(self.bert.encoder(ids, mask, attention=self.attention))


def model_of(row: TrainedForm, vocab_size: int, sizes: AttentionSizes) -> nn.Module:
    """Return the model of a row with new weights, logits (B,T,V) of ids (B,T)."""
    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "d_model": sizes.d_model,
        "n_layers": sizes.n_layers,
        "n_heads": sizes.n_heads,
        "max_positions": sizes.length,
    }
    d_ff = 8 * sizes.d_model // 3
    if row.name == "llama":
        return Llama(LlamaConfig(**shape, d_ff=d_ff, tied=False))
    if row.name == "tpa":
        return T6(T6Config(**shape, d_ff=d_ff, tied=False, q_rank=sizes.ranks[0], kv_rank=sizes.ranks[1]))
    name = row.base if row.name == "longformer" else row.name
    (form,) = (form for form in forms(sizes) if form.name == name)
    attention = form.make(AttentionShape(sizes.length, sizes.n_heads, sizes.d_model // sizes.n_heads))
    if row.causal:
        gpt2 = GPT2(GPT2Config(**shape, dropout=0.0))
        gpt2.attention = attention
        return gpt2
    model = MaskedWords(BertConfig(**shape, dropout=0.0), attention)
    if row.name == "longformer":
        for layer in model.bert.encoder.layers:
            layer.self_attention = LongformerAttention(
                sizes.d_model, sizes.n_heads, sizes.reach, n_global=sizes.n_global
            )
        initialise(model.bert.named_parameters())
    return model


# ---- texts -------------------------------------------------------------------------------------------------------


def token_texts(train: Path, valid: Path, sizes: AttentionSizes) -> Streams:
    """Return two files, whose lines follow one another, cut into texts (N,length+1). Raises as `read_streams`."""
    size = sizes.length + 1
    streams = read_streams(train, valid, sizes.vocab_size, (size, size))
    texts, valid_texts = (ids[: len(ids) // size * size].view(-1, size) for ids in (streams.train, streams.valid))
    return Streams(texts, valid_texts[: sizes.valid_texts], streams.vocab_size)


def task_of(texts: Tensor, generator: torch.Generator, mask_share: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs (B,T), targets (B,T), and the places (B,T) that count, of texts (B,T+1).

    mask_share: of the places, at random, where the input is UNK, and the target is the token itself. None: the target
    is the next token, at all places.
    """
    if mask_share is None:
        return texts[:, :-1], texts[:, 1:], torch.ones_like(texts[:, 1:], dtype=torch.bool)
    targets = texts[:, :-1]
    places = torch.rand(targets.shape, generator=generator) < mask_share
    return targets.masked_fill(places, UNK), targets, places


# ---- a training --------------------------------------------------------------------------------------------------


def train_and_evaluate(row: TrainedForm, seed: int, texts: Streams, sizes: AttentionSizes) -> Figures:
    """Train the model of a row, and return its figures. Raises UserError if the loss is not finite."""
    torch.manual_seed(seed)
    model = model_of(row, texts.vocab_size, sizes)
    mask_share = None if row.causal else sizes.mask_share

    def losses() -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        n_epochs = math.ceil(sizes.steps * sizes.batch / len(texts.train))
        order = torch.cat([torch.randperm(len(texts.train), generator=generator) for _ in range(n_epochs)])
        for batch in order.split(sizes.batch)[: sizes.steps]:
            yield mean_loss(model, task_of(texts.train[batch], generator, mask_share))

    def show(step: int, loss: float) -> None:
        print_line(f"{row.title}, seed {seed}: step {step}, loss {loss:.3f}")

    def rate(step: int) -> float:
        falling = (sizes.steps + 1 - step) / max(1, sizes.steps - sizes.warmup)
        return sizes.rate * min(step / sizes.warmup, falling)

    optimizer = torch.optim.Adam(model.parameters(), lr=sizes.rate, betas=(0.9, 0.98), eps=1e-9)
    train_small(model, losses(), rate, optimizer=optimizer, largest_gradient=sizes.largest_gradient, show=show)
    return {
        "loss": round(evaluate(model, texts.valid, sizes.batch, mask_share), 5),
        "parameters": parameter_count(model),
        "steps": sizes.steps,
    }


def mean_loss(model: nn.Module, task: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy, in nats, at the places that count."""
    inputs, targets, places = task
    return F.cross_entropy(model(inputs)[places], targets[places])


@torch.inference_mode()
def evaluate(model: nn.Module, texts: Tensor, batch: int, mask_share: float | None) -> float:
    """Return the mean loss on texts, in nats for each token that counts. The masked places are always the same.

    batch: texts at a time.
    """
    generator = torch.Generator().manual_seed(0)
    model.eval()
    losses, counts = [], []
    for part in texts.split(batch):
        task = task_of(part, generator, mask_share)
        counts.append(int(task[2].sum()))
        losses.append(float(mean_loss(model, task)) * counts[-1])
    return sum(losses) / sum(counts)
