"""Checkpoints with random tensors, and damage to files."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.storage.checkpoints import Checkpoint
from transduce.training.state import Counters, Meter


def random_checkpoint(step: int, *, ema: bool = False) -> Checkpoint:
    """Return a small checkpoint whose values depend on `step`."""
    torch.manual_seed(step)
    tensors = {"layer.weight": torch.randn(3, 4), "layer.bias": torch.randn(4)}
    moments = {f"exp_avg/{name}": torch.rand_like(values) for name, values in tensors.items()}
    averages = {name: values / 2 for name, values in tensors.items()} if ema else None
    return Checkpoint(tensors, moments, averages, stored_state(step))


def whole_checkpoint(step: int) -> Checkpoint:
    """Return a checkpoint with three tensors, all their moments, and their averages."""
    generator = torch.Generator().manual_seed(step)
    tensors = {name: torch.randn(30, generator=generator) for name in ("w", "b", "v")}
    moments = {f"{m}/{name}": value**2 for m in ("exp_avg", "exp_avg_sq") for name, value in tensors.items()}
    return Checkpoint(tensors, moments, tensors, stored_state(step))


def stored_state(step: int) -> dict[str, Any]:
    """Return a state as a checkpoint of `step` holds it."""
    record = {
        "texts": {"train": "ab", "valid": "cd"},
        "made_of": {},
        "made_with": {"config": "ef", "tokenizer": "gh", "torch": "2", "threads": 1},
    }
    counters = dataclasses.asdict(Counters(step, best_score=1 / 3))
    return {**counters, **record, "data": {"epoch": 2, "index": 17}, "since_report": Meter().state()}


def are_equal(a: dict[str, Tensor] | None, b: dict[str, Tensor] | None) -> bool:
    """Return True if names, types and values are equal, or both are None."""
    if a is None or b is None:
        return a is b
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def damage(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
