"""The kernels compiled for each level that this processor has."""

import functools
import platform

import pytest

from transduce.decoding.compile_kernels import LEVELS, Level, levels, library_of
from transduce.decoding.compiled_kernels import Compiled

ARM = ["neon_dot", "neon"]
OTHERS = [] if platform.machine() in ("aarch64", "arm64") else ARM  # of another architecture
NAMES = [name for name in LEVELS if name not in OTHERS]

# Where AVX-VNNI is missing, the same instruction of AVX-512 takes its place.
IMITATION = Level(flags=(*LEVELS["avx2"].flags, "-mavx512vl", "-mavx512vnni", "-DDOT_PRODUCT=_mm256_dpbusd_epi32"))


def kernels_at(name: str) -> Compiled:
    """Return the kernels of a level, or skip the test where this machine cannot run or compile them."""
    level = LEVELS[name]
    if name == "avx_vnni" and name not in levels() and "avx512_vnni" in levels():
        level = IMITATION
    elif name not in levels():
        pytest.skip(f"this processor lacks one of {', '.join(level.capabilities)}")
    kernels = _kernels(level)
    if kernels is None:
        pytest.skip("needs a C++ compiler")
    return kernels


@functools.cache
def _kernels(level: Level) -> Compiled | None:
    functions = library_of(level)
    return functions and Compiled(functions)
