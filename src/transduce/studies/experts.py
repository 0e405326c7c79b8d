"""Mixtures of experts compared with the dense network: the loss of small language models, and the FLOPs that it took.

All rows are the same decoder with RoPE, except for the network in its layers. A token uses as many products in the rows
of experts as in the dense row: one expert of its width, or two of half of it.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from transduce.evaluation.study_report import NOT_RUN, Report
from transduce.family.decoder_only import DecoderOnly
from transduce.family.experts import router_loss, routings
from transduce.model.transformer import parameter_count
from transduce.studies.comparison import Difference, Row, as_factor, by_verdict, report_of, rows_of, samples_of
from transduce.studies.results import Cost, Duration, Figures, JsonObject, Results, figures_type, list_type
from transduce.studies.small_models import SegmentSizes, SmallStudy, Streams, batches, perplexities, train_on_segments
from transduce.training.flops import flops_per_token

SIZES = SegmentSizes(lengths=(64,))
N_EXPERTS = 8
WIDE = 4  # times the width of the dense row


@dataclass(frozen=True)
class Network:
    """The network of a row. width: of one network, over the width of the dense row. router: of experts; None: dense.

    is_balanced: the loss for the balance joins the cross-entropy.
    """

    title: str
    width: float
    router: Literal["switch", "top_k", "noisy_top_k"] | None = None
    is_balanced: bool = False


ROWS: Mapping[str, Network] = {
    "dense": Network("dense", 1),
    "dense-wide": Network("dense, 4 times as wide", WIDE),
    "switch": Network("Switch: 1 of 8", 1, "switch", is_balanced=True),
    "switch-free": Network("the same, without its loss for the balance", 1, "switch"),
    "top-2": Network("Mixtral's: 2 of 8 of half the width", 0.5, "top_k", is_balanced=True),
    "noisy-2": Network("noisy top-k: 2 of 8 of half the width", 0.5, "noisy_top_k", is_balanced=True),
}

# shares: of the tokens, by layer and expert, over an even share.
EXPERTS = figures_type("perplexity", flops_per_token=Cost, optional={"shares": list[list_type(Duration)]})

# ---- a training --------------------------------------------------------------------------------------------------


def build(row: str, sizes: SegmentSizes) -> DecoderOnly:
    """Return the model of a row with random weights."""
    config = replace(sizes.decoder(), d_ff=round(4 * sizes.d_model * ROWS[row].width))
    if router := ROWS[row].router:
        config = replace(config, n_experts=N_EXPERTS, router=router, n_chosen=2)
    return DecoderOnly(config)


def balance(model: nn.Module) -> Tensor:
    """Return the loss for the balance of the experts."""
    return router_loss(routings(model))


def train_and_evaluate(sizes: SegmentSizes, row: str, seed: int, streams: Streams) -> Figures:
    """Return the figures of a row. shares: of the last evaluated tokens, by layer and expert, over an even share."""
    torch.manual_seed(seed)
    model = build(row, sizes)
    train_on_segments(model, streams.train, sizes, seed, balance if ROWS[row].is_balanced else None)
    (value,) = perplexities(model, streams.valid, sizes)
    shares = [(routing.shares / routing.shares.mean()).tolist() for routing in routings(model)]
    inputs, targets, _ = next(batches(streams.train, sizes, seed))
    return {
        "parameters": parameter_count(model),
        "steps": sizes.steps,
        "perplexity": round(value, 4),
        "flops_per_token": flops_per_token(model, inputs, targets),
        **({"shares": [[round(share, 4) for share in layer] for layer in shares]} if shares else {}),
    }


# ---- the report --------------------------------------------------------------------------------------------------


def report(results: Results) -> Report:
    """Return the report of the results so far."""
    entries = rows_of(results, ROWS)
    samples = samples_of(results, ROWS, "perplexity")
    changes = {row: samples.change(row, "dense") for row in ROWS if row != "dense"}
    groups = by_verdict({ROWS[row].title: change for row, change in changes.items()})
    parts = "; ".join(f"{verdict}: {', '.join(titles)}" for verdict, titles in groups.items())
    sentence = f"Compared with the dense network after as many steps, {parts}." if parts else "Nothing to compare yet."
    lines = [[ROWS[row].title, *_cells(entries[row], changes.get(row))] for row in ROWS]
    return report_of(results, sentence=sentence, table=lines)


def _cells(seeds: Row, change: Difference | None) -> list[str]:
    """Return the cells of a row from the entries of its seeds, and its change from the dense row."""
    if not seeds:
        return [NOT_RUN]
    return [
        f"{seeds[0]['parameters']:,}",
        f"{seeds.mean('flops_per_token') / 1e6:.1f}",
        seeds.range("perplexity"),
        as_factor(change),
        _share(seeds, max),
        _share(seeds, min),
        str(len(seeds)),
    ]


def _share(entries: Sequence[JsonObject], extreme: Callable[[list[float]], float]) -> str:
    """Return the mean over layers and seeds of the highest or the lowest share; "" without experts."""
    values = [extreme(layer) for entry in entries for layer in entry.get("shares", [])]
    return f"{statistics.fmean(values):.2f}" if values else ""


STUDY = SmallStudy(
    "experts",
    lambda name, settings: [SmallStudy.training, EXPERTS],
    rows=[*ROWS],
    sizes=SIZES,
    figures=train_and_evaluate,
    report=report,
)
