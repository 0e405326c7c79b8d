"""Positions beyond the training length: small language models, trained on segments of 64 tokens, evaluated up to 512.

A row is a way to know the order of tokens (`family/positions.py`), or Transformer-XL. The model with RoPE is also
evaluated with its frequencies scaled for the longest text, without training on longer text.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from transduce.evaluation.study_report import Report, Section
from transduce.family.configs import TransformerXLConfig, sizes_of
from transduce.family.decoder_only import DecoderOnly
from transduce.family.positions import Bucketed, Rotary
from transduce.family.rope import DynamicRope, LinearRope, Rope, YarnRope, ntk_theta
from transduce.family.transformer_xl import TransformerXL
from transduce.model.transformer import parameter_count
from transduce.studies.comparison import (
    NOT_RUN,
    as_factor,
    by_verdict,
    mean_and_range,
    paired_difference,
    rows_table,
)
from transduce.studies.results import Count, Results, Study, figures_type, list_type
from transduce.studies.small_models import (
    SETTINGS,
    SIZES,
    SMALL_TRAINING,
    SegmentSizes,
    SmallModel,
    SmallStudy,
    Streams,
    perplexities,
    progress_in_words,
    train_on_segments,
)

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
LENGTHS = figures_type(points=dict[str, list_type(figures_type("perplexity", length=Count))])
STUDY = Study("positions", lambda name, settings: [SMALL_TRAINING, LENGTHS], SETTINGS)


def run_positions(
    train: Path, valid: Path, out: Path, *, jobs: int | None = None, sizes: SegmentSizes = SIZES
) -> Results:
    """Train and evaluate the rows that are not yet in OUT/results.json, and write the report.

    train, valid: texts whose lines follow each other. jobs: number of trainings at the same time, each on one thread;
    None: one for each core. Raises UserError at the end if trainings have failed.
    """
    return SmallStudy(STUDY, ROWS, train_and_evaluate, report).run((train, valid), out, sizes, jobs)


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


def build(row: str, sizes: SegmentSizes) -> SmallModel:
    """Return the model of a row with random weights."""
    if row == XL:
        return TransformerXL(replace(sizes_of(sizes.decoder(), TransformerXLConfig), n_memory=sizes.segment))
    model = DecoderOnly(replace(sizes.decoder(), positions=row))
    if row == "t5":
        n_buckets = min(32, sizes.segment)  # the training reaches all of them
        model.positions = Bucketed(sizes.n_heads, n_buckets=n_buckets, longest=sizes.segment)
    return model


def train_and_evaluate(sizes: SegmentSizes, row: str, seed: int, streams: Streams) -> dict[str, Any]:
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
    sizes = results.settings["sizes"]
    lengths = sizes["lengths"]
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
    return Report(
        "Positions beyond the training length",
        f"Small language models, trained on segments of {sizes['segment']} tokens and evaluated on up to "
        f"{lengths[-1]}: {progress_in_words(results)}",
        [
            Section("Perplexity by length", [sentence, rows_table(head, lines), SCALED]),
            Section("Method", [method(sizes), VERDICT]),
        ],
    )


def _curves(results: Results, row: str, lengths: Sequence[int]) -> list[list[float]]:
    """Return the perplexities at all lengths of the seeds that have them."""
    all_points = [entry["points"].get(row, []) for entry in results.done()]
    seeds = [{point["length"]: point["perplexity"] for point in points} for points in all_points]
    return [[curve[n] for n in lengths] for curve in seeds if curve.keys() >= {*lengths}]


SCALED = (
    "The rows of scaled RoPE are the models of the row RoPE with other frequencies, without more training. Linear, NTK "
    "and YaRN scale by the longest length over the training length, at all lengths. Dynamic NTK scales by the length "
    "at hand."
)
VERDICT = (
    "A row gets better or worse if the whole 95 % interval of the factor is on one side of 1. The interval is "
    "Student's, of the logarithms of the factors of the row's seeds. A figure is the mean of the seeds, with the "
    "lowest and the highest."
)


def method(sizes: dict[str, Any]) -> str:
    """Return the method in words."""
    shape = f"{sizes['n_layers']} layers, d_model {sizes['d_model']}, {sizes['n_heads']} heads"
    return (
        f"A decoder of {shape}, with the norm before each part, GELU, dropout {sizes['dropout']:g} and a vocabulary of "
        f"at most {sizes['vocab_size']:,}. Transformer-XL has the norm after each part, ReLU, and a memory of "
        f"{sizes['segment']} tokens in training. All rows have the same batches of {sizes['rows']} segments, "
        f"{sizes['steps']:,} steps, and no separate choice of settings. The validation text is cut into blocks of "
        "each length. So all lengths evaluate the same tokens, and differ in what is before them. Transformer-XL reads "
        "a block in segments, and remembers all of it. Learned rows of positions that no segment reaches keep their "
        "random values. The buckets of T5's bias end at the length of a segment, so that the training reaches all."
    )
