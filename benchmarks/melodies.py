"""Relative attention by skewing (Music Transformer) and absolute positions, on melodies whose bars come back.

    python benchmarks/melodies.py [--steps 800] [--seeds 1] [--out melodies.json]

The melodies are made here. A bar has 8 notes, of 15 pitches, each at most 3 steps from the note before. Half of the
bars repeat the bar before, a quarter the one two bars before, and the others are new. Small decoders (2 layers, d_model
48) learn from segments of 64 notes, and are evaluated on 64, 128 and 256 notes. One thread; times are processor time.
"""

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from transduce.family.decoder_only import DecoderOnly
from transduce.studies.small_models import SegmentSizes, perplexities, train_on_segments

N_PITCHES, BAR, FARTHEST = 15, 8, 3
SIZES = SegmentSizes(
    vocab_size=N_PITCHES,
    d_model=48,
    n_layers=2,
    n_heads=4,
    segment=64,
    rows=16,
    warmup=100,
    lr_factor=0.5,
    dropout=0.0,
    lengths=(64, 128, 256),
    evaluated=16_384,
)
POSITIONS = {
    "none": "none",
    "absolute: sinusoids": "sinusoids",
    "absolute: learned": "learned",
    "relative: Shaw, up to 16 notes": "shaw",
    "relative: skewed, all distances": "skewed",
}


def melody(n_bars: int, generator: torch.Generator) -> Tensor:
    """Return the pitches (8 n_bars,) of a melody."""
    bars = [new_bar(generator), new_bar(generator)]
    for chance in torch.rand(n_bars - 2, generator=generator).tolist():
        bars.append(bars[-1] if chance < 0.5 else bars[-2] if chance < 0.75 else new_bar(generator))
    return torch.cat(bars)


def new_bar(generator: torch.Generator) -> Tensor:
    """Return the pitches of a bar."""
    pitches = [int(torch.randint(N_PITCHES, (), generator=generator))]
    while len(pitches) < BAR:
        step = int(torch.randint(-FARTHEST, FARTHEST + 1, (), generator=generator))
        if 0 <= pitches[-1] + step < N_PITCHES:
            pitches.append(pitches[-1] + step)
    return torch.tensor(pitches)


def steps_alone(ids: Tensor) -> float:
    """Return the perplexity of who knows how a new bar is made, and no bar that comes back: of its steps alone."""
    of_first = math.log(N_PITCHES)
    notes = ids.view(-1, BAR)[:, :-1].flatten()
    choices = torch.minimum(notes, N_PITCHES - 1 - notes).clamp(max=FARTHEST) + FARTHEST + 1  # steps that stay inside
    return math.exp((of_first + (BAR - 1) * float(choices.log().mean())) / BAR)


def with_bars(alone: float) -> float:
    """Return the perplexity of who also knows how bars come back: three choices, and a new bar in a quarter of them."""
    choice = -sum(p * math.log(p) for p in (0.5, 0.25, 0.25))
    return math.exp((choice + 0.25 * BAR * math.log(alone)) / BAR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = replace(SIZES, steps=args.steps)
    generator = torch.Generator().manual_seed(0)
    train, valid = (melody(n, generator) for n in (args.steps * sizes.rows * sizes.segment // BAR + 1, 2_049))
    rows: dict[str, list[list[float]]] = {name: [] for name in POSITIONS}
    seconds: dict[str, list[float]] = {name: [] for name in POSITIONS}
    for seed in range(1, args.seeds + 1):
        for name, kind in POSITIONS.items():
            torch.manual_seed(seed)
            model = DecoderOnly(replace(sizes.decoder(), positions=kind))
            started_at = time.process_time()
            train_on_segments(model, train, sizes, seed)
            seconds[name].append(time.process_time() - started_at)
            rows[name].append(perplexities(model, valid, sizes))
            print(f"seed {seed}, {name}: {rows[name][-1]}", file=sys.stderr)
    alone = steps_alone(valid)
    print(f"\nThe steps alone: {alone:.2f}; with the bars that come back: {with_bars(alone):.2f}\n")
    print("| positions | 64 notes | 128 | 256 | seconds |\n|---|---|---|---|---|")
    for name, of_seeds in rows.items():
        means = [statistics.mean(values) for values in zip(*of_seeds, strict=True)]
        print(f"| {name} | {' | '.join(f'{value:.2f}' for value in means)} | {statistics.mean(seconds[name]):.0f} |")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
