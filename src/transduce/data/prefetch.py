"""The batches of the next step, prepared in a thread while a device computes this step."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from transduce.data.batches import Batch, DataPosition

Step = tuple[list[Batch], DataPosition]  # the micro-batches of a step, and the position after it


class Prefetch:
    """Takes one step at a time from a stream, in a thread beside a GPU. The first step starts at once.

    The loop decides when the next step starts: Python runs one thread at a time, so the best time is while the host
    waits for the GPU. For CUDA the batches are in pinned memory, from which a copy does not block. At most one step is
    prepared and not taken. An interrupted program waits at most for this step. On a CPU, which has nothing to wait for,
    `take` prepares the step: with a thread, steps of a small model took 3 % longer on a busy machine.
    """

    def __init__(self, stream: Iterator[Step], device: torch.device) -> None:
        self._stream = stream
        self._is_pinned = device.type == "cuda"
        set_device = partial(torch.cuda.set_device, device) if self._is_pinned else None
        self._pool = None if device.type == "cpu" else ThreadPoolExecutor(1, "batches", set_device)
        self.start()

    def start(self) -> None:
        """Start to prepare the next step."""
        if self._pool:
            self._step = self._pool.submit(self._next)

    def take(self) -> Step:
        """Return the step that was started last; wait until it is ready. Raises the errors of the stream."""
        return self._step.result() if self._pool else next(self._stream)

    def _next(self) -> Step:
        batches, position = next(self._stream)
        return [*map(_pinned, batches)] if self._is_pinned else batches, position


def _pinned(batch: Batch) -> Batch:
    """Return the batch in pinned memory; in usual memory where the system, such as WSL, pins no more."""
    try:
        return batch.pin_memory()
    except RuntimeError:
        return batch
