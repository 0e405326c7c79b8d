"""The time for which a checkpoint stops a training of the paper's base and big models.

    python benchmarks/checkpoints.py FOLDER

For each model the script saves five times in FOLDER, on the GPU if there is one, and prints medians. A training stops
for the copy of its state; a thread writes the copy while the training continues.
"""

import shutil
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from transduce.config.recipes.vaswani2017 import base, big
from transduce.config.schema import Config
from transduce.data.vocabulary import CONTROLS
from transduce.model import devices
from transduce.model.build import build
from transduce.storage.checkpoints import CheckpointWriter
from transduce.storage.run_log import RunLog
from transduce.training.state import TrainingState

SAVES = 5
PIECES = 37_000 + len(CONTROLS)
RECORD = {"texts": {"train": "", "valid": ""}, "made_of": {}, "made_with": {"tokenizer": "", "torch": "", "threads": 1}}


def measure(config: Config, folder: Path) -> str:
    """Return the size of a checkpoint, and the seconds of its parts."""
    model = build(replace(config.model, vocab_size=PIECES)).to(devices.device())
    state = TrainingState(model, config.train, RECORD)
    stops = []
    writes = []
    processor = []
    with closing(RunLog(folder, -1)) as log, CheckpointWriter(folder, log, print, config.train) as writer:
        for step in range(1, SAVES + 1):
            state.counters.step = step
            started_at = time.perf_counter()
            processor_started_at = time.process_time()
            writer.save(step, state.snapshot)
            stops.append(time.perf_counter() - started_at)
            writer.wait()
            writes.append(time.perf_counter() - started_at - stops[-1])
            processor.append(time.process_time() - processor_started_at)
    size = sum(path.stat().st_size for path in (folder / "checkpoints" / f"step-{SAVES:08d}").iterdir())
    stop, write, seconds = (statistics.median(values) for values in (stops, writes, processor))
    return (
        f"{size / 1e9:.2f} GB, stops for {stop:.2f} s (the first one {stops[0]:.2f} s), "
        f"then the thread writes for {write:.1f} s; {seconds:.1f} s of processor"
    )


def main() -> None:
    torch.manual_seed(1)
    for name, recipe in (("base", base), ("big", big)):
        folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
        print(f"{name}: {measure(recipe(), folder)}", flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
