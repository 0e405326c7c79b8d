"""Mixtures of experts beside the dense network: the loss of small language models, and the FLOPs that it took.

All rows are the same decoder with RoPE, but for the network in its layers. A token uses as many products in the rows of
experts as in the dense row: one expert of its width, or two of half of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from transduce.evaluation.study_report import write_report
from transduce.family.decoder import Decoder
from transduce.family.experts import (
    Experts,
    NoisyTopK,
    Switch,
    TopK,
    balance_loss,
    experts,
    importance_loss,
    load_loss,
    routings,
)
from transduce.family.positions import Rotary
from transduce.model.transformer import parameter_count
from transduce.studies.experts_report import report
from transduce.studies.results import Results, open_results
from transduce.studies.rows import run_rows
from transduce.studies.segments import Sizes, SmallModel, Streams, batches, hashes, perplexities, train_on
from transduce.training.flops import ADDED_COUNTS

SIZES = Sizes(lengths=(64,))
N_EXPERTS = 8
WIDE = 4  # times the width of the dense row


@dataclass(frozen=True)
class Kind:
    """The network of a row. width: of one network, over that of the dense row. router: None if it is dense.

    added_loss: joins the cross-entropy.
    """

    width: float
    router: Callable[[int], TopK | Switch] | None = None
    added_loss: Callable[[SmallModel], Tensor] | None = None


def balance(model: SmallModel) -> Tensor:
    """Return the loss for the balance of Switch and Mixtral, with their factor."""
    return 0.01 * balance_loss(routings(model))


def importance_and_load(model: SmallModel) -> Tensor:
    """Return the two losses of Shazeer et al. (2017), with their factor (appendix C)."""
    return 0.1 * (importance_loss(routings(model)) + load_loss(routings(model)))


KINDS: Mapping[str, Kind] = {
    "dense": Kind(1),
    "dense-wide": Kind(WIDE),
    "switch": Kind(1, lambda d_model: Switch(d_model, N_EXPERTS), balance),
    "switch-free": Kind(1, lambda d_model: Switch(d_model, N_EXPERTS)),
    "top-2": Kind(0.5, lambda d_model: TopK(d_model, N_EXPERTS, 2), balance),
    "noisy-2": Kind(0.5, lambda d_model: NoisyTopK(d_model, N_EXPERTS, 2), importance_and_load),
}


def build(row: str, sizes: Sizes) -> Decoder:
    """Return the model of a row with random weights."""
    kind, d_model = KINDS[row], sizes.d_model
    d_ff, router = round(4 * d_model * kind.width), kind.router
    shape = sizes.vocab_size, d_model, sizes.n_layers, sizes.n_heads
    networks: Callable[[], Experts] | None = (lambda: experts(router(d_model), d_ff)) if router else None
    positions = Rotary(d_model // sizes.n_heads)
    return Decoder(*shape, positions, feed_forward=networks, d_ff=d_ff, dropout=sizes.dropout)


def run_experts(train: Path, valid: Path, out: Path, *, sizes: Sizes = SIZES) -> Results:
    """Train and evaluate the rows that are not yet in OUT/results.json, one by one, and write the report.

    train, valid: texts whose lines follow each other. Raises UserError at the end if trainings have failed.
    """
    results = open_results(out, "experts", {**hashes(train, valid), "sizes": sizes.as_settings()})
    try:
        run_rows([*KINDS], (train, valid), sizes, results, partial(train_and_evaluate, sizes))
    finally:
        if results.entries:
            write_report(out, report(results), results.sessions)
    return results


def train_and_evaluate(sizes: Sizes, row: str, seed: int, streams: Streams) -> dict[str, Any]:
    """Return the figures of a row. shares: of the last evaluated tokens, by layer and expert, over an even share."""
    torch.manual_seed(seed)
    model = build(row, sizes)
    train_on(model, streams.train, sizes, seed, KINDS[row].added_loss)
    (value,) = perplexities(model, streams.valid, sizes)
    shares = [(one.shares / one.shares.mean()).tolist() for one in routings(model)]
    return {
        "parameters": parameter_count(model),
        "steps": sizes.steps,
        "perplexity": round(value, 4),
        "flops_per_token": flops_per_token(model, streams.train, sizes, seed),
        **({"shares": [[round(share, 4) for share in layer] for layer in shares]} if shares else {}),
    }


def flops_per_token(model: Decoder, ids: Tensor, sizes: Sizes, seed: int) -> int:
    """Return the FLOPs of the products in a training step, forward and backward, over the tokens of its batch."""
    inputs, targets, _ = next(batches(ids, sizes, seed))
    model.train()
    with FlopCounterMode(display=False, custom_mapping=ADDED_COUNTS) as counter:
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    model.zero_grad()
    model.eval()
    return round(counter.get_total_flops() / inputs.numel())
