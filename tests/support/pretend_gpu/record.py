"""What the pretend GPU does: its kernels, the copies to it, and the waits of the host for it."""

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Record:
    """The work of a block of code.

    kernels: number of launches, by the operation. waits: what the host waited for, and where. copies_to_gpu: where the
    host copied to the GPU. bytes_moved: of the inputs and outputs of all kernels. attention: the kernel of torch that
    each attention would take, and whether it has a mask. mask_conversions: of masks from True and False
    to what is added to the scores. replays: the number of kernels in each recording that was replayed.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    waits: list[str] = field(default_factory=list)
    copies_to_gpu: list[str] = field(default_factory=list)
    bytes_moved: int = 0
    attention: Counter[tuple[str, bool]] = field(default_factory=Counter)
    mask_conversions: int = 0
    replays: list[int] = field(default_factory=list)


_records: list[Record] = []
_mode = ["default"]  # of torch.cuda.set_sync_debug_mode


@contextmanager
def recording() -> Iterator[Record]:
    """Yield a record of the block."""
    record = Record()
    _records.append(record)
    try:
        yield record
    finally:
        _records.remove(record)


@contextmanager
def not_recording() -> Iterator[None]:
    """Keep the block out of all records."""
    hidden = _records[:]
    _records.clear()
    try:
        yield
    finally:
        _records.extend(hidden)


def set_sync_debug_mode(mode: str) -> None:
    """Stand for the function of torch.cuda. mode: "default", "warn" or "error"."""
    _mode[0] = mode


def add_kernel(name: str, n_bytes: int) -> None:
    for record in _records:
        record.kernels[name] += 1
        record.bytes_moved += n_bytes


def add_copy_to_gpu() -> None:
    for record in _records:
        record.copies_to_gpu.append(_place())


def add_attention(kernel: str, *, has_mask: bool) -> None:
    for record in _records:
        record.attention[kernel, has_mask] += 1


def add_mask_conversion() -> None:
    for record in _records:
        record.mask_conversions += 1


def add_replay(n_kernels: int) -> None:
    for record in _records:
        record.replays.append(n_kernels)


def add_wait(name: str) -> None:
    """Record a wait of the host, and warn of it as torch does."""
    for record in _records:
        record.waits.append(f"{name} at {_place()}")
    message = f"called a synchronizing CUDA operation: {name}"
    if _mode[0] == "warn":
        warnings.warn(message, stacklevel=2)
    if _mode[0] == "error":
        raise RuntimeError(message)


def _place() -> str:
    """Return the lines of the package that are being called, the innermost one first."""
    calls = [f for f in traceback.extract_stack() if "/transduce/" in f.filename]
    return " < ".join(f"{f.filename.rpartition('/transduce/')[2]}:{f.lineno}" for f in reversed(calls[-3:]))
