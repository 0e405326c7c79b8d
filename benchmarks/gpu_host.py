"""The time of the host for a training on a GPU, measured without one.

    python benchmarks/gpu_host.py --train train.en train.de [--size big] [--seconds 8]

- stream: source and target tokens a second of the batches of 25,000 tokens, of one thread: plain, with BPE-dropout of
  0.1, and of one of eight ranks.
- checkpoint: seconds that the loop stops for a checkpoint, and until it is on the disk. On a GPU the copy to the host
  comes on top.
- step: milliseconds for one gradient of 6 + 6 layers and the update, with tensors so small that only the calls count.
  They take the way of a GPU, on a CPU: starting a kernel on a GPU takes longer than a call on the CPU.

Times are of the processor, except for the checkpoint.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from gpu_common import FULL

from transduce.config.schema import DataConfig, ModelConfig, TrainConfig
from transduce.data.batches import Batches, DataPosition, Share, collate
from transduce.data.corpora import Corpus
from transduce.data.text import read_lines
from transduce.data.token_store import open_store
from transduce.data.tokenizer import Tokenizer
from transduce.model import dropout, fused
from transduce.model.transformer import Transformer
from transduce.storage.checkpoints import CheckpointWriter
from transduce.storage.run_log import RunLog
from transduce.train import TranslationTask
from transduce.training import gradients as gradients_module
from transduce.training import loss
from transduce.training.bf16_weights import Bf16Weights
from transduce.training.gradients import Gradients
from transduce.training.state import TrainingState, move_average

LINES = 60_000  # of which a tokenizer of 16,000 pieces is learned


def stream(texts: list[Path], folder: Path, seconds: float) -> dict[str, int]:
    """Return tokens a second of three kinds of batches."""
    lines = [line for text in texts for _, line in zip(range(LINES), read_lines(text), strict=False)]
    tokenizer = Tokenizer.learn(lines, kind="bpe", vocab_size=16_000)
    store = open_store(folder, [Corpus(*texts)], tokenizer)
    plain = DataConfig(batch_tokens=FULL.batch_tokens, vocab_size=16_000)
    with_dropout = replace(plain, bpe_dropout=0.1)
    result = {}
    for name, config, share in (
        ("plain", plain, Share()),
        ("BPE-dropout", with_dropout, Share()),
        ("of 8 ranks", plain, Share(0, 8)),
    ):
        batches = Batches(store, tokenizer, config, seed=1, share=share, collate=collate)
        source = batches.stream(DataPosition())
        next(source)  # plans the epoch
        tokens, began = 0, time.process_time()
        while time.process_time() - began < seconds:
            (batch,), _ = next(source)
            tokens += int(batch.src_mask.sum() + batch.tgt_mask.sum())
        result[name] = round(tokens / (time.process_time() - began))
    return result


def checkpoint(config: ModelConfig, folder: Path) -> dict[str, float]:
    """Return the seconds of two checkpoints, the second over the first."""
    record = {"texts": {"train": "a", "valid": "b"}, "made_of": {}, "made_with": {}}
    state = TrainingState(Transformer(config), TrainConfig(), record)
    stops, wholes = [], []
    folder.mkdir()
    with closing(RunLog(folder, -1)) as log, CheckpointWriter(folder, log, print, TrainConfig()) as writer:
        for step in (1, 2, 3):
            state.counters.step = step
            began = time.perf_counter()
            writer.save(step, state.snapshot)
            stops.append(time.perf_counter() - began)
            writer.wait()
            wholes.append(time.perf_counter() - began)
    return {"stop": round(statistics.median(stops), 2), "on the disk": round(statistics.median(wholes), 2)}


@contextmanager
def way_of_a_gpu() -> Iterator[None]:
    """Let tensors of the CPU take the way of a GPU, with compiled functions."""
    with (
        mock.patch.object(torch.Tensor, "is_cuda", property(lambda _: True)),
        mock.patch.object(fused, "DEVICES", {"cpu"}),
        mock.patch.object(loss, "CHUNK_BYTES", {"cpu": 4 * 32 * 4}),  # four rows: seven chunks, as in base
        mock.patch.object(gradients_module, "bf16_weights", lambda model, *_: Bf16Weights(model)),
        mock.patch.object(dropout, "dropout", torch.nn.functional.dropout),
    ):
        yield


def step() -> dict[str, float]:
    """Return the milliseconds of the parts of a step in bf16."""
    torch.manual_seed(1)
    model = Transformer(ModelConfig(vocab_size=32, d_model=16, n_heads=2, d_ff=16)).train()
    rng = np.random.default_rng(0)
    batch = collate(*([rng.integers(4, 32, 6) for _ in range(4)] for _ in range(2)))
    train = TrainConfig(precision="bf16", ema_decay=0.99)
    with way_of_a_gpu():
        gradients = Gradients(model, TranslationTask(), train, torch.device("cpu"), print)
        state = TrainingState(model, train, {})
        gradient = gradients.of([batch], seed=1)
        state.counters.step = 1
        assert state.ema is not None
        return {
            "gradient": milliseconds(lambda: gradients.of([batch], seed=1)),
            "update and moving average": milliseconds(lambda: state.update(gradient)),
            "of these, the moving average": milliseconds(lambda: move_average(state.ema or {}, model, 0.99)),
        }


def milliseconds(work: Callable[[], Any], repeats: int = 60) -> float:
    """Return the median of the processor time of this thread, after calls that warm up."""
    times = []
    for _ in range(repeats + 5):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return round(1e3 * statistics.median(times[5:]), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs=2, required=True)
    parser.add_argument("--size", choices=[*FULL.sizes], default="base")
    parser.add_argument("--seconds", type=float, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = {
            "step, milliseconds": step(),
            "checkpoint, seconds": checkpoint(FULL.sizes[args.size], Path(folder) / "run"),
            "stream, tokens a second": stream(args.train, Path(folder) / "data", args.seconds),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
