"""Python on Linux as on macOS with an Apple processor: with this folder on PYTHONPATH, each process lacks its lack.

There is no /proc, no function of glibc, no affinity to cores, and torch is built without oneDNN.
"""

import builtins
import ctypes
import io
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

FUNCTIONS = "posix_fadvise posix_fallocate sched_getaffinity sched_setaffinity"


def main() -> None:
    for name in FUNCTIONS.split():
        delattr(os, name)
    Path.read_text = _without_proc(Path.read_text)  # type: ignore[method-assign]
    Path.is_file = _without_proc(Path.is_file, absent=False)  # type: ignore[method-assign]
    builtins.open = _without_proc(io.open)
    ctypes.CDLL.__getattr__ = _without_glibc(ctypes.CDLL.__getattr__)  # type: ignore[method-assign]
    sys.meta_path.insert(0, _TorchFinder())


def _without_proc(function: Any, absent: bool | None = None) -> Any:
    def on_macos(path: Any, *arguments: Any, **keywords: Any) -> Any:
        if not str(path).startswith("/proc/"):
            return function(path, *arguments, **keywords)
        if absent is None:
            raise FileNotFoundError(path)
        return absent

    return on_macos


def _without_glibc(function: Any) -> Any:
    def get(library: ctypes.CDLL, name: str) -> Any:
        if name == "mallopt":
            raise AttributeError(name)
        return function(library, name)

    return get


class _TorchFinder(MetaPathFinder):
    """Removes the functions of oneDNN from `torch.ops`, as soon as torch is loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_hide(module: Any) -> None:
            execute(module)
            namespaces = module._ops._OpNamespace
            get = namespaces.__getattr__

            def get_on_macos(namespace: Any, function: str) -> Any:
                if namespace.name == "mkldnn" and not function.startswith("__"):
                    raise AttributeError(f"'_OpNamespace' 'mkldnn' object has no attribute '{function}'")
                return get(namespace, function)

            namespaces.__getattr__ = get_on_macos
            for function in ("_convolution_pointwise", "_linear_pointwise"):  # torch has already used them
                delattr(module.ops.mkldnn, function)
            module._C._has_mkldnn = False

        spec.loader.exec_module = execute_and_hide  # type: ignore[method-assign]
        return spec


main()
