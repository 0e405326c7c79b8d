"""The time and the memory of forms of attention against the length n, forward and backward, on a CPU."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from transduce.model.attention import Attention, Mask
from transduce.studies.attention_forms import FORMS, Form, Shape

LENGTHS = (256, 1_024, 4_096, 16_384)
LONGEST_SQUARE = 4_096  # above it, a form whose memory grows with n^2 is not measured
HEADS, WIDTH = 8, 64
ROUNDS = {256: 7, 1_024: 5, 4_096: 3, 16_384: 2}


class Pass:
    """A forward and a backward pass of a form over one text, which can be repeated."""

    def __init__(self, form: Form, n: int) -> None:
        torch.manual_seed(1)
        shape = Shape(n, HEADS, WIDTH)
        self.attention: Attention = form.make(shape)
        self.inputs = [torch.randn(1, HEADS, n, WIDTH, requires_grad=True) for _ in range(3)]
        self.gradient = torch.randn(1, HEADS, n, WIDTH)
        self.mask: Mask = "causal" if form.causal else torch.ones(1, 1, 1, n, dtype=torch.bool)

    def forward(self) -> Tensor:
        queries, keys, values = self.inputs
        return self.attention(queries, keys, values, self.mask, 0.0)

    def backward(self, output: Tensor) -> None:
        output.backward(self.gradient)
        for x in self.inputs:
            x.grad = None

    def seconds(self) -> tuple[float, float]:
        """Return the processor seconds of the forward and of the backward pass."""
        start = time.process_time()
        output = self.forward()
        middle = time.process_time()
        self.backward(output)
        return middle - start, time.process_time() - middle

    def peak_bytes(self) -> int:
        """Return the most bytes that both passes hold at once, above the inputs and the gradient of the output."""
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


def measure(n: int, forms: Sequence[Form] = FORMS) -> dict[str, dict[str, float]]:
    """Return the costs of each form at length n: forward_seconds, backward_seconds and peak_bytes.

    The forms take turns, so that another program on the machine delays all of them. The seconds are the minimum of all
    rounds: other programs can only add time. The first pass, which measures memory, warms up.
    """
    passes = {form.name: Pass(form, n) for form in forms if n <= LONGEST_SQUARE or not form.is_square}
    memory = {name: one.peak_bytes() for name, one in passes.items()}
    rounds = [{name: one.seconds() for name, one in passes.items()} for _ in range(ROUNDS.get(n, 1))]
    return {
        name: {
            "forward_seconds": min(times[name][0] for times in rounds),
            "backward_seconds": min(times[name][1] for times in rounds),
            "peak_bytes": memory[name],
        }
        for name in passes
    }
