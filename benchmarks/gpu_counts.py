"""The work that training and translation give to a GPU, counted without one at the paper's sizes.

    python benchmarks/gpu_counts.py [--size big] [--out counts.json]
    python benchmarks/gpu_counts.py --tiny              the same with tiny models, as a check

A pretended GPU (tests/support/pretend_gpu) counts in less than a minute; it needs a C++ compiler. A kernel is an
operation of torch that is no view: also one that works on a list of tensors, or on parts of a product. Memory traffic
is the size of the inputs and outputs of all kernels, as if no cache kept any of them. No value is computed, except in
decoding, where a small vocabulary decides which tokens are searched. `gpu.py` measures time on a real GPU.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_setup  # noqa: F401  has the paths of the others
import numpy as np
import support.pretend_gpu  # noqa: F401  must come before torch
import torch
from gpu_common import DEVICE, FULL, TINY, Scale, batch_of, sentences
from support.pretend_gpu.record import Record, recording
from support.pretend_gpu.tensors import keep_no_values

from transduce.config.schema import ModelConfig, SearchConfig, TrainConfig
from transduce.data.batch_plan import SortKeys, plan
from transduce.decoding.backends import Backend
from transduce.decoding.batched_search import search_all
from transduce.decoding.cuda_graphs import CudaGraphTransformer
from transduce.model.transformer import Transformer
from transduce.train import TranslationTask
from transduce.training import task
from transduce.training.gradients import Gradients, update
from transduce.training.state import TrainingState, move_average

PAIRS = 4_500_000  # of an epoch, as in WMT14 English-German
WORDS = 2_000  # vocabulary of the decoding, whose values are computed

Counts = dict[str, Any]


def figures(record: Record) -> Counts:
    return {
        "kernels": record.kernels.total(),
        "gb_moved": round(record.bytes_moved / 1e9, 2),
        "copies_to_gpu": len(record.copies_to_gpu),
        "waits": record.waits,
    }


# ---- training ----------------------------------------------------------------------------------------------------


@contextmanager
def recording_of_the_loss() -> Iterator[list[Record]]:
    """Yield a list that gets a record of each call of the loss in the block."""
    records: list[Record] = []
    of_loss = task.projected_cross_entropy

    def recorded(*args: Any, **kwargs: Any) -> torch.Tensor:
        with recording() as record:
            loss = of_loss(*args, **kwargs)
        records.append(record)
        return loss

    task.projected_cross_entropy = recorded
    try:
        yield records
    finally:
        task.projected_cross_entropy = of_loss


def training(scale: Scale, config: ModelConfig, precision: str) -> Counts:
    """Return the counts of one step, with 25,000 tokens a side in full scale."""
    assert config.vocab_size is not None
    batch = batch_of(scale.batch_tokens, scale.longest, config.vocab_size, 1)
    settings = TrainConfig(precision="bf16" if precision == "bf16" else "fp32", ema_decay=0.999)
    model = Transformer(config).to(DEVICE).train()
    gradients = Gradients(model, TranslationTask(), settings, DEVICE, print)
    state = TrainingState(model, settings, {})
    gradients.of([batch], seed=1)
    state.optimizer.zero_grad()
    with recording_of_the_loss() as of_loss, recording() as of_gradient:
        gradients.of([batch], seed=1)
    with recording() as of_update:
        update(state.optimizer, 1)
        state.optimizer.zero_grad()
    assert state.ema is not None
    with recording() as of_average:
        move_average(state.ema, model, 0.999)
    return {
        "gradient": figures(of_gradient),
        "gradient, most frequent kernels": dict(of_gradient.kernels.most_common(12)),
        "loss": figures(of_loss[0]),
        "casts": of_gradient.kernels["_to_copy"],
        "conversions of attention masks": of_gradient.mask_conversions,
        "attention": {
            f"{kernel}{', with a mask' if is_masked else ''}": n
            for (kernel, is_masked), n in of_gradient.attention.items()
        },
        "update": figures(of_update),
        "moving average": figures(of_average),
    }


def attention_problems(n_pairs: int) -> Counts:
    """Return how many steps an epoch like WMT14's has, and how many distinct problems of attention.

    cuDNN plans each shape of queries and keys once, forward and backward; the other kernels need no plan.
    """
    rng = np.random.default_rng(0)
    src = np.clip(rng.lognormal(3.15, 0.6, n_pairs), 2, 255).astype(int)
    tgt = np.clip(src * rng.lognormal(0.02, 0.22, n_pairs), 2, 255).astype(int)
    keys = SortKeys(int(max(src.max(), tgt.max())), n_pairs)
    packed = keys.pack(np.arange(n_pairs), np.stack([src, tgt], axis=1), rng)
    batches = plan(packed, keys, batch_tokens=FULL.batch_tokens, generator=rng)
    problems = set[tuple[str, int, int, int]]()
    for i in range(len(batches)):
        pairs = batches[i]
        n, s, t = len(pairs), int(src[pairs].max()), int(tgt[pairs].max())
        problems |= {("encoder", n, s, s), ("decoder", n, t, t), ("source", n, t, s)}
    return {"steps": len(batches), "problems, forward and backward": 2 * len(problems)}


# ---- decoding ----------------------------------------------------------------------------------------------------


def decoding(config: ModelConfig, beam_size: int) -> Counts:
    """Return the counts of a decoding step of six sentences in bf16."""
    torch.manual_seed(0)
    model = Transformer(replace(config, vocab_size=WORDS)).eval().to(DEVICE)
    backend = Backend([CudaGraphTransformer(model, "bf16")])
    sources = [source.tolist() for source in sentences(6, 14, WORDS, 6)]
    settings = SearchConfig(beam_size=beam_size, max_extra_tokens=4, min_tokens=10)
    for _ in range(2):  # computes the steps, then records them
        search_all(backend, sources, settings)
    with recording() as record:
        search_all(backend, sources, settings)
    steps = len(record.replays) // 2
    return {
        "steps": steps,
        "kernels of a recorded step, and of its best tokens": sorted(set(record.replays), reverse=True),
        "kernels outside of them": round(record.kernels.total() / steps, 1),
        "copies to the GPU": round(len(record.copies_to_gpu) / steps, 1),
        "waits": round(len(record.waits) / steps, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=[*FULL.sizes], default="base")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    scale = TINY if args.tiny else FULL
    config = scale.sizes[args.size]
    result: dict[str, Any] = {f"decoding, beam {beam}": decoding(config, beam) for beam in (4, 1)}
    keep_no_values()
    result |= {f"training, {precision}": training(scale, config, precision) for precision in ("bf16", "fp32")}
    kernels = [kernel for precision in ("bf16", "fp32") for kernel in result[f"training, {precision}"]["attention"]]
    result["an epoch"] = {
        **attention_problems(1_000 if args.tiny else PAIRS),
        "has attention of cuDNN": any(kernel.startswith("cudnn") for kernel in kernels),
    }
    print(json.dumps(result, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
