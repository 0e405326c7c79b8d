"""Table 1, measured: time and memory, sequential operations, and path lengths of the four kinds of layer.

Time and memory are measured, forward and backward, over sequence lengths n and widths d, and fitted by a power law.
Sequential operations and path lengths are counted on the layers' own graphs. The attention layers omit the projections
of section 3.2.2 (4 n d^2 operations), as the table does. All layers map (B,n,D) to (B,n,D).
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.evaluation.study_charts import curves_figure, ends_in_ms, powers_svg
from transduce.evaluation.study_report import NOT_RUN, Figure, Report, Table
from transduce.studies.comparison import report_of
from transduce.studies.results import (
    Cost,
    Exponent,
    Figures,
    JsonObject,
    PositiveInt,
    Results,
    Study,
    figures_type,
    list_type,
)
from transduce.studies.runner import CellTask, in_turn, run_tasks, timed

KERNEL = 3
WINDOW = 65  # r: itself and 32 on either side
LENGTHS = (256, 512, 1_024, 2_048, 4_096)  # n, at d = WIDTH
WIDTHS = (256, 512, 1_024, 2_048)  # d, at n = LENGTH
WIDTH, LENGTH = 64, 512
COUNT_LENGTHS = (64, 128, 256, 512)  # n at which operations and paths are counted; the table has the last one
REPEATS = 5

# ---- the layers --------------------------------------------------------------------------------------------------


class SelfAttention(nn.Module):
    """softmax(x x^T / sqrt(d)) x: every position attends to every other (eq. 1), in one head."""

    def forward(self, x: Tensor) -> Tensor:
        weights = (x @ x.transpose(1, 2) / math.sqrt(x.size(2))).softmax(dim=2)  # (B,n,n)
        return weights @ x


class RestrictedSelfAttention(nn.Module):
    """Each position attends to `window` positions: itself, and half of the rest on either side (section 4)."""

    def __init__(self, window: int) -> None:
        super().__init__()
        if window % 2 == 0:
            raise ValueError(f"window={window}: expected an odd number, with equally many positions on both sides")
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        """(B,n,D) -> (B,n,D), without an n x n matrix: blocks of queries attend to their blocks of keys."""
        n, reach = x.size(1), self.window // 2
        block = max(reach, 1)
        padding = -n % block
        padded = F.pad(x, (0, 0, reach, reach + padding))  # (B,reach+n+padding+reach,D)
        queries = F.pad(x, (0, 0, 0, padding)).unflatten(1, (-1, block))  # (B,N,block,D)
        keys = padded.unfold(1, block + 2 * reach, block).transpose(2, 3)  # (B,N,block+2*reach,D)
        scores = queries @ keys.transpose(2, 3) / math.sqrt(x.size(2))  # (B,N,block,block+2*reach)
        weights = scores.masked_fill(~self._mask(n, block, x.device), -math.inf).softmax(dim=3)
        return (weights @ keys).flatten(1, 2)[:, :n]

    def _mask(self, n: int, block: int, device: torch.device) -> Tensor:
        """Return the mask (N,block,block+2*reach) of the keys that each query may see."""
        reach = self.window // 2
        query = torch.arange(n + -n % block, device=device).unflatten(0, (-1, block))[:, :, None]
        first = torch.arange(0, n, block, device=device)[:, None, None] - reach  # position of each block's first key
        key = first + torch.arange(block + 2 * reach, device=device)
        is_inside = (key >= 0) & (key < n) | (query >= n)  # a padding query sees some keys, or it would give NaN
        return is_inside & ((key - query).abs() <= reach)


class RecurrentLayer(nn.Module):
    """h_t = tanh(W x_t + U h_(t-1) + b), by torch's own kernel; `steps` computes the same step by step."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(d_model, d_model, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]

    def steps(self, x: Tensor) -> Tensor:
        """Compute `forward` by a loop over positions, whose graph has every step."""
        w, u, w_bias, u_bias = self.rnn.all_weights[0]
        hidden, outputs = x.new_zeros(x.size(0), x.size(2)), []
        for t in range(x.size(1)):
            hidden = torch.tanh(F.linear(x[:, t], w, w_bias) + F.linear(hidden, u, u_bias))
            outputs.append(hidden)
        return torch.stack(outputs, dim=1)


class ConvolutionalLayer(nn.Module):
    """A convolution of each position with `kernel` - 1 earlier ones, at distances of `dilation`.

    A stack of layers with dilations 1, k, k^2, ... sees k, k^2, k^3, ... positions: log_k n layers for n.
    """

    def __init__(self, d_model: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.kernel, self.dilation = kernel, dilation
        self.weights = nn.Linear(kernel * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B,n,D) -> (B,n,D), as one matrix product: on a CPU several times faster than torch's own Conv1d."""
        n = x.size(1)
        padded = F.pad(x, (0, 0, (self.kernel - 1) * self.dilation, 0))
        window = [padded[:, i * self.dilation :][:, :n] for i in range(self.kernel)]  # earliest position first
        return self.weights(torch.cat(window, dim=2))


@dataclass(frozen=True)
class LayerKind:
    """A row of Table 1. make: builds a layer of width d. paper: the row's entries in the paper."""

    name: str
    title: str
    make: Callable[[int], nn.Module]
    paper: tuple[str, str, str]  # complexity, sequential operations, maximum path length


CONVOLUTIONAL, RESTRICTED = f"convolutional, k = {KERNEL}", f"self-attention restricted to r = {WINDOW}"
KINDS = (
    LayerKind("self_attention", "self-attention", lambda d: SelfAttention(), ("n² d", "1", "1")),
    LayerKind("recurrent", "recurrent", RecurrentLayer, ("n d²", "n", "n")),
    LayerKind("convolutional", CONVOLUTIONAL, lambda d: ConvolutionalLayer(d, KERNEL), ("k n d²", "1", "log_k n")),
    LayerKind("restricted", RESTRICTED, lambda d: RestrictedSelfAttention(WINDOW), ("r n d", "1", "n / r")),
)

# ---- entries in results.json -------------------------------------------------------------------------------------


PASSES = list_type(figures_type("n", d=PositiveInt, time_seconds=Cost, kept_bytes=Cost))
LAYER = figures_type(
    **dict.fromkeys(("time_exponent_n", "time_exponent_d", "memory_exponent_n", "memory_exponent_d"), Exponent),
    sequential_ops=PositiveInt,
    path_length=PositiveInt,
    counts=list[figures_type("n", sequential_ops=PositiveInt, path_length=PositiveInt)],
    points=figures_type(n=PASSES, d=PASSES),
)
STUDY = Study("table1", lambda name, settings: [LAYER], key="layers")

# ---- measured ----------------------------------------------------------------------------------------------------


def seconds(layer: nn.Module, n: int, d: int, repeats: int) -> float:
    """Return the processor time of a forward and a backward pass over one sequence: the minimum after a warm-up pass.

    Other programs on the machine can only add time, so the minimum is closest to the cost of the layer.
    """
    x = torch.randn(1, n, d, requires_grad=True)
    times = []
    for _ in range(repeats + 1):
        x.grad = None
        start = time.process_time()
        layer(x).sum().backward()
        times.append(time.process_time() - start)
    return min(times[1:])


def saved_bytes(layer: nn.Module, n: int, d: int) -> int:
    """Return the bytes that a forward pass saves for the backward pass, without input and weights."""
    x = torch.randn(1, n, d, requires_grad=True)
    own_storages = {p.untyped_storage().data_ptr() for p in [x, *layer.parameters()]}
    sizes: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own_storages:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        output = layer(x)
    total = sum(sizes.values())
    del output
    gc.collect()
    return total


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the exponent a of cost = c size^a, by least squares on logarithms."""
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(xs, ys).slope


# ---- counted -----------------------------------------------------------------------------------------------------

PRODUCTS = ("MmBackward0", "AddmmBackward0", "BmmBackward0", "ConvolutionBackward0")


def sequential_operations(layer: nn.Module, n: int, d: int) -> int:
    """Return the length of the longest chain of matrix products of a layer that depend on one another."""
    run = layer.steps if isinstance(layer, RecurrentLayer) else layer
    last = run(torch.randn(1, n, d, requires_grad=True)).grad_fn
    assert last is not None
    chains: dict[torch.autograd.graph.Node, int] = {}
    stack = [last]
    while stack:  # depth first without recursion: the chains of a recurrent layer exceed Python's stack
        node = stack[-1]
        inputs = [parent for parent, _ in node.next_functions if parent is not None]
        missing = [parent for parent in inputs if parent not in chains]
        if missing:
            stack += missing
            continue
        chains[stack.pop()] = max((chains[parent] for parent in inputs), default=0) + (node.name() in PRODUCTS)
    return chains[last]


def path_length(name: str, n: int, d: int = 4) -> int:
    """Return the number of layers, or of recurrent steps, between the first and the last position, by the gradient.

    The stack of layers grows until the gradient of the last output reaches the first input. A recurrent layer is one
    layer, and the number of positions that it runs over grows instead.
    """
    if name == "recurrent":
        layer = RecurrentLayer(d).double()
        # With other weights the gradient of a few hundred steps would vanish in rounding.
        nn.init.orthogonal_(layer.rnn.all_weights[0][1])
        for steps in range(1, n + 1):
            if _is_reached(lambda x, steps=steps: layer.steps(x[:, -steps:]), n, d):
                return steps
    (make,) = (kind.make for kind in KINDS if kind.name == name)
    layers: list[nn.Module] = []
    while True:
        is_dilated = name == "convolutional"
        top = ConvolutionalLayer(d, KERNEL, dilation=KERNEL ** len(layers)) if is_dilated else make(d)
        layers.append(top.double())
        if _is_reached(nn.Sequential(*layers), n, d):
            return len(layers)


def _is_reached(network: Callable[[Tensor], Tensor], n: int, d: int) -> bool:
    """Check whether the gradient of the last position's output reaches the first position's input."""
    x = (0.01 * torch.randn(1, n, d, dtype=torch.float64)).requires_grad_()
    network(x)[:, -1].sum().backward()
    assert x.grad is not None
    return bool(x.grad[:, 0].any())


# ---- the study ---------------------------------------------------------------------------------------------------


def run_table1(out: Path) -> Results:
    """Measure the kinds of layer that are not yet in OUT/results.json, and write the report.

    It runs on the CPU, with torch's number of threads. Raises UserError if `out` has other results.
    """
    settings = {
        "kernel": KERNEL, "window": WINDOW, "lengths": list(LENGTHS), "width": WIDTH, "widths": list(WIDTHS),
        "length": LENGTH, "counted": list(COUNT_LENGTHS), "repeats": REPEATS,
    }  # fmt: skip
    results = STUDY.open(out, settings)
    tasks = [CellTask(kind.name, {}, partial(timed, measure, kind)) for kind in KINDS]
    return run_tasks([task.name for task in tasks], lambda: tasks, in_turn, results, report)


def measure(kind: LayerKind) -> Figures:
    """Return all figures of one kind of layer: fitted exponents, counts, and the measured points."""
    torch.manual_seed(1)
    sizes = {"n": [(n, WIDTH) for n in LENGTHS], "d": [(LENGTH, d) for d in WIDTHS]}
    points = {variable: [_point(kind, n, d) for n, d in pairs] for variable, pairs in sizes.items()}
    exponents = {
        f"{name}_exponent_{variable}": round(exponent([p[variable] for p in passes], [p[cost] for p in passes]), 3)
        for variable, passes in points.items()
        for name, cost in {"time": "time_seconds", "memory": "kept_bytes"}.items()
    }
    counts = [
        {"n": n, "sequential_ops": sequential_operations(kind.make(4), n, 4), "path_length": path_length(kind.name, n)}
        for n in COUNT_LENGTHS
    ]
    complexity, sequential, path = kind.paper
    return {
        **exponents,
        "sequential_ops": counts[-1]["sequential_ops"],
        "path_length": counts[-1]["path_length"],
        "paper": {"complexity": complexity, "sequential_ops": sequential, "path_length": path},
        "counts": counts,
        "points": points,
        "threads": torch.get_num_threads(),
    }


def _point(kind: LayerKind, n: int, d: int) -> dict[str, float]:
    time_seconds = seconds(kind.make(d), n, d, REPEATS)
    return {"n": n, "d": d, "time_seconds": time_seconds, "kept_bytes": saved_bytes(kind.make(d), n, d)}


def report(results: Results) -> Report:
    """Return the report: the measured figures, and the paper's table."""
    layers = {kind: results.entries[kind.name] for kind in KINDS if results.is_done(kind.name)}
    n = COUNT_LENGTHS[-1]
    head = ["layer", "complexity in the paper", "time grows with", "memory grows with"]
    head += [f"sequential operations, n = {n}", "in the paper", f"longest path, n = {n}", "in the paper"]
    rows = [[kind.title, kind.paper[0], *_row(kind, results)] for kind in KINDS]
    count_rows = [
        [kind.title, *(f"{count['sequential_ops']:,} / {count['path_length']:,}" for count in layer["counts"])]
        for kind, layer in layers.items()
    ]
    return report_of(
        results,
        n_kinds=len(KINDS),
        table=Table(head, rows, words=frozenset({0, 1, 2, 3})),
        d=WIDTH,
        n=LENGTH,
        repeats=REPEATS,
        figures=[_figure(variable, layers) for variable in ("n", "d") if layers] or "No layer has been measured yet.",
        counts=Table(["layer", *(f"n = {n}" for n in COUNT_LENGTHS)], count_rows),
    )


def _row(kind: LayerKind, results: Results) -> list[str]:
    """Return the figures of a kind, and the figures of the paper."""
    if not results.is_done(kind.name):
        return [NOT_RUN] * 6
    layer = results.entries[kind.name]
    powers = [f"n^{layer[f'{cost}_exponent_n']:.2f} d^{layer[f'{cost}_exponent_d']:.2f}" for cost in ("time", "memory")]
    return [*powers, f"{layer['sequential_ops']:,}", kind.paper[1], f"{layer['path_length']:,}", kind.paper[2]]


def _figure(variable: str, layers: dict[LayerKind, JsonObject]) -> Figure:
    name = {"n": f"Time against n, at d = {WIDTH}", "d": f"Time against d, at n = {LENGTH}"}[variable]
    curves = {
        kind.title: [(point[variable], 1_000 * point["time_seconds"]) for point in layer["points"][variable]]
        for kind, layer in layers.items()
    }
    note = "milliseconds of processor time, both axes logarithmic"
    return curves_figure(name, note, powers_svg(curves), curves, ends_in_ms)
