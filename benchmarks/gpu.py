"""Everything about a GPU in one call of nine minutes: correctness, speed, counts, and a lack of memory.

    python benchmarks/gpu.py [--out results/gpu.json] [--minutes 9]          on a machine with a GPU
    python benchmarks/gpu.py --tiny                                          the same on a CPU with tiny models

The script needs Python 3.11, torch 2.10 and numpy, and no package of the command line. Its parts, in this order, with
the seconds that they may take on an H100, estimated from counts:

- correctness (45): logits, gradients, cached decoding and beam search against the CPU, in fp32 and bf16;
- training of base (30) and big (50): source and target tokens a second with 25,000 tokens a side, the share of the
  machine's bf16 matrix product in useful FLOPs, and the kernels, memory traffic, copies and waits of a step;
- translation (40): tokens a second with a beam of 4, the latency of one sentence, and the counts of a decoding step;
- memory (10): a batch that does not fit is split, and its gradient is the same;
- the peers (160, and more with the packages of others): torch.nn.Transformer, and Hugging Face's Marian if it is
  installed, in the same loop on the same batches; Hugging Face's generate and CTranslate2; our steps unrecorded;
- our layers compiled (240).

A part whose estimate does not fit into the minutes is skipped. The file of --out has all finished parts at any moment,
also when the script is killed. The script prints the error of a part that fails, runs the others, and exits with 1.
"""

import argparse
import gc
import json
import operator
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gpu_setup
import gpu_training
import gpu_translation
import torch
from gpu_common import DEVICE, FULL, TINY, Scale, batch_of, or_problem, sentences
from gpu_training import ceiling
from torch import Tensor

from transduce.config.schema import SearchConfig, TrainConfig
from transduce.data.batches import Batch
from transduce.decoding.backends import Backend
from transduce.decoding.batched_search import search_all
from transduce.decoding.cuda_graphs import CudaGraphTransformer
from transduce.model.attention import reference_attention
from transduce.model.transformer import Transformer, mixed_precision
from transduce.train import TranslationTask
from transduce.training.gradients import Gradients


def correctness(scale: Scale) -> dict[str, Any]:
    """Return the relative errors against the CPU with reference attention, and the outputs that are the same."""
    torch.manual_seed(1)
    config = replace(scale.sizes["base"], dropout=0.0, vocab_size=min(1_000, scale.sizes["base"].vocab_size or 0))
    reference, model = Transformer(config).eval(), Transformer(config).eval()
    model.load_state_dict(reference.state_dict())
    model.to(DEVICE)
    return {**relative_errors(reference, model, scale), **equal_outputs(reference, model, scale)}


def relative_errors(reference: Transformer, model: Transformer, scale: Scale) -> dict[str, Any]:
    """Return the relative errors of logits and gradients in fp32 and bf16. AssertionError above their bounds."""
    assert model.config.vocab_size is not None
    batch = batch_of(400, scale.longest, model.config.vocab_size, 3)
    memory = reference.encode(batch.src, batch.src_mask, reference_attention)
    states = reference.decode(batch.tgt_in, memory, batch.src_mask, reference_attention)
    expected_logits = reference.logits(states)[batch.tgt_mask].detach()
    expected_gradient = gradient_of(reference, batch, TrainConfig(), torch.device("cpu"))
    result: dict[str, Any] = {}
    # in fp32, too: in another order of sums, a few of ten million inputs of a ReLU are on the other side of 0
    for precision, bounds in (("fp32", (1e-5, 5e-3)), ("bf16", (0.1, 0.1))):
        on_device = batch.to(DEVICE)
        with torch.no_grad(), mixed_precision(precision, DEVICE):
            logits = model(on_device.src, on_device.src_mask, on_device.tgt_in)[on_device.tgt_mask].float().cpu()
        gradient = gradient_of(model, batch, TrainConfig(precision=precision), DEVICE)
        errors = {"logits": _error(logits, expected_logits), "gradient": _error(gradient, expected_gradient)}
        assert all(map(operator.lt, errors.values(), bounds)), f"{precision}: {errors}, expected under {bounds}"
        result[precision] = errors
    return result


def gradient_of(model: Transformer, batch: Batch, train: TrainConfig, device: torch.device) -> Tensor:
    Gradients(model, TranslationTask(), train, device, print).of([batch], seed=1)
    return torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])


def equal_outputs(reference: Transformer, model: Transformer, scale: Scale) -> dict[str, str]:
    """Return how many outputs of a search equal the CPU's outputs. AssertionError below 95 %."""
    assert model.config.vocab_size is not None
    sources = [source.tolist() for source in sentences(40, scale.longest // 2, model.config.vocab_size, 4)]
    settings = SearchConfig(max_extra_tokens=10)
    expected = search_all(Backend([reference]), sources, settings)
    result: dict[str, str] = {}
    for name, backend in (("", model), (", recorded", CudaGraphTransformer(model, "fp32"))):
        for batch_size in (len(sources), 1):
            batches = [sources[i : i + batch_size] for i in range(0, len(sources), batch_size)]
            outputs = [best for batch in batches for best in search_all(Backend([backend]), batch, settings)]
            same = sum(a[0].ids == b[0].ids for a, b in zip(outputs, expected, strict=True))
            result[f"same outputs in batches of {batch_size}{name}"] = f"{same} of {len(sources)}"
            assert same >= 0.95 * len(sources), result
    return result


def _error(values: Tensor, expected: Tensor) -> float:
    return float((values - expected).norm() / expected.norm())


def out_of_memory(scale: Scale) -> dict[str, Any]:
    """Leave too little memory for a batch, and check that the split batch gives the gradient of the whole."""
    if DEVICE.type != "cuda":
        return {"skipped": "this part needs a GPU; on a CPU the tests check it"}
    torch.manual_seed(1)
    config = replace(scale.sizes["base"], dropout=0.0)
    assert config.vocab_size is not None
    model = Transformer(config).to(DEVICE).train()
    batch = batch_of(scale.batch_tokens, scale.longest, config.vocab_size, 5)
    messages: list[str] = []
    gradients = Gradients(model, TranslationTask(), TrainConfig(precision="bf16"), DEVICE, messages.extend)
    torch.cuda.reset_peak_memory_stats()  # other parts needed more
    gradient = gradients.of([batch], seed=1)
    peak = torch.cuda.max_memory_allocated()
    if not peak:
        return {"skipped": "a pretended GPU has no memory of its own"}
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.set_per_process_memory_fraction(0.6 * peak / total)
    try:
        split = gradients.of([batch], seed=1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert messages, "the batch fits, so that this part checks nothing"
    error = abs(split.norm - gradient.norm) / gradient.norm
    assert error < 0.01, f"gradient norms {gradient.norm} and {split.norm}"
    return {"messages": messages, "relative difference of gradient norms": error}


@dataclass(frozen=True)
class Part:
    """A part of the measurement. seconds: an estimate for an H100, from the counts of gpu_counts.py."""

    work: Callable[[], dict[str, Any]]
    seconds: float


def parts_of(scale: Scale, most: float) -> dict[str, Part]:
    """Return all parts, those that are worth most first. most: FLOP/s of the ceiling."""
    ours: dict[str, Part] = {"correctness": Part(partial(correctness, scale), 45)}
    peers: dict[str, Part] = {}
    compiled: dict[str, Part] = {}
    for size, config in scale.sizes.items():
        for name, make in gpu_training.sides(config).items():
            work = partial(gpu_training.measure, make, scale, config, most)
            group = ours if name == "transduce" else compiled if name.startswith("transduce") else peers
            estimate = 120 if group is compiled else {"base": 30, "big": 50}[size]
            group[f"training {size}, {name}"] = Part(work if group is ours else partial(or_problem, work), estimate)
    base = scale.sizes["base"]
    for name, make in gpu_translation.sides(base).items():
        work = partial(gpu_translation.measure, make, scale)
        group = ours if name == "transduce" else peers
        group[f"translation, {name}"] = Part(work if group is ours else partial(or_problem, work), 40)
    ours["out of memory"] = Part(partial(out_of_memory, scale), 10)
    return {**ours, **peers, **compiled}


def write(result: dict[str, Any], out: Path) -> None:
    """Replace the file, so that it is whole at any moment."""
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f"{out.name}.unfinished")
    unfinished.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    scale = TINY if args.tiny else FULL
    if DEVICE.type != "cuda" and not args.tiny:
        print("this machine has no GPU; use --tiny on a CPU", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.fp32_precision = "ieee"  # some machines set TF32 for all programs
    end = gpu_setup.START + 60 * args.minutes
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    most = ceiling(scale)
    result: dict[str, Any] = {"device": name, "torch": torch.__version__, "ceiling_tflops": round(most / 1e12, 3)}
    has_failed = False
    for title, part in parts_of(scale, most).items():
        began = time.monotonic()
        try:
            fits = began + part.seconds <= end
            result[title] = part.work() if fits else "skipped: its estimate does not fit into the time that is left"
        except Exception:  # the GPU may not be available again: print the error and continue
            has_failed = True
            result[title] = traceback.format_exc().splitlines()[-8:]
        result[f"{title}, seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps({title: result[title]}, indent=1), flush=True)
        if args.out is not None:
            write(result, args.out)
        gc.collect()  # models that a part leaves
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
