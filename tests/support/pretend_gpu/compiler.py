"""torch.compile on the pretended GPU: the function as it is written, counted as one kernel.

Inductor makes one kernel of a function without products of matrices, sums over different dimensions, and writes to its
arguments. Its traffic: arguments and outputs. The backward kernel also reads gradients of the outputs.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_leaves, tree_map

from support.pretend_gpu import record
from support.pretend_gpu.tensors import Tape, values_of


def compile(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """Stand for torch.compile. A function with a gradient returns a tensor or a tuple of tensors."""

    @functools.wraps(function)
    def compiled(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
            return _Kernel.apply(function, *args)
        with _one_kernel(function, args) as outputs:
            outputs.append(function(*args))
        return outputs[0]

    return compiled


@contextmanager
def _one_kernel(function: Callable[..., Any], args: Any) -> Iterator[list[Any]]:
    """Record what the block does as one kernel. The block puts its outputs into the list."""
    outputs: list[Any] = []
    tape = Tape.current
    Tape.current = None
    try:
        with record.not_recording():
            yield outputs
    finally:
        Tape.current = tape
    tensors = [x for x in tree_leaves((args, outputs)) if isinstance(x, Tensor)]
    record.add_kernel(function.__name__, sum(x.numel() * x.element_size() for x in tensors))
    if tape is not None:
        tape.add(function.__name__, function, tree_map(values_of, args), {}, tree_map(values_of, outputs[0]))


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
        leaves = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in args]
        with _one_kernel(function, args) as outputs, torch.enable_grad():
            outputs.append(function(*leaves))
        ctx.function = function
        ctx.leaves = leaves
        ctx.outputs = outputs[0]
        return tree_map(torch.detach, outputs[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [x for x in ctx.leaves if isinstance(x, Tensor) and x.requires_grad]
        with _one_kernel(ctx.function, (grads, ctx.leaves)) as outputs:
            outputs.append(torch.autograd.grad(tree_leaves(ctx.outputs), wanted, grads, allow_unused=True))
        of_wanted = iter(outputs[0])
        return None, *(next(of_wanted) if any(x is w for w in wanted) else None for x in ctx.leaves)
