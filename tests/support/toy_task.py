"""The toy task, in which a tiny model learns to reverse the words of a line, and the command line as a process."""

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # for processes that tests start; conftest.py sets the threads of this process

ROOT = Path(__file__).parents[2]
needs_dev_full = pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs the device /dev/full")
RECIPE = '''
from transduce import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig

def reverse() -> Config:
    """Reverse lines of up to six letters. Exact after 300 steps, about 10 seconds on one core."""
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
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: bytes
    err: str


@dataclass(frozen=True)
class Toy:
    """The trained model of the toy task, and its texts. unseen: lines that are not in the training text."""

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


def reverse_words(line: str) -> str:
    """Return the words of a line in reverse order, which is the task."""
    return " ".join(reversed(line.split(" ")))


def toy_lines(seed: int, count: int) -> list[str]:
    """Return lines of one to six different letters."""
    rng = random.Random(seed)
    return [" ".join(rng.sample("abcdefghij", rng.randint(1, 6))) for _ in range(count)]


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


def write_pairs(folder: Path, name: str, lines: Sequence[str]) -> tuple[Path, Path]:
    """Write `lines` as NAME.src and their reversals as NAME.tgt, and return both paths."""
    targets = [reverse_words(line) for line in lines]
    return write_lines(folder / f"{name}.src", lines), write_lines(folder / f"{name}.tgt", targets)


def run_transduce(
    *arguments: object, stdin: bytes = b"", environment: dict[str, str] | None = None, timeout: float = 120
) -> CommandResult:
    """Run `python -m transduce ARGUMENTS` as a process, with `stdin` on its standard input."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **(environment or {})}
    command = [sys.executable, "-m", "transduce", *map(str, arguments)]
    process = subprocess.run(command, input=stdin, capture_output=True, env=variables, timeout=timeout)
    return CommandResult(process.returncode, process.stdout, process.stderr.decode(errors="replace"))
