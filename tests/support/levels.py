"""The kernels compiled for each level that this processor has."""

import functools
import platform

import pytest

from transduce.decoding.compiled_kernels import Compiled
from transduce.decoding.cpu_levels import LEVELS, levels, library_of

ARM = ["neon_dot", "neon"]
OTHERS = [] if platform.machine() in ("aarch64", "arm64") else ARM  # of another architecture
NAMES = [name for name in LEVELS if name not in OTHERS]


def kernels_at(name: str) -> Compiled:
    """Return the kernels of a level, or skip the test where this machine cannot run them or has not compiled them."""
    if name not in levels():
        if name != "avx_vnni" or "avx512_vnni" not in levels():
            pytest.skip(f"this processor lacks one of {', '.join(LEVELS[name])}")
        name = "avx_vnni_imitation"
    kernels = _kernels(name)
    if kernels is None:
        pytest.skip("needs compiled kernels")
    return kernels


@functools.cache
def _kernels(name: str) -> Compiled | None:
    functions = library_of(name)
    return functions and Compiled(functions)
