"""Table 1, measured: what the four kinds of layer cost, how much of it waits, and how far apart it leaves positions.

Time and memory are measured, forward and backward, over sequence lengths n and widths d, and fitted by a power law;
sequential operations and path lengths are counted on the layers' own graphs.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transduce.study.layers import Convolutional, Recurrent, RestrictedSelfAttention, SelfAttention

KERNEL = 3
WINDOW = 65  # r: itself and 32 on either side
LENGTHS = (256, 512, 1_024, 2_048, 4_096)  # n, at d = WIDTH
WIDTHS = (128, 256, 512, 1_024)  # d, at n = LENGTH
WIDTH, LENGTH = 64, 1_024


@dataclass(frozen=True)
class Kind:
    """A row of Table 1: how to make such a layer of width d, and what the paper says of it."""

    name: str
    make: Callable[[int], nn.Module]
    operations: Callable[[int, int], float]  # multiplications of the forward pass, (n, d)
    paper: tuple[str, str, str]  # complexity, sequential operations, maximum path length


KINDS = (
    Kind("self_attention", lambda d: SelfAttention(), lambda n, d: 2 * n * n * d, ("n² d", "1", "1")),
    Kind("recurrent", Recurrent, lambda n, d: 2 * n * d * d, ("n d²", "n", "n")),
    Kind(
        "convolutional", lambda d: Convolutional(d, KERNEL), lambda n, d: KERNEL * n * d * d, ("k n d²", "1", "log_k n")
    ),
    Kind(
        "restricted",
        lambda d: RestrictedSelfAttention(WINDOW),
        lambda n, d: 2 * WINDOW * n * d,
        ("r n d", "1", "n / r"),
    ),
)

# ---- measured ----------------------------------------------------------------------------------------------------


def seconds(layer: nn.Module, n: int, d: int, repeats: int) -> float:
    """The median time of a forward and a backward pass over one sequence, after one pass to warm up."""
    x = torch.randn(1, n, d, requires_grad=True)
    times = []
    for _ in range(repeats + 1):
        x.grad = None
        began = time.perf_counter()
        layer(x).sum().backward()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def kept_bytes(layer: nn.Module, n: int, d: int) -> int:
    """What a forward pass keeps for the backward pass, in bytes, each tensor counted once; the input is not counted."""
    x = torch.randn(1, n, d, requires_grad=True)
    own = {p.untyped_storage().data_ptr() for p in [x, *layer.parameters()]}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = layer(x)
    total = sum(kept.values())
    del output
    gc.collect()
    return total


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The a of cost = c size^a, by least squares on logarithms."""
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(xs, ys).slope


# ---- counted -----------------------------------------------------------------------------------------------------

PRODUCTS = ("MmBackward0", "AddmmBackward0", "BmmBackward0", "ConvolutionBackward0")


def sequential_operations(layer: nn.Module, n: int, d: int) -> int:
    """The most matrix products of a layer that have to wait for one another: the longest chain of its graph."""
    run = layer.steps if isinstance(layer, Recurrent) else layer
    last = run(torch.randn(1, n, d, requires_grad=True)).grad_fn
    assert last is not None
    chains: dict[torch.autograd.graph.Node, int] = {}
    todo = [last]
    while todo:  # depth first, by hand: the chains of a recurrent layer are longer than Python's stack
        node = todo[-1]
        before = [parent for parent, _ in node.next_functions if parent is not None]
        waiting = [parent for parent in before if parent not in chains]
        if waiting:
            todo += waiting
            continue
        chains[todo.pop()] = max((chains[parent] for parent in before), default=0) + (node.name() in PRODUCTS)
    return chains[last]


def path_length(name: str, n: int, d: int = 4) -> int:
    """How many layers, or steps of a recurrent one, lie between the first position and the last, by the gradient.

    Layers are stacked until the gradient of the last output reaches the first input; a recurrent layer carries its
    state over ever more positions until it does.
    """
    if name == "recurrent":
        layer = Recurrent(d).double()
        nn.init.orthogonal_(
            layer.rnn.all_weights[0][1]
        )  # or the gradient of a few hundred steps would vanish in rounding
        for steps in range(1, n + 1):
            if _arrives(lambda x, steps=steps: layer.steps(x[:, -steps:]), n, d):
                return steps
    layers: list[nn.Module] = []
    while True:
        layers.append(_stacked(name, len(layers), d).double())
        if _arrives(nn.Sequential(*layers), n, d):
            return len(layers)


def _stacked(name: str, below: int, d: int) -> nn.Module:
    """The layer to put on top of `below` others of its kind."""
    if name == "convolutional":
        return Convolutional(d, KERNEL, dilation=KERNEL**below)
    return RestrictedSelfAttention(WINDOW) if name == "restricted" else SelfAttention()


def _arrives(network: Callable[[Tensor], Tensor], n: int, d: int) -> bool:
    """Whether the gradient of the last position's output reaches the first position's input."""
    x = (0.01 * torch.randn(1, n, d, dtype=torch.float64)).requires_grad_()
    network(x)[:, -1].sum().backward()
    assert x.grad is not None
    return bool(x.grad[:, 0].any())
