"""Functions of tensors that a GPU computes in one or two kernels, instead of one kernel for each operation.

torch.compile makes the kernels from the function's own code, which stays the definition. A CPU runs the function as it
is written. So does a GPU where compilation fails: without Triton (Windows), without a C compiler, or on an old GPU.
"""

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from transduce.errors import is_out_of_memory

DEVICES = {"cuda"}  # for which functions are compiled
NOTICE = (
    "transduce: torch.compile fails, so training on this GPU is slower ({}); install Triton and a C compiler such as "
    "gcc, or set TORCH_COMPILE_DISABLE=1 to hide this line"
)
_notices: list[str] = []  # at most one for a process
P = ParamSpec("P")
R = TypeVar("R")


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` as it is to be called: with tensors of a GPU it is compiled at the first call.

    The device of the first argument, a tensor, decides. Sizes that change between calls are compiled once more, as
    variables. Other values and the types of tensors are constants: each combination is compiled for itself, up to 8.
    """
    is_broken = False

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal is_broken
        x: Any = args[0]
        if is_broken or x.device.type not in DEVICES or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        try:
            return _compiled(function)(*args, **kwargs)
        except Exception as problem:
            if is_out_of_memory(problem):
                raise
            result = function(*args, **kwargs)  # raises if the arguments are at fault
            is_broken = True
            if not _notices:
                _notices.append(str(problem).strip().partition("\n")[0])
                logging.getLogger("transduce").warning(NOTICE.format(*_notices))
            return result

    return call


@functools.cache
def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    return torch.compile(function, backend=_compile)


def _compile(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """Return compiled code, made in this process: others would take longer to start than one or two kernels to compile.

    Torch warns of its own old code, and of products in fp32, which such functions do not have.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, inputs, config_patches={"compile_threads": 1})  # pyright: ignore[reportReturnType]
