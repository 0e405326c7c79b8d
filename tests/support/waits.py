"""The waits of the host for a GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def waits() -> Iterator[list[str]]:
    """Yield a list that gets torch's warning for each wait for the GPU in the block."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield messages
        finally:
            torch.cuda.set_sync_debug_mode("default")
            texts = [str(warning.message) for warning in caught]
            messages += [text for text in texts if "called a synchronizing" in text]  # not the notice of the mode
