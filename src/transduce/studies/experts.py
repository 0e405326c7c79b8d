"""Mixtures of experts beside the dense network: the loss of small language models, and the FLOPs that it took.

All rows are the same decoder with RoPE, but for the network in its layers. A token uses as many products in the rows of
experts as in the dense row: one expert of its width, or two of half of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from transduce.evaluation.study_report import write_report
from transduce.family.decoder import Decoder
from transduce.family.experts import router_loss, routings
from transduce.family.kinds import ConfiguredDecoder
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
class Row:
    """The network of a row. width: of one network, over that of the dense row. router: of experts; None: it is dense.

    is_balanced: the loss for the balance joins the cross-entropy.
    """

    width: float
    router: Literal["switch", "top_k", "noisy_top_k"] | None = None
    is_balanced: bool = False


ROWS: Mapping[str, Row] = {
    "dense": Row(1),
    "dense-wide": Row(WIDE),
    "switch": Row(1, "switch", is_balanced=True),
    "switch-free": Row(1, "switch"),
    "top-2": Row(0.5, "top_k", is_balanced=True),
    "noisy-2": Row(0.5, "noisy_top_k", is_balanced=True),
}


def build(row: str, sizes: Sizes) -> Decoder:
    """Return the model of a row with random weights."""
    config = replace(sizes.decoder(), d_ff=round(4 * sizes.d_model * ROWS[row].width))
    if router := ROWS[row].router:
        config = replace(config, n_experts=N_EXPERTS, router=router, n_chosen=2)
    return ConfiguredDecoder(config)


def balance(model: SmallModel) -> Tensor:
    """Return the loss for the balance of the experts."""
    return router_loss(routings(model))


def run_experts(train: Path, valid: Path, out: Path, *, jobs: int | None = None, sizes: Sizes = SIZES) -> Results:
    """Train and evaluate the rows that are not yet in OUT/results.json, and write the report.

    train, valid: texts whose lines follow each other. jobs: number of trainings at the same time, each on one thread;
    None: one for each core. Raises UserError at the end if trainings have failed.
    """
    results = open_results(out, "experts", {**hashes(train, valid), "sizes": sizes.as_settings()})
    try:
        run_rows([*ROWS], (train, valid), sizes, results, partial(train_and_evaluate, sizes), jobs)
    finally:
        if results.entries:
            write_report(out, report(results), results.sessions)
    return results


def train_and_evaluate(sizes: Sizes, row: str, seed: int, streams: Streams) -> dict[str, Any]:
    """Return the figures of a row. shares: of the last evaluated tokens, by layer and expert, over an even share."""
    torch.manual_seed(seed)
    model = build(row, sizes)
    train_on(model, streams.train, sizes, seed, balance if ROWS[row].is_balanced else None)
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
