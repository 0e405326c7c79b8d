"""The two halves of a micro-batch on two threads of a CPU.

With all threads in each operation, a step has thousands of parallel regions, and each waits for its slowest thread. On
a machine with other programs, the slowest thread is one without a core: while one other program was busy, a small model
kept 30 % of its speed. Here a thread computes the whole gradient of a half, and the step waits once.

    micro-batch -> halves -> [copy of the model, generator of dropout, thread] x 2 -> losses, gradients -> their sum

The copies share the weights, and have separate gradients.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from transduce.data.batches import Batch
from transduce.model.dropout import draw_from
from transduce.training import sharding


def count(model: nn.Module, device: torch.device) -> int:
    """Return the number of parts to cut a micro-batch into: 2 where two threads of a CPU can train them, else 1.

    Also 1 for a model in shards, and for a model with torch's own dropout, whose masks come from one global generator.
    """
    own_dropout = any(isinstance(module, nn.RNNBase) and module.dropout for module in model.modules())
    sharded = any(sharding.is_sharded(parameter) for parameter in model.parameters())
    return 1 if device.type != "cpu" or torch.get_num_threads() == 1 or own_dropout or sharded else 2


class Workers:
    """Threads that each compute the gradient of a part of a micro-batch, with a copy of `model`.

    The first worker is the calling thread: it has the model itself, and torch's global generator.
    """

    def __init__(self, model: nn.Module, n: int) -> None:
        self.models = [model, *(_copy_with_shared_weights(model) for _ in range(n - 1))]
        self.parameters = [[*model.parameters()] for model in self.models]  # a walk through the modules takes 1 ms
        self.generators = [torch.default_generator, *(torch.Generator() for _ in range(n - 1))]
        self.threads = max(1, torch.get_num_threads() // n)  # of each worker, in one operation
        self.pools = [ThreadPoolExecutor(1, "half", self._start, (generator,)) for generator in self.generators[1:]]

    def _start(self, generator: torch.Generator) -> None:
        torch.set_num_threads(self.threads)
        draw_from(generator)

    def reset(self, seed: int) -> None:
        """Seed dropout, and drop the gradients of all copies."""
        torch.manual_seed(seed)
        for i, generator in enumerate(self.generators[1:], start=1):
            generator.manual_seed((seed + i) % 2**64)
        for parameters in self.parameters:
            drop_gradients(parameters)

    def run(self, work: Callable[[nn.Module, Batch], Tensor | None], parts: Sequence[Batch]) -> list[Tensor | None]:
        """Return work(copy, part) for each part. `work` adds to the gradient of its copy."""
        pairs = zip(self.pools, self.models[1:], parts[1:], strict=False)
        futures = [pool.submit(work, model, part) for pool, model, part in pairs]
        with threads(self.threads):
            first = work(self.models[0], parts[0])
        return [first, *(future.result() for future in futures)]

    def add_gradients(self) -> None:
        """Move the gradients of all copies to the model, in the order of the copies."""
        for parameters in self.parameters[1:]:
            for parameter, twin in zip(self.parameters[0], parameters, strict=True):
                if parameter.grad is None:
                    parameter.grad = twin.grad
                elif twin.grad is not None:
                    parameter.grad.add_(twin.grad)
                twin.grad = None


def drop_gradients(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _copy_with_shared_weights(model: nn.Module) -> nn.Module:
    """Return a copy whose parameters share the memory of `model`'s parameters, with separate gradients."""
    twins = {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, twins)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch use `number` threads in an operation of this thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
