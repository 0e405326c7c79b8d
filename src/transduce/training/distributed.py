"""Many processes that train one model, on one machine or on many, as torchrun starts them.

    torchrun -> process_group() -> rank() of world_size(): sums over all of them; what the first does alone

One process alone is rank 0 of 1, and for it everything here is done at once. A function that sums or waits is called by
every rank, in the same order. If one of them is gone, or does not come within the timeout, it raises ConnectionError on
the others; nothing is saved then, and torchrun starts all of them again.

The gradients of ranks are summed here and not by DistributedDataParallel. That sums during the backward pass, in which
every rank must then do the same: none could be left without pairs, or cut a micro-batch that does not fit into memory.
Also its buckets are not the same after a restart, so that with three ranks or more the sums, and hence the weights,
would differ in their last bits from those of a run that nothing disturbed.
"""

import hashlib
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from transduce.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")

# ---- who we are --------------------------------------------------------------------------------------------------

TIMEOUT_SECONDS = 120
BEAT_SECONDS = 1.0  # between two signs of life
ALLOWED_SECONDS = 5, 86_400  # several beats; a day


@contextmanager
def process_group(timeout_seconds: float | None = None) -> Iterator[None]:
    """Within it this process is one of those that torchrun has started; alone, if it was not started by torchrun.

    timeout_seconds: how long a rank waits for another; None: TIMEOUT_SECONDS, which is also the least that it waits for
    all to start. Where there is a process group already, it does nothing.
    Raises UserError if there are more ranks on this machine than GPUs, ConnectionError if the others do not come.
    """
    is_rank = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    if timeout_seconds is not None:
        _check_timeout(timeout_seconds, is_rank)
    if dist.is_initialized() or not is_rank:
        yield
        return
    backend = "gloo"
    if torch.cuda.is_available():
        _take_gpu()
        backend = "cpu:gloo,cuda:nccl"  # what is on the CPU is small, and summed without a wait for the GPU
    seconds = timeout_seconds or TIMEOUT_SECONDS
    patience = max(seconds, TIMEOUT_SECONDS)
    try:
        store, rank, ranks = next(rendezvous("env://", timeout=timedelta(seconds=patience)))
        store = PrefixStore(_start(store, rank, ranks, patience), store)
        timeout = timedelta(seconds=seconds)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
    except RuntimeError as problem:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ConnectionError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} has not found the others through {where} within "
            f"{patience:g} s ({_reason(problem)}); are all of them started, and can they reach it?"
        ) from None
    yield
    dist.destroy_process_group()  # not after an error: it would wait for ranks that are gone


def _check_timeout(seconds: float, is_rank: bool) -> None:
    least, most = ALLOWED_SECONDS
    if not least <= seconds <= most:
        raise UserError(f"--rank-timeout {seconds:g}: expected {least} to {most:,} seconds")
    if not is_rank:
        raise UserError(f"--rank-timeout {seconds:g} has no effect without torchrun; leave it out")


def _start(store: Store, rank: int, ranks: int, patience: float) -> str:
    """A name for this start of the ranks, the same on all.

    The store is torchrun's and outlives the ranks. What those before a restart have left in it, above all the addresses
    at which they listened, must not be taken for ours. So each rank leaves a mark of its own, looks at all of them, and
    tells what it sees, until all see the same: a rank that has not started anew cannot see the new marks.
    """
    everybody, until = range(ranks), time.monotonic() + patience
    store.set(f"mark of {rank}", uuid.uuid4().hex)
    while time.monotonic() < until:
        marks = b" ".join(store.multi_get([f"mark of {other}" for other in everybody]))
        name = hashlib.sha256(marks).hexdigest()
        store.set(f"seen by {rank}", name)
        if all(seen == name.encode() for seen in store.multi_get([f"seen by {other}" for other in everybody])):
            return name
        time.sleep(0.05)
    raise RuntimeError("not all have come")


def _reason(problem: Exception) -> str:
    """What torch says, without where in its sources, and without advice."""
    line = str(problem).strip().partition("\n")[0]
    return re.sub(r"\[\S+\.(cc|cpp|h):\d+\] ", "", line).partition(". ")[0]


def _take_gpu() -> None:
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise UserError(f"local rank {number}, but this machine has {count} GPUs; expected --nproc-per-node {count}")
    torch.cuda.set_device(number)


def rank() -> int:
    """The number of this process among all, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_leader() -> bool:
    """Whether this is rank 0, which alone writes and talks."""
    return rank() == 0


def device() -> torch.device:
    """Where this rank computes: its GPU, or the CPU if there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


# ---- sums --------------------------------------------------------------------------------------------------------


@contextmanager
def lost_ranks_raise() -> Iterator[None]:
    """ConnectionError for what torch raises within, when another rank is gone: from gloo, it is known by its text."""
    try:
        yield
    except RuntimeError as problem:
        if not isinstance(problem, dist.DistError) and "gloo" not in str(problem):
            raise
        raise ConnectionError(
            f"rank {rank()} of {world_size()} has lost the others ({_reason(problem)}); it leaves without saving, and "
            "torchrun --max-restarts N, or all ranks with --resume, go on from the last checkpoint"
        ) from None


def sum_over_ranks(values: Tensor) -> Tensor:
    """`values`, now the sum of those of all ranks, the same to the last bit on each."""
    if world_size() > 1:
        with lost_ranks_raise():
            dist.all_reduce(values)
    return values


def any_rank(flag: bool) -> bool:
    """Whether `flag` is set on any rank."""
    return bool(sum_over_ranks(torch.tensor(int(flag))))


def barrier() -> None:
    """Wait for all ranks."""
    any_rank(False)


BUCKET_BYTES = 64 << 20


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace .grad of every parameter by its sum over the ranks. One that has none counts as 0."""
    if world_size() == 1:
        return
    bucket: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        bucket.append(parameter.grad)
        if sum(gradient.nbytes for gradient in bucket) >= BUCKET_BYTES:
            _sum_bucket(bucket)
            bucket = []
    if bucket:
        _sum_bucket(bucket)


def _sum_bucket(gradients: list[Tensor]) -> None:
    """Sum tensors of one type as one."""
    total = sum_over_ranks(torch.cat([gradient.flatten() for gradient in gradients]))
    parts = total.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


# ---- what the first does alone -----------------------------------------------------------------------------------


@contextmanager
def leader_first() -> Iterator[None]:
    """Rank 0 goes through the block, however long it takes, and then the others do, all at once."""
    if world_size() == 1:
        yield
    elif is_leader():
        with _Heartbeat() as heart:
            yield
        heart.tell(b"done")
    else:
        _wait_for_leader()
        yield


def run_on_leader(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns, a JSON value. Rank 0 does it, when all have come; the others wait, however long it takes."""
    if world_size() == 1:
        return work(*args, **kwargs)
    barrier()
    if not is_leader():
        return json.loads(_wait_for_leader())
    with _Heartbeat() as heart:
        result = work(*args, **kwargs)
    heart.tell(json.dumps(result).encode())
    return result


class _Heartbeat:
    """Rank 0 is at work: a thread of it tells the others now and then. Should it stop, they do not wait for ever.

    A beat is a sum over ranks, of 0 while there is nothing to tell, then of the length of what is told.
    """

    def __enter__(self) -> "_Heartbeat":
        self.done = threading.Event()
        self.problem: ConnectionError | None = None
        self.thread = threading.Thread(target=self._beat, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _beat(self) -> None:
        try:
            while not self.done.wait(BEAT_SECONDS):
                sum_over_ranks(torch.tensor(0))
        except ConnectionError as problem:
            self.problem = problem

    def tell(self, content: bytes) -> None:
        """What all others get from `_wait_for_leader`. ConnectionError if one of them has been lost in the meantime."""
        if self.problem is not None:
            raise self.problem
        sum_over_ranks(torch.tensor(len(content)))
        sum_over_ranks(torch.frombuffer(bytearray(content), dtype=torch.uint8))


def _wait_for_leader() -> bytes:
    """Wait until rank 0 is done, and get what it tells."""
    length = 0
    while not length:
        length = int(sum_over_ranks(torch.tensor(0)))
    return bytes(sum_over_ranks(torch.zeros(length, dtype=torch.uint8)).tolist())
