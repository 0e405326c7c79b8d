"""Positions beyond the training length: small language models, trained on segments of 64 tokens, evaluated up to 512.

A row is a way to know the order of tokens (`family/positions.py`), or Transformer-XL. The model with RoPE is also
evaluated with its frequencies scaled for the longest text, without training on longer text.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from transduce.evaluation.study_report import write_report
from transduce.family.decoder import Decoder
from transduce.family.kinds import ConfiguredDecoder
from transduce.family.positions import Bucketed, Rotary
from transduce.family.recurrence import TransformerXL
from transduce.family.rope import DynamicRope, LinearRope, Rope, YarnRope, ntk_theta
from transduce.model.transformer import parameter_count
from transduce.studies.positions_report import report
from transduce.studies.results import Results, open_results
from transduce.studies.rows import run_rows
from transduce.studies.segments import Sizes, SmallModel, Streams, hashes, perplexities, points, train_on

SIZES = Sizes()
POSITIONS = ("sinusoids", "learned", "rope", "alibi", "t5", "shaw")  # of `DecoderConfig`
XL = "transformer-xl"
ROWS = (*POSITIONS, XL)


def scalings(sizes: Sizes) -> dict[str, Rope]:
    """Return RoPE of each row that scales its frequencies, by the longest length over that of the training."""
    d_k, factor = sizes.d_model // sizes.n_heads, sizes.lengths[-1] / sizes.segment
    theta = Rope().theta
    return {
        "rope-linear": LinearRope(theta, factor),
        "rope-ntk": Rope(ntk_theta(theta, factor, d_k)),
        "rope-dynamic": DynamicRope(theta, 1.0, sizes.segment),
        "rope-yarn": YarnRope(theta, factor, sizes.segment),
    }


def build(row: str, sizes: Sizes) -> SmallModel:
    """Return the model of a row with random weights."""
    if row == XL:
        shape = sizes.vocab_size, sizes.d_model, sizes.n_layers, sizes.n_heads
        return TransformerXL(*shape, n_memory=sizes.segment, dropout=sizes.dropout)
    model = ConfiguredDecoder(replace(sizes.decoder(), positions=row))
    if row == "t5":
        n_buckets = min(32, sizes.segment)  # the training reaches all of them
        model.positions = Bucketed(sizes.n_heads, n_buckets=n_buckets, longest=sizes.segment)
    return model


def run_positions(train: Path, valid: Path, out: Path, *, jobs: int | None = None, sizes: Sizes = SIZES) -> Results:
    """Train and evaluate the rows that are not yet in OUT/results.json, and write the report.

    train, valid: texts whose lines follow each other. jobs: number of trainings at the same time, each on one thread;
    None: one for each core. Raises UserError at the end if trainings have failed.
    """
    results = open_results(out, "positions", {**hashes(train, valid), "sizes": sizes.as_settings()})
    try:
        run_rows(ROWS, (train, valid), sizes, results, partial(train_and_evaluate, sizes), jobs)
    finally:
        if results.entries:
            write_report(out, report(results), results.sessions)
    return results


def train_and_evaluate(sizes: Sizes, row: str, seed: int, streams: Streams) -> dict[str, Any]:
    """Return the figures of a row: perplexities by length, for RoPE also those of each scaling."""
    torch.manual_seed(seed)
    model = build(row, sizes)
    train_on(model, streams.train, sizes, seed)
    curves = {row: points(sizes.lengths, perplexities(model, streams.valid, sizes))}
    if row == "rope":
        assert isinstance(model, Decoder) and isinstance(model.positions, Rotary)
        for name, rope in scalings(sizes).items():
            model.positions.rope = rope
            curves[name] = points(sizes.lengths, perplexities(model, streams.valid, sizes))
    return {"parameters": parameter_count(model), "steps": sizes.steps, "points": curves}
