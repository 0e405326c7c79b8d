"""The operations of torch that start a kernel on a GPU, and their count. Usable without the pretended GPU."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations without a kernel.
VIEWS = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal", "empty", "empty_like",
    "empty_strided", "expand", "is_pinned", "lift_fresh", "movedim", "narrow", "new_empty", "permute", "resize_",
    "select", "set_", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold",
    "unsafe_split", "unsqueeze", "view",
}  # fmt: skip


def n_bytes(values: Iterable[Any]) -> int:
    """Return the size of the tensors among some values."""
    return sum(x.numel() * x.element_size() for x in values if isinstance(x, Tensor))


class Operations(TorchDispatchMode):
    """Counts the operations of a block on a device that are no views, and the bytes of their inputs and outputs.

    What torch has compiled or recorded is not seen.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type
        self.count = 0
        self.bytes_moved = 0
        self.copies_to_gpu = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # otherwise torch runs a compiled function as it is written

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs, outputs)) if isinstance(x, Tensor)]
        devices = {x.device.type for x in tensors if x.dim()}
        if name in ("copy_", "_to_copy") and len(devices) > 1:
            self.copies_to_gpu += outputs.device.type != "cpu"
        elif name not in VIEWS and self.device_type in {x.device.type for x in tensors}:
            self.count += 1
            self.bytes_moved += n_bytes(tensors)
        return outputs
