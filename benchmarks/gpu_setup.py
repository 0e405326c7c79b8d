"""What must come before torch and the package in the scripts for a GPU: the start of the clock, paths and stand-ins."""

import importlib.util
import sys
import time
import types
from pathlib import Path
from typing import Any

START = time.monotonic()  # the import of torch takes some of the minutes


class _Anything(type):
    """Classes that have every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (_Stand,), {})


class _Stand(Exception, metaclass=_Anything):
    def __init_subclass__(cls, **_: Any) -> None:
        """Accept all keyword arguments."""


class _Absent(types.ModuleType):
    """A stand-in for a package that only the command line needs, so that its import raises no error."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_Stand, name)


_NAMES = ("msgspec", "tokenizers", "safetensors", "safetensors.torch", "rich", "rich.console", "rich.progress")
_ABSENT = [name for name in _NAMES if importlib.util.find_spec(name.partition(".")[0]) is None]
sys.modules.update((name, _Absent(name)) for name in _ABSENT)
if isinstance(_msgspec := sys.modules.get("msgspec"), _Absent):  # a check of types that accepts every value
    vars(_msgspec).update(convert=lambda value, _: value, Meta=lambda **_: None)
sys.path[:0] = [str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", "tests")]
