"""Which operations Apple's GPUs lack, by the list of kernels that torch is built from."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torchgen
import yaml
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from transduce.model import dropout

# Kernels that every device has: they consist of other operations.
COMPOSITE = {"CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}


@functools.cache
def operations_of_mps() -> frozenset[str]:
    """Return the names of the operations that run on MPS, such as aten::add.Tensor."""
    path = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    entries = {entry["func"].split("(")[0]: entry for entry in yaml.safe_load(path.read_text("utf-8"))}

    def runs(entry: dict[str, Any]) -> bool:
        if "structured_delegate" in entry:
            return runs(entries[entry["structured_delegate"]])
        kernels = {
            key.strip() for keys in entry.get("dispatch", {"CompositeImplicitAutograd": ""}) for key in keys.split(",")
        }
        return bool(kernels & {"MPS", *COMPOSITE})

    return frozenset(f"aten::{name}" for name, entry in entries.items() if runs(entry))


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


@contextmanager
def missing_operations() -> Iterator[set[str]]:
    """Yield a set that has, after the block, the operations in it that MPS lacks. Dropout is that of a GPU."""
    missing: set[str] = set()
    with pytest.MonkeyPatch.context() as patch, _Recorder() as recorder:
        patch.setattr(dropout, "dropout", F.dropout)
        yield missing
    used = {name for name in recorder.names if name.startswith("aten::")}
    assert used
    missing |= used - operations_of_mps()
