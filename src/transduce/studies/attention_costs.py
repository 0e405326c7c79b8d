"""The time and the memory of forms of attention against the length n, forward and backward, on a CPU."""

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from transduce.model.attention import Mask
from transduce.studies.attention_forms import Form, Layer, Shape, forms, layers
from transduce.studies.attention_sizes import Sizes
from transduce.training.signals import StopSignal


class Pass:
    """A forward and a backward pass of a form, or of a layer, over one text, which can be repeated."""

    def __init__(self, form: Form | Layer, shape: Shape) -> None:
        torch.manual_seed(1)
        mask: Mask = "causal" if form.causal else torch.ones(1, 1, 1, shape.n, dtype=torch.bool)
        if isinstance(form, Layer):
            function = layer = form.make(shape)
            x = torch.randn(1, shape.n, shape.d_model, requires_grad=True)
            self.inputs = [x]
            self.forward: Callable[[], Tensor] = lambda: layer(x, mask)
        else:
            function = attention = form.make(shape)
            size = (1, shape.n_heads, shape.n, shape.d_k)
            queries, keys, values = self.inputs = [torch.randn(size, requires_grad=True) for _ in range(3)]
            self.forward = lambda: attention(queries, keys, values, mask, 0.0)
        self.parameters = [*function.parameters()] if isinstance(function, nn.Module) else []
        self.gradient = torch.randn_like(self.inputs[0])

    def backward(self, output: Tensor) -> None:
        output.backward(self.gradient)
        for x in (*self.inputs, *self.parameters):
            x.grad = None

    def seconds(self) -> tuple[float, float]:
        """Return the processor seconds of the forward and of the backward pass."""
        start = time.process_time()
        output = self.forward()
        middle = time.process_time()
        self.backward(output)
        return middle - start, time.process_time() - middle

    def peak_bytes(self) -> int:
        """Return the most bytes that both passes hold at once, above inputs, weights and the output's gradient."""
        return peak_bytes(lambda: self.backward(self.forward()))


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most bytes that torch has allocated at once during `work`, above those before it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints its stages
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    kineto: Any = profiler.profiler
    current = most = 0
    for event in kineto.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            most = max(most, current)
    return most


def measure(n: int, sizes: Sizes, stop: StopSignal) -> dict[str, dict[str, float]] | None:
    """Return the costs of each form and layer at length n: forward_seconds, backward_seconds and peak_bytes.

    A causal layer also has cache_bytes_per_token. None after a signal.
    The forms take turns, so that another program on the machine delays all of them. The seconds are the minimum of all
    rounds: other programs can only add time. The first pass, which measures memory, warms up.
    """
    shape = Shape(n, sizes.cost_heads, sizes.cost_width)
    measured = [one for one in (*forms(sizes), *layers(sizes)) if n <= sizes.longest_square or not one.is_square]
    passes = {one.name: Pass(one, shape) for one in measured}
    costs: dict[str, dict[str, float]] = {}
    for name, one in passes.items():
        if stop.is_requested:
            return None
        costs[name] = {"peak_bytes": one.peak_bytes()}
    for _ in range(dict(zip(sizes.lengths, sizes.rounds, strict=True)).get(n, 1)):
        for name, one in passes.items():
            if stop.is_requested:
                return None
            for key, seconds in zip(("forward_seconds", "backward_seconds"), one.seconds(), strict=True):
                costs[name][key] = min(seconds, costs[name].get(key, seconds))
    for layer in layers(sizes):
        if layer.causal:
            costs[layer.name]["cache_bytes_per_token"] = layer.make(shape).cache_bytes(shape.d_model)
    return costs
