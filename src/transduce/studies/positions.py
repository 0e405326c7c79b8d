"""Positions beyond the training length: small language models, trained on segments of 64 tokens, evaluated up to 512.

A row is a way to know the order of tokens (`family/positions.py`), or Transformer-XL. The model with RoPE is also
evaluated with its frequencies scaled for the longest text, without training on longer text.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from transduce.evaluation.study_report import NOT_RUN, Report, rows_table
from transduce.family.configs import TransformerXLConfig, sizes_of
from transduce.family.decoder_only import DecoderOnly
from transduce.family.positions import Bucketed, Rotary
from transduce.family.rope import DynamicRope, LinearRope, Rope, YarnRope, ntk_theta
from transduce.family.transformer_xl import TransformerXL
from transduce.model.transformer import parameter_count
from transduce.studies.comparison import as_factor, by_verdict, mean_and_range, paired_difference, report_of
from transduce.studies.results import Figures, PositiveInt, Results, figures_type, list_type
from transduce.studies.small_models import SegmentSizes, SmallStudy, Streams, perplexities, train_on_segments

POSITIONS = ("sinusoids", "learned", "rope", "alibi", "t5", "shaw")  # of `DecoderConfig`
XL = "transformer-xl"
ROWS = (*POSITIONS, XL)
TITLES = {
    "sinusoids": "sinusoids",
    "learned": "learned",
    "rope": "RoPE",
    "rope-linear": "RoPE (linear)",
    "rope-ntk": "RoPE (NTK)",
    "rope-dynamic": "RoPE (dynamic NTK)",
    "rope-yarn": "RoPE (YaRN)",
    "alibi": "ALiBi",
    "t5": "T5's bias",
    "shaw": "Shaw",
    "transformer-xl": "Transformer-XL",
}

# Points, by the names of rows, which may scale the positions of one training.
LENGTHS = figures_type(points=dict[str, list_type(figures_type("perplexity", length=PositiveInt))])

# ---- a training --------------------------------------------------------------------------------------------------


def scalings(sizes: SegmentSizes) -> dict[str, Rope]:
    """Return RoPE of each row that scales its frequencies, by the longest length over the training length."""
    d_k, factor = sizes.d_model // sizes.n_heads, sizes.lengths[-1] / sizes.segment
    theta = Rope().theta
    return {
        "rope-linear": LinearRope(theta, factor),
        "rope-ntk": Rope(ntk_theta(theta, factor, d_k)),
        "rope-dynamic": DynamicRope(theta, 1.0, sizes.segment),
        "rope-yarn": YarnRope(theta, factor, sizes.segment),
    }


def build(row: str, sizes: SegmentSizes) -> DecoderOnly | TransformerXL:
    """Return the model of a row with random weights."""
    if row == XL:
        return TransformerXL(replace(sizes_of(sizes.decoder(), TransformerXLConfig), n_memory=sizes.segment))
    model = DecoderOnly(replace(sizes.decoder(), positions=row))
    if row == "t5":
        n_buckets = min(32, sizes.segment)  # the training reaches all of them
        model.positions = Bucketed(sizes.n_heads, n_buckets=n_buckets, longest=sizes.segment)
    return model


def train_and_evaluate(sizes: SegmentSizes, row: str, seed: int, streams: Streams) -> Figures:
    """Return the figures of a row: perplexities by length, for RoPE also the perplexities of each scaling."""
    torch.manual_seed(seed)
    model = build(row, sizes)
    train_on_segments(model, streams.train, sizes, seed)
    curves = {row: points(sizes.lengths, perplexities(model, streams.valid, sizes))}
    if row == "rope":
        assert isinstance(model, DecoderOnly) and isinstance(model.positions, Rotary)
        for name, rope in scalings(sizes).items():
            model.positions.rope = rope
            curves[name] = points(sizes.lengths, perplexities(model, streams.valid, sizes))
    return {"parameters": parameter_count(model), "steps": sizes.steps, "points": curves}


def points(lengths: Sequence[int], values: Sequence[float]) -> list[dict[str, float]]:
    """Return perplexities as figures of an entry."""
    return [{"length": length, "perplexity": round(value, 4)} for length, value in zip(lengths, values, strict=True)]


# ---- the report --------------------------------------------------------------------------------------------------


def report(results: Results) -> Report:
    """Return the report of the results so far."""
    lengths = results.settings["sizes"]["lengths"]
    curves = {row: _curves(results, row, lengths) for row in TITLES}
    changes = {row: paired_difference([math.log(curve[-1] / curve[0]) for curve in curves[row]]) for row in TITLES}
    words = {"better": "get better", "worse": "get worse", "inconclusive": "inconclusive"}
    groups = by_verdict({title: changes[row] for row, title in TITLES.items()})
    parts = "; ".join(f"{words[verdict]}: {', '.join(titles)}" for verdict, titles in groups.items())
    sentence = f"From {lengths[0]} to {lengths[-1]} tokens, these {parts}." if parts else "No training is done yet."
    head = ["positions", *map(str, lengths), f"{lengths[-1]} over {lengths[0]}", "seeds"]
    lines = []
    for row, title in TITLES.items():
        cells = [mean_and_range(values) for values in zip(*curves[row], strict=True)]
        lines.append([title, *cells, as_factor(changes[row]), str(len(curves[row]))] if cells else [title, NOT_RUN])
    return report_of(results, longest=lengths[-1], sentence=sentence, table=rows_table(head, lines))


def _curves(results: Results, row: str, lengths: Sequence[int]) -> list[list[float]]:
    """Return the perplexities at all lengths of the seeds that have them."""
    all_points = [entry["points"].get(row, []) for entry in results.done()]
    seeds = [{point["length"]: point["perplexity"] for point in points} for points in all_points]
    return [[curve[n] for n in lengths] for curve in seeds if curve.keys() >= {*lengths}]


STUDY = SmallStudy(
    "positions",
    lambda name, settings: [SmallStudy.training, LENGTHS],
    rows=ROWS,
    figures=train_and_evaluate,
    report=report,
)
