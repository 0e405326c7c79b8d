"""Table 1, measured: what the four kinds of layer cost, how much of it waits, and how far apart it leaves positions.

Time and memory are measured, forward and backward, over sequence lengths n and widths d, and fitted by a power law;
sequential operations and path lengths are counted on the layers' own graphs.
"""

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transduce.evaluation.study_charts import COLOURS, powers_svg
from transduce.evaluation.study_report import Figure, Report, Section, Table, write_report
from transduce.studies.layers import Convolutional, Recurrent, RestrictedSelfAttention, SelfAttention
from transduce.studies.results import Results, open_results

KERNEL = 3
WINDOW = 65  # r: itself and 32 on either side
LENGTHS = (256, 512, 1_024, 2_048, 4_096)  # n, at d = WIDTH
WIDTHS = (256, 512, 1_024, 2_048)  # d, at n = LENGTH
WIDTH, LENGTH = 64, 512
COUNTED = (64, 128, 256, 512)  # n, where operations and paths are counted; the last is in the table
REPEATS = 5


@dataclass(frozen=True)
class Kind:
    """A row of Table 1: how to make such a layer of width d, and what the paper says of it."""

    name: str
    title: str
    make: Callable[[int], nn.Module]
    paper: tuple[str, str, str]  # complexity, sequential operations, maximum path length


KINDS = (
    Kind("self_attention", "self-attention", lambda d: SelfAttention(), ("n² d", "1", "1")),
    Kind("recurrent", "recurrent", Recurrent, ("n d²", "n", "n")),
    Kind(
        "convolutional",
        f"convolutional, k = {KERNEL}",
        lambda d: Convolutional(d, KERNEL),
        ("k n d²", "1", "log_k n"),
    ),
    Kind(
        "restricted",
        f"self-attention restricted to r = {WINDOW}",
        lambda d: RestrictedSelfAttention(WINDOW),
        ("r n d", "1", "n / r"),
    ),
)

# ---- measured ----------------------------------------------------------------------------------------------------


def seconds(layer: nn.Module, n: int, d: int, repeats: int) -> float:
    """The processor time of a forward and a backward pass over one sequence: the least of all, after one to warm up.

    What other programs on the machine add to it comes and goes; the least is nearest to what the work takes.
    """
    x = torch.randn(1, n, d, requires_grad=True)
    times = []
    for _ in range(repeats + 1):
        x.grad = None
        began = time.process_time()
        layer(x).sum().backward()
        times.append(time.process_time() - began)
    return min(times[1:])


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


# ---- the study ---------------------------------------------------------------------------------------------------


def run_table1(out: Path) -> Results:
    """Measure the kinds of layer that are not yet in OUT/results.json, and write the report.

    On the CPU, with as many threads as torch takes. Raises UserError if `out` holds something else.
    """
    asked = {
        "kernel": KERNEL, "window": WINDOW, "lengths": list(LENGTHS), "width": WIDTH, "widths": list(WIDTHS),
        "length": LENGTH, "counted": list(COUNTED), "repeats": REPEATS,
    }  # fmt: skip
    results = open_results(out, "table1", asked)
    todo = [kind for kind in KINDS if not results.is_done(kind.name)]
    if todo:
        out.mkdir(parents=True, exist_ok=True)
        results.begin([kind.name for kind in KINDS])
    for kind in todo:
        print(f"{kind.title} ...", file=sys.stderr, flush=True)
        began, used = time.monotonic(), time.process_time()
        figures = measured(kind)
        took = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - used}
        results.record(kind.name, "done", **figures, **{name: round(value, 1) for name, value in took.items()})
    write_report(out, report(results), results.sessions)
    return results


def measured(kind: Kind) -> dict[str, Any]:
    """Everything about one kind of layer: fitted exponents, counts, and the points behind them."""
    torch.manual_seed(1)
    sizes = {"n": [(n, WIDTH) for n in LENGTHS], "d": [(LENGTH, d) for d in WIDTHS]}
    found: dict[str, Any] = {}
    points: dict[str, list[dict[str, Any]]] = {}
    for which, places in sizes.items():
        points[which] = [
            {
                "n": n,
                "d": d,
                "time_seconds": seconds(kind.make(d), n, d, REPEATS),
                "kept_bytes": kept_bytes(kind.make(d), n, d),
            }
            for n, d in places
        ]
        grown = [float(point[which]) for point in points[which]]
        for cost in ("time_seconds", "kept_bytes"):
            name = {"time_seconds": "time", "kept_bytes": "memory"}[cost]
            found[f"{name}_exponent_{which}"] = round(exponent(grown, [point[cost] for point in points[which]]), 3)
    counts = [
        {"n": n, "sequential_ops": sequential_operations(kind.make(4), n, 4), "path_length": path_length(kind.name, n)}
        for n in COUNTED
    ]
    complexity, sequential, path = kind.paper
    return {
        **found,
        "sequential_ops": counts[-1]["sequential_ops"],
        "path_length": counts[-1]["path_length"],
        "paper": {"complexity": complexity, "sequential_ops": sequential, "path_length": path},
        "counts": counts,
        "points": points,
        "threads": torch.get_num_threads(),
    }


def report(results: Results) -> Report:
    """What was found, beside the paper's table."""
    done = {kind: results.cells[kind.name] for kind in KINDS if results.is_done(kind.name)}
    head = ["layer", "complexity in the paper", "time grows with", "memory grows with"]
    head += [f"waits, n = {COUNTED[-1]}", "in the paper", f"longest path, n = {COUNTED[-1]}", "in the paper"]
    rows = [[kind.title, kind.paper[0], *_row(kind, results)] for kind in KINDS]
    longer = [
        [kind.title, *(f"{count['sequential_ops']:,} / {count['path_length']:,}" for count in cell["counts"])]
        for kind, cell in done.items()
    ]
    figures = [_figure(which, done) for which in ("n", "d") if done]
    return Report(
        "Table 1: what four kinds of layer cost",
        f"Self-attention, recurrent and convolutional layers as real layers, forward and backward, in fp32 on a CPU: "
        f"{len(done)} of {len(KINDS)} measured.",
        [
            Section(
                "Found here, beside the paper",
                [
                    Table(head, rows, words=frozenset({0, 1, 2, 3})),
                    f"Exponents are fitted by least squares on logarithms: of n at d = {WIDTH}, of d at n = {LENGTH}. "
                    f"Time is processor time, the least of {REPEATS} passes; memory is what a forward pass keeps "
                    "for the backward pass, its input not counted. Where overhead outweighs arithmetic, or caches "
                    "overflow, exponents differ from those of the arithmetic.",
                    "What waits is the longest chain of matrix products that need one another's results; a path is how "
                    "many layers, or steps of a recurrent one, a gradient takes from the last position to the first. "
                    "Self-attention has two products in a row, whatever n is.",
                ],
            ),
            Section("Curves", figures or ["Nothing has been measured yet."]),
            Section(
                "Counted",
                [
                    "Products that wait for one another, and the longest path.",
                    Table(["layer", *(f"n = {n}" for n in COUNTED)], longer),
                ],
            ),
        ],
    )


def _row(kind: Kind, results: Results) -> list[str]:
    if not results.is_done(kind.name):
        return ["not run"] * 6
    cell = results.cells[kind.name]
    grows = [f"n^{cell[f'{cost}_exponent_n']:.2f} d^{cell[f'{cost}_exponent_d']:.2f}" for cost in ("time", "memory")]
    return [*grows, f"{cell['sequential_ops']:,}", kind.paper[1], f"{cell['path_length']:,}", kind.paper[2]]


def _figure(which: str, done: dict[Kind, dict[str, Any]]) -> Figure:
    """Time against n or d; a curve for each kind."""
    name = {"n": f"Time against n, at d = {WIDTH}", "d": f"Time against d, at n = {LENGTH}"}[which]
    curves = {
        kind.title: [(point[which], 1_000 * point["time_seconds"]) for point in cell["points"][which]]
        for kind, cell in done.items()
    }
    alt = "; ".join(
        f"{title}: {curve[0][1]:.1f} ms at {curve[0][0]:,}, {curve[-1][1]:.1f} ms at {curve[-1][0]:,}"
        for title, curve in curves.items()
    )
    colours = list(zip(curves, COLOURS, strict=False))
    return Figure(
        name, powers_svg(curves), 280, alt, note="milliseconds of processor time, both axes logarithmic", legend=colours
    )
