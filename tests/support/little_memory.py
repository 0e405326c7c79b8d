"""A machine on which memory runs out for more than a few texts."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class LittleMemory(TorchFunctionMode):
    """Within the context, a layer of more than `room` texts runs out of memory. sizes: texts of each layer."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.sizes: list[int] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and args[0].dim() == 3:  # (B,T,D)
            self.sizes.append(len(args[0]))
            if len(args[0]) > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return func(*args, **(kwargs or {}))
