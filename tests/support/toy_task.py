"""The toy task, a tiny model that learns to turn a line round, and the command line as a process of its own."""

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start; torch in this one follows below

ROOT = Path(__file__).parents[2]
needs_dev_full = pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs the device /dev/full")
RECIPE = '''
from transduce import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig

def reverse() -> Config:
    """Turns round lines of up to six letters: certain after 300 steps, about 10 seconds on one core."""
    return Config(
        model=ModelConfig(vocab_size=None, d_model=64, n_layers=2, n_heads=4, d_ff=128, dropout=0.0, norm="pre"),
        data=DataConfig(vocab_size=300, batch_tokens=300, max_tokens=32),
        train=TrainConfig(
            max_steps=400, warmup_steps=150, lr_factor=0.25, label_smoothing=0.0, use="ema", ema_decay=0.98,
            average_checkpoints=1, log_every_steps=50, evaluate_every_steps=200, checkpoint_every_steps=200,
        ),
        search=SearchConfig(max_extra_tokens=10),
    )
'''


@dataclass(frozen=True)
class Finished:
    """How a command ended, and what it wrote."""

    code: int
    out: bytes
    err: str


@dataclass(frozen=True)
class Toy:
    """The model of the toy task, and what it was made from."""

    folder: Path
    train: tuple[Path, Path]
    valid: tuple[Path, Path]
    unseen: list[str]

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def model(self) -> Path:
        return self.folder / "run" / "model"


def turned(line: str) -> str:
    """The task: the words of a line, last first."""
    return " ".join(reversed(line.split(" ")))


def toy_lines(seed: int, count: int) -> list[str]:
    """Lines of one to six different letters."""
    rng = random.Random(seed)
    return [" ".join(rng.sample("abcdefghij", rng.randint(1, 6))) for _ in range(count)]


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


def write_pairs(folder: Path, name: str, lines: Sequence[str]) -> tuple[Path, Path]:
    """`lines` and what they are turned round, as NAME.src and NAME.tgt."""
    targets = [turned(line) for line in lines]
    return write_lines(folder / f"{name}.src", lines), write_lines(folder / f"{name}.tgt", targets)


def run_transduce(
    *arguments: object, given: bytes = b"", environment: dict[str, str] | None = None, timeout: float = 120
) -> Finished:
    """`python -m transduce ARGUMENTS` as a process of its own, with `given` on its standard input."""
    everything = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **(environment or {})}
    command = [sys.executable, "-m", "transduce", *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, env=everything, timeout=timeout)
    return Finished(done.returncode, done.stdout, done.stderr.decode(errors="replace"))
