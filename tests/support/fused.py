"""Functions that a GPU compiles, compiled for the CPU."""

import shutil
import sys

import pytest

from transduce.model import fused

needs_compiler = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("g++") is None, reason="torch.compile needs g++"
)


def compile_on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let fused functions be compiled for the CPU. Return the list that gets the notice if that fails."""
    notices: list[str] = []
    monkeypatch.setattr(fused, "DEVICES", {"cpu"})
    monkeypatch.setattr(fused, "_notices", notices)
    fused._compiled.cache_clear()
    return notices
