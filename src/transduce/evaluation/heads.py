"""Attention heads of a Transformer: the importance of each, where it attends, and the same model without some.

A gate is a factor of the output of a head, before W_O: with 1 the model is as it was, with 0 the head is off. Gates are
in the attention function, so the model knows nothing of them. To set the columns of W_O that belong to a head to zero
has the effect of the gate 0: what is left of the sub-layer, its bias included, comes from the other heads.

C calls of attention, H heads; gates are (C,H) or, for each sentence, (C,B,H), in the order of the calls: each layer of
the encoder, then decoder 1, cross 1, decoder 2, and so on.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.data.batches import Batch, collate
from transduce.data.text import is_blank, read_pairs
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.batched_search import length_batches
from transduce.decoding.segmentation import encode_pairs
from transduce.errors import UserError
from transduce.evaluation.attention_view import PARTS, AttentionPart
from transduce.model.attention import Mask, attention_weights, fast_attention
from transduce.model.build import Model
from transduce.model.transformer import DecoderLayer, EncoderLayer, Transformer
from transduce.training.loss import token_log_probs

Measure = Literal["loss", "gradient"]

BATCH_TOKENS = 2_000  # of a batch; the gradient needs the activations of all layers


@dataclass(frozen=True)
class Head:
    """An attention head. layer, number: counted from 1."""

    part: AttentionPart
    layer: int
    number: int

    def __str__(self) -> str:
        return f"{self.part} {self.layer}.{self.number}"


@dataclass(frozen=True)
class HeadFigures:
    """The figures of a head.

    name: part, layer and number, such as "cross 6.8", the eighth head of layer 6.
    loss_increase: increase of the loss of a token, in nats, when the head is off.
    gradient: mean over sentences of |d loss / d gate|, per token (Michel et al. 2019).
    entropy: mean entropy of a row of its weights, in nats.
    previous, same, next: shares of its attention on the position before the query, on its own, and on the next.
    end: share on EOS of the source. begin: share on BOS. A share is None where the head has no such position.
    is_pruned: True if its columns of W_O are zero.
    """

    name: str
    loss_increase: float
    gradient: float
    entropy: float
    previous: float | None
    same: float | None
    next: float | None
    end: float | None
    begin: float | None
    is_pruned: bool


@dataclass(frozen=True)
class HeadReport:
    """The figures of all heads of a model.

    pairs, tokens: numbers of pairs and tokens in the text, EOS counted. loss: loss of a token with all heads.
    """

    pairs: int
    tokens: int
    loss: float
    heads: tuple[HeadFigures, ...]


def transformer_of(model: Model) -> Transformer:
    """Return the model. Raises UserError for a rival of Table 2, which has no heads."""
    if not isinstance(model, Transformer):
        raise UserError("the model: expected a Transformer, because the rivals of Table 2 have no heads; give another")
    return model


def heads_of(model: Transformer) -> list[Head]:
    """Return the heads of a model: of the encoder, of the decoder, and of its attention to the source."""
    encoder, decoder = model.config.depths
    depths, numbers = zip(PARTS, (encoder, decoder, decoder), strict=True), range(1, model.config.n_heads + 1)
    return [Head(part, layer + 1, number) for part, depth in depths for layer in range(depth) for number in numbers]


def measure_heads(
    model: Transformer, batches: Sequence[Batch], on_head: Callable[[int], None] = lambda n_done: None
) -> HeadReport:
    """Return the figures of each head on pairs of sentences. on_head: called with the number of heads that are done."""
    tokens = _n_tokens(batches)
    gradients, shares = _gradients(model, batches) / tokens, _shares(model, batches)
    memories = [_encode(model, batch, _gates(model)) for batch in batches]
    loss = _loss(model, batches, memories) / tokens
    figures = []
    for n_done, head in enumerate(heads_of(model), start=1):
        increase = _loss(model, batches, None if head.part == "encoder" else memories, [head]) / tokens - loss
        place = _row(head, model), head.number - 1
        entropy, *others = shares[:, *place].tolist()
        others = [None if math.isnan(share) else share for share in others]
        gradient = gradients[place].item()
        figures.append(HeadFigures(str(head), increase, gradient, entropy, *others, is_pruned=is_pruned(model, head)))
        on_head(n_done)
    return HeadReport(sum(len(batch.src) for batch in batches), tokens, loss, tuple(figures))


def loss_without(model: Transformer, batches: Sequence[Batch], heads: Sequence[Head]) -> float:
    """Return the loss of a token, in nats, while these heads are off."""
    return _loss(model, batches, None, heads) / _n_tokens(batches)


def _n_tokens(batches: Sequence[Batch]) -> int:
    return sum(len(batch.tgt_indices) for batch in batches)


def read_worth(path: Path) -> dict[str, float]:
    """Return what each head is worth, by name, from the JSON of `transduce heads`. Raises UserError for other files."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=HeadReport)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as problem:
        remedy = "run transduce heads MODEL --src SRC --tgt TGT --json"
        raise UserError(f"{path}: expected the output of transduce heads --json, but {problem}; {remedy}") from None
    return {figures.name: figures.loss_increase for figures in report.heads}


# ---- pruning -----------------------------------------------------------------------------------------------------


def least_important(report: HeadReport, count: int, by: Measure = "loss") -> list[Head]:
    """Return the `count` heads that matter least, the least important first. Pruned heads come before all others."""
    values = {figures: figures.gradient if by == "gradient" else figures.loss_increase for figures in report.heads}
    order = sorted(report.heads, key=lambda figures: (not figures.is_pruned, values[figures]))
    return [_head(figures.name) for figures in order[:count]]


def least_gradient(model: Transformer, batches: Sequence[Batch], count: int) -> list[Head]:
    """Return the same as `least_important(measure_heads(model, batches), count, "gradient")`, in one pass."""
    gradients = _gradients(model, batches)
    values = {head: gradients[_row(head, model), head.number - 1].item() for head in heads_of(model)}
    return sorted(values, key=lambda head: (not is_pruned(model, head), values[head]))[:count]


@torch.no_grad()
def prune_heads(model: Transformer, heads: Iterable[Head]) -> None:
    """Set the columns of W_O that belong to these heads to zero."""
    for head in heads:
        _columns(model, head).zero_()


def is_pruned(model: Transformer, head: Head) -> bool:
    """Return True if the columns of W_O that belong to the head are zero."""
    return not _columns(model, head).any()


def _columns(model: Transformer, head: Head) -> Tensor:
    """Return the columns of W_O (D,W) that belong to a head. They share memory with the model."""
    if head.part == "encoder":
        attention = cast(EncoderLayer, model.encoder[head.layer - 1]).self_attention
    else:
        layer = cast(DecoderLayer, model.decoder[head.layer - 1])
        attention = layer.cross_attention if head.part == "cross" else layer.self_attention
    return attention.w_o.weight.detach().chunk(attention.n_heads, dim=1)[head.number - 1]


def _head(name: str) -> Head:
    part, _, numbers = name.partition(" ")
    layer, _, number = numbers.partition(".")
    return Head(part, int(layer), int(number))  # pyright: ignore[reportArgumentType]


# ---- text --------------------------------------------------------------------------------------------------------


def read_batches(src: Path, tgt: Path, tokenizer: TokenizerLike, model: Transformer, n_pairs: int) -> list[Batch]:
    """Return batches of `n_pairs` pairs, or of all if there are fewer, spread evenly over two texts.

    Pairs with a blank source are left out. Raises UserError if none is left, or at a line that is too long.
    """
    numbered = [(number, *pair) for number, pair in enumerate(read_pairs(src, tgt), start=1) if not is_blank(pair[0])]
    count = min(n_pairs, len(numbered))
    if not count:
        raise UserError(f"{src}: expected a line that is not blank; give a text to measure on")
    numbers, sources, targets = zip(*(numbered[i * len(numbered) // count] for i in range(count)), strict=True)
    ids, too_long = encode_pairs(sources, targets, tokenizer, model.config.max_positions)
    if too_long is not None:
        raise UserError(f"{(src, tgt)[too_long.side]}:{numbers[too_long.index]}: {too_long.excess}")
    rows = [(np.asarray(src, np.int64), np.asarray(tgt, np.int64)) for src, tgt in ids]
    return [
        collate([rows[i][0] for i in members], [rows[i][1] for i in members]).to(model.output.weight.device)
        for members in length_batches([max(map(len, row)) for row in rows], 1, BATCH_TOKENS)
    ]


# ---- gates -------------------------------------------------------------------------------------------------------


class _GatedAttention:
    """An attention function that multiplies the outputs of call i, by head, by row i of `gates`."""

    def __init__(self, gates: Iterable[Tensor]) -> None:
        self.gates = iter(gates)

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        return fast_attention(queries, keys, values, mask, dropout) * next(self.gates)[..., None, None]


def _gates(model: Transformer, *batch: int) -> Tensor:
    """Return the gates of a model that are all 1. batch: nothing, or the number of sentences."""
    encoder, decoder = model.config.depths
    shape = (encoder + 2 * decoder, *batch, model.config.n_heads)
    return torch.ones(shape, device=model.output.weight.device)


def _row(head: Head, model: Transformer) -> int:
    """Return the number of the call of attention that computes a head."""
    if head.part == "encoder":
        return head.layer - 1
    return len(model.encoder) + 2 * (head.layer - 1) + (head.part == "cross")


def _encode(model: Transformer, batch: Batch, gates: Tensor) -> Tensor:
    return model.encode(batch.src, batch.src_mask, _GatedAttention(gates[: len(model.encoder)]))


def _decode(model: Transformer, batch: Batch, memory: Tensor, gates: Tensor) -> Tensor:
    return model.decode(batch.tgt_in, memory, batch.src_mask, _GatedAttention(gates[len(model.encoder) :]))


@torch.no_grad()
def _loss(
    model: Transformer, batches: Sequence[Batch], memories: Sequence[Tensor] | None, off: Sequence[Head] = ()
) -> float:
    """Return the loss of all tokens while the heads `off` are off.

    memories: outputs of the encoder for the batches, if they are known: a head of the decoder does not change them.
    """
    gates = _gates(model)
    for head in off:
        gates[_row(head, model), head.number - 1] = 0
    total = 0.0
    for i, batch in enumerate(batches):
        memory = _encode(model, batch, gates) if memories is None else memories[i]
        hidden, targets = batch.real(_decode(model, batch, memory, gates))
        total -= token_log_probs(hidden, model.output.weight, targets, model.output.bias).sum().item()
    return total


def _gradients(model: Transformer, batches: Sequence[Batch]) -> Tensor:
    """Return the sum over sentences of |d loss / d gate| (C,H). Each sentence has its own gates."""
    total = torch.zeros_like(_gates(model))
    for batch in batches:
        gates = _gates(model, len(batch.src)).requires_grad_()
        hidden, targets = batch.real(_decode(model, batch, _encode(model, batch, gates), gates))
        loss = F.cross_entropy(model.logits(hidden), targets, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, gates)
        total += gradient.abs().sum(1)
    return total


# ---- where heads attend ------------------------------------------------------------------------------------------


@torch.no_grad()
def _shares(model: Transformer, batches: Sequence[Batch]) -> Tensor:
    """Return means over the rows of the weights (6,C,H): entropy, and the shares of HeadFigures; NaN: no position."""
    n_encoder_layers = len(model.encoder)
    sums = torch.zeros(6, *_gates(model).shape)
    for batch in batches:
        _add_sums(sums, model, batch)
    sums[:, :n_encoder_layers] /= sum(int(batch.src_mask.sum()) for batch in batches)
    sums[:, n_encoder_layers:] /= _n_tokens(batches)
    return sums


def _add_sums(sums: Tensor, model: Transformer, batch: Batch) -> None:
    """Add the sums over the rows of a batch to `sums` (6,C,H)."""
    n_encoder_layers, calls = len(model.encoder), itertools.count()

    def observing_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        weights, call = attention_weights(queries, keys, mask), next(calls)
        part = "encoder" if call < n_encoder_layers else PARTS[1 + (call - n_encoder_layers) % 2]
        sums[:, call] += _sums(weights, part, batch).cpu()
        return weights @ values

    memory = model.encode(batch.src, batch.src_mask, observing_attention)
    model.decode(batch.tgt_in, memory, batch.src_mask, observing_attention)


def _sums(weights: Tensor, part: AttentionPart, batch: Batch) -> Tensor:
    """Return the sums over the real rows of weights (B,H,T,S) that `_shares` returns means of (6,H)."""
    unknown = torch.full_like(weights[..., 0], math.nan)
    previous, same, following, end, begin = [unknown] * 5
    if part != "cross":
        previous, same = F.pad(weights.diagonal(-1, -2, -1), (1, 0)), weights.diagonal(0, -2, -1)
    if part == "encoder":
        following = F.pad(weights.diagonal(1, -2, -1), (0, 1))
    if part == "decoder":
        begin = weights[..., 0]
    else:
        keys = (batch.src_mask.sum(1) - 1)[:, None, None, None].expand(*weights.shape[:-1], 1)
        end = weights.gather(-1, keys)[..., 0]
    entropy = torch.special.entr(weights).sum(-1)
    rows = batch.src_mask if part == "encoder" else batch.tgt_mask
    return (torch.stack([entropy, previous, same, following, end, begin]) * rows[:, None]).sum((1, 3))


# ---- the table ---------------------------------------------------------------------------------------------------


def format_heads(report: HeadReport) -> str:
    """Return the report as a table to read, the most important head first."""
    lines = [
        f"{report.pairs:,} pairs, {report.tokens:,} tokens; loss {report.loss:.4f} nats a token",
        "",
        f"{'head':14} {'without it':>10} {'gradient':>9} {'entropy':>8}" + "".join(f"{name:>9}" for name in SHARES),
    ]
    for head in sorted(report.heads, key=lambda head: -head.loss_increase):
        shares = [getattr(head, name) for name in SHARES.values()]
        line = f"{head.name:14} {head.loss_increase:+10.4f} {head.gradient:9.4f} {head.entropy:8.2f}"
        line += "".join(f"{'-':>9}" if share is None else f"{share:9.0%}" for share in shares)
        lines.append(line + ("  pruned" if head.is_pruned else ""))
    return "\n".join(lines)


SHARES = {"previous": "previous", "same": "same", "next": "next", "on EOS": "end", "on BOS": "begin"}
