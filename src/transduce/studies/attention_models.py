"""Small models with each form of attention, trained on one text: language models, and models of masked words.

A causal form is trained to predict the next token, in GPT-2 or in T6. Another form sees both sides, so it is trained to
restore masked tokens, in BERT. All models of a kind have the same sizes, steps, texts and order of the texts.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.data.text import is_blank, read_lines
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import EOS, UNK
from transduce.errors import UserError
from transduce.family.around import NO_PAST, Past
from transduce.family.bert import Bert, BertEncoder, WordHead
from transduce.family.gpt2 import GPT2
from transduce.family.llama import Llama
from transduce.family.longformer import LongformerAttention
from transduce.family.tpa import T6
from transduce.model.attention import Attention
from transduce.model.transformer import parameter_count
from transduce.studies.attention_forms import FORM, REACH, Shape

LENGTH = 512  # tokens of a text
D_MODEL, LAYERS, HEADS = 128, 3, 4
VOCABULARY = 4_000
STEPS, BATCH = 400, 8  # texts in a batch
RATE, WARMUP = 1e-3, 40  # the largest learning rate, and the steps until it; then it falls to 0
VALID_TEXTS = 32  # at most, of the validation text
MASK_SHARE = 0.15


@dataclass(frozen=True)
class Row:
    """A row of a table of trainings. base: the row with exact attention that it is compared with."""

    name: str
    title: str
    base: str
    causal: bool = True
    seeds: tuple[int, ...] = (1,)


def _row(form: str, base: str, seeds: tuple[int, ...] = (1,)) -> Row:
    return Row(form, FORM[form].title, base, FORM[form].causal, seeds)


ROWS = (
    _row("fused", "fused", (1, 2, 3)),
    *(_row(form, "fused") for form in ("online", "window", "strided", "fixed", "performer")),
    Row("llama", "Llama, exact", "llama", seeds=(1, 2)),
    Row("tpa", "T6: tensor product attention", "llama"),
    _row("fused-both", "fused-both", (1, 2, 3)),
    Row("longformer", f"Longformer, window of {2 * REACH + 1} and one global position", "fused-both", causal=False),
    *(_row(form, "fused-both") for form in ("bigbird", "linformer", "performer-both")),
)

# ---- models ------------------------------------------------------------------------------------------------------


class FormGPT2(GPT2):
    """GPT-2 with a form of attention."""

    def __init__(self, vocab_size: int, attention: Attention) -> None:
        super().__init__(vocab_size, D_MODEL, LAYERS, HEADS, n_positions=LENGTH, dropout=0.0)
        self.attention = attention

    def states(self, ids: Tensor, past: Past = NO_PAST, attention: Attention | None = None) -> tuple[Tensor, Past]:
        return super().states(ids, past, attention or self.attention)


class MaskedWords(nn.Module):
    """BERT with a form of attention: the logits of all tokens from ids (B,T)."""

    def __init__(self, vocab_size: int, attention: Attention) -> None:
        super().__init__()
        encoder = BertEncoder(vocab_size, D_MODEL, LAYERS, HEADS, n_positions=LENGTH, dropout=0.0)
        self.bert, self.attention = Bert(encoder, words=WordHead(encoder.embedding)), attention

    def forward(self, ids: Tensor) -> Tensor:
        assert self.bert.words is not None
        mask = torch.ones_like(ids, dtype=torch.bool)
        return self.bert.words(self.bert.encoder(ids, mask, attention=self.attention))


def model_of(row: Row, vocab_size: int) -> nn.Module:
    """Return the model of a row with new weights, logits (B,T,V) of ids (B,T)."""
    if row.name in ("llama", "tpa"):
        kind = {"llama": Llama, "tpa": T6}[row.name]
        return kind(vocab_size, D_MODEL, LAYERS, HEADS, d_ff=8 * D_MODEL // 3)
    attention = FORM["fused-both" if row.name == "longformer" else row.name].make(
        Shape(LENGTH, HEADS, D_MODEL // HEADS)
    )
    if row.causal:
        return FormGPT2(vocab_size, attention)
    model = MaskedWords(vocab_size, attention)
    if row.name == "longformer":
        for layer in model.bert.encoder.layers:
            layer.self_attention = LongformerAttention(D_MODEL, HEADS, REACH)
        model.bert.initialise()
    return model


# ---- texts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenTexts:
    """Texts of LENGTH + 1 tokens: of the training text and of the validation text, (N,LENGTH+1)."""

    vocab_size: int
    train: Tensor
    valid: Tensor


def token_texts(train: Path, valid: Path) -> TokenTexts:
    """Return the texts of two files, whose lines follow one another, with EOS after each.

    Raises UserError for a file that is too short, or cannot be read.
    """
    lines = {"train": list(read_lines(train)), "valid": list(read_lines(valid))}
    tokenizer = None if all(map(is_blank, lines["train"])) else Tokenizer.learn(lines["train"], vocab_size=VOCABULARY)
    texts = []
    for name, path in (("train", train), ("valid", valid)):
        ids = [i for line in tokenizer.encode_batch(lines[name]) for i in (*line, EOS)] if tokenizer else []
        count = len(ids) // (LENGTH + 1)
        if not count:
            raise UserError(f"--{name}={path}: expected at least {LENGTH + 1} tokens; give a longer text")
        texts.append(torch.tensor(ids[: count * (LENGTH + 1)]).view(count, LENGTH + 1))
    assert tokenizer is not None
    return TokenTexts(tokenizer.vocab_size, texts[0], texts[1][:VALID_TEXTS])


def task_of(texts: Tensor, generator: torch.Generator, *, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs (B,LENGTH), targets (B,LENGTH), and the places (B,LENGTH) that count.

    Causal: the next token, at all places. Otherwise the token itself, at random places, where the input is UNK.
    """
    if causal:
        return texts[:, :-1], texts[:, 1:], torch.ones_like(texts[:, 1:], dtype=torch.bool)
    targets = texts[:, :-1]
    places = torch.rand(targets.shape, generator=generator) < MASK_SHARE
    return targets.masked_fill(places, UNK), targets, places


# ---- a training --------------------------------------------------------------------------------------------------


def train(row: Row, seed: int, texts: TokenTexts, report: Callable[[int, float], None]) -> dict[str, Any]:
    """Train the model of a row, and return its figures. report: called with the step and the loss, now and then."""
    torch.manual_seed(seed)
    model = model_of(row, texts.vocab_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9)
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(len(texts.train), generator=generator) for _ in range(_epochs(texts))])
    start, processor_start = time.monotonic(), time.process_time()
    for step in range(STEPS):
        rate = RATE * min((step + 1) / WARMUP, (STEPS - step) / max(1, STEPS - WARMUP))
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = texts.train[order[step * BATCH : (step + 1) * BATCH]]
        loss = mean_loss(model, task_of(batch, generator, causal=row.causal))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 49:
            report(step + 1, loss.item())
    cost = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - processor_start}
    return {
        "loss": round(evaluate(model, texts.valid, causal=row.causal), 5),
        "parameters": parameter_count(model),
        "steps": STEPS,
        **{name: round(value, 1) for name, value in cost.items()},
    }


def _epochs(texts: TokenTexts) -> int:
    return math.ceil(STEPS * BATCH / len(texts.train))


def mean_loss(model: nn.Module, task: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy, in nats, at the places that count."""
    inputs, targets, places = task
    return F.cross_entropy(model(inputs)[places], targets[places])


@torch.inference_mode()
def evaluate(model: nn.Module, texts: Tensor, *, causal: bool) -> float:
    """Return the mean loss on texts, in nats for each token that counts. The masked places are always the same."""
    generator = torch.Generator().manual_seed(0)
    model.eval()
    losses, counts = [], []
    for batch in texts.split(BATCH):
        task = task_of(batch, generator, causal=causal)
        counts.append(int(task[2].sum()))
        losses.append(float(mean_loss(model, task)) * counts[-1])
    return sum(losses) / sum(counts)
