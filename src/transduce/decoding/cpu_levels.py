"""The libraries of the kernels in C++, one for each level of instructions, and the best one for this processor.

The installation compiles native/ for the levels of its architecture (CMakeLists.txt). The environment variable
TRANSDUCE_CPU_LEVEL takes another level than the best one, for tests and benchmarks.
"""

import ctypes
import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from transduce.data.native_library import REMEDY, native_library
from transduce.errors import UserError

NATIVE = Path(__file__).parent / "native"
LEVEL = "TRANSDUCE_CPU_LEVEL"

_AVX2 = ("avx2", "fma3")
_AVX512 = (*_AVX2, "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl")
LEVELS = {  # the best ones of each architecture first; their instructions as `torch.cpu.get_capabilities` names them
    "avx512_vnni": (*_AVX512, "avx512_vnni"),
    "avx512": _AVX512,
    "avx_vnni": (*_AVX2, "avx_vnni"),
    "avx2": _AVX2,
    "neon_dot": ("neon", "dot"),
    "neon": ("neon",),
    "portable": (),
}


def levels() -> list[str]:
    """Return the levels whose instructions this processor has, the best one first."""
    capabilities = _capabilities()
    return [level for level, instructions in LEVELS.items() if all(capabilities.get(name) for name in instructions)]


def _capabilities() -> Mapping[str, object]:
    """Return the names of `torch.cpu.get_capabilities`. An older torch gives the names that x86-64 levels need."""
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    found = {name: torch.cpu._is_avx2_supported() for name in _AVX2}
    found |= {name: torch.cpu._is_avx512_supported() for name in _AVX512 if name not in found}
    return found | {"avx512_vnni": torch.cpu._is_vnni_supported()}


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the library of the best level that is installed; None, with a warning, if there is none.

    A compiler that did not know the best level has left it out. Raises UserError if the environment names a level that
    is not installed or that this processor lacks.
    """
    available, name = levels(), os.environ.get(LEVEL)
    if name and name not in available:
        raise UserError(f"{LEVEL}={name}: expected one of {', '.join(available)} on this processor; unset {LEVEL}")
    for level in [name] if name else available:
        functions = library_of(level)
        if functions is not None:
            return functions
    if name:
        raise UserError(f"{LEVEL}={name}: expected its compiled kernels; {REMEDY}, or unset {LEVEL}")
    logging.getLogger("transduce").warning(
        f"transduce: no compiled kernels of this version, so translation is slow; {REMEDY}"
    )
    return None


def library_of(level: str) -> ctypes.CDLL | None:
    """Return the library of a level; None if it is not installed, or is of another system or another version."""
    return native_library(NATIVE, level)
