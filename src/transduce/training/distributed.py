"""Ranks: the processes that train one model together, on one machine or several, started by torchrun.

    torchrun -> process_group() -> rank() of world_size(): sums over all ranks, work of the leader

The leader is rank 0. A process without torchrun is rank 0 of 1; every function here then returns at once.

All ranks call the functions that sum or wait, in the same order. These functions raise ConnectionError on the other
ranks if a rank is lost, or is silent for longer than the timeout. The other ranks then exit without saving, and
torchrun restarts all of them.

`sum_gradients` sums the gradients instead of DistributedDataParallel, for two reasons:

- DistributedDataParallel sums during the backward pass, so every rank must run the same one. But a rank may have no
  pairs, or must cut a micro-batch that does not fit into memory.
- Its buckets differ after a restart. With three ranks or more the last bits of the weights would then differ from those
  of an undisturbed run.
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

# Its functions keep the process group that exists at their import as a default argument, and Adam imports it. Threads
# of such a process group outlive Python: about 1 run of 2 ranks in 8 aborted at its end. No process group exists here.
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from transduce.errors import UserError
from transduce.model import devices

P = ParamSpec("P")
T = TypeVar("T")

# ---- the process group -------------------------------------------------------------------------------------------

TIMEOUT_SECONDS = 120
BEAT_SECONDS = 1.0  # between two heartbeats
ALLOWED_SECONDS = 5, 86_400  # several heartbeats; a day


@contextmanager
def process_group(timeout_seconds: float | None = None) -> Iterator[None]:
    """Join the process group that torchrun started, for the duration of the block.

    Without torchrun, or within another process group, this does nothing.

    timeout_seconds: the longest wait for another rank; None: `TIMEOUT_SECONDS`. To start, all ranks have at least
    `TIMEOUT_SECONDS`.
    Raises UserError if this machine has more ranks than GPUs, ConnectionError if the other ranks do not start.
    """
    is_rank = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    if timeout_seconds is not None:
        _check_timeout(timeout_seconds, is_rank)
    if dist.is_initialized() or not is_rank:
        yield
        return
    backend = "gloo"
    if devices.kind() == "cuda":
        _select_gpu()
        backend = "cpu:gloo,cuda:nccl"  # tensors on the CPU are small; summing them does not wait for the GPU
    _connect(backend, timeout_seconds or TIMEOUT_SECONDS)
    yield
    dist.destroy_process_group()  # not after an error: it would wait for the lost ranks


def _check_timeout(seconds: float, is_rank: bool) -> None:
    least, most = ALLOWED_SECONDS
    if not least <= seconds <= most:
        raise UserError(f"--rank-timeout={seconds:g}: expected {least} to {most:,} seconds")
    if not is_rank:
        raise UserError(f"--rank-timeout={seconds:g}: expected several ranks, started by torchrun; leave it out")


def _select_gpu() -> None:
    """Make the GPU with the local rank's number the current one."""
    number = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.cuda.device_count()
    if number >= count:
        raise UserError(f"LOCAL_RANK={number}: expected at most one rank per GPU; use --nproc-per-node {count}")
    torch.cuda.set_device(number)


def _connect(backend: str, seconds: float) -> None:
    """Connect to the other ranks. seconds: the timeout of later sums. Raises ConnectionError if one is missing."""
    start_seconds = max(seconds, TIMEOUT_SECONDS)
    try:
        store, rank, ranks = next(rendezvous("env://", timeout=timedelta(seconds=start_seconds)))
        store = PrefixStore(_name_of_start(store, rank, ranks, start_seconds), store)
        timeout = timedelta(seconds=seconds)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
    except RuntimeError as problem:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ConnectionError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: expected all ranks at {address} within "
            f"{start_seconds:g} s ({_first_sentence(problem)}); start all ranks and check that they reach this address"
        ) from None


def _name_of_start(store: Store, rank: int, ranks: int, seconds: float) -> str:
    """Return a name for this start of the ranks, the same on all of them.

    The store belongs to torchrun and outlives the ranks. After a restart it still holds the old addresses, which must
    not be used. So each rank stores a random mark, reads the marks of all ranks, and stores their hash. When all ranks
    have stored the same hash, it is the name: a rank that has not restarted cannot know the new marks.
    Raises RuntimeError after `seconds`.
    """
    numbers = range(ranks)
    deadline = time.monotonic() + seconds
    store.set(f"mark of {rank}", uuid.uuid4().hex)
    while time.monotonic() < deadline:
        marks = b" ".join(store.multi_get([f"mark of {other}" for other in numbers]))
        name = hashlib.sha256(marks).hexdigest()
        store.set(f"seen by {rank}", name)
        hashes = store.multi_get([f"seen by {other}" for other in numbers])
        if all(value == name.encode() for value in hashes):
            return name
        time.sleep(0.05)
    raise RuntimeError("some ranks have not started")


def _first_sentence(problem: Exception) -> str:
    """Return the first sentence of torch's message, without the file and line in torch's sources."""
    line = str(problem).strip().partition("\n")[0]
    return re.sub(r"\[\S+\.(cc|cpp|h):\d+\] ", "", line).partition(". ")[0]


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_leader() -> bool:
    """Return True on rank 0, the only one that writes files and prints."""
    return rank() == 0


# ---- sums --------------------------------------------------------------------------------------------------------


@contextmanager
def lost_ranks_raise() -> Iterator[None]:
    """Raise ConnectionError for an error of torch that comes from a lost rank."""
    try:
        yield
    except RuntimeError as problem:  # gloo has no separate type of exception
        if not isinstance(problem, dist.DistError) and "gloo" not in str(problem):
            raise
        raise ConnectionError(
            f"rank {rank()} of {world_size()} has lost the other ranks ({_first_sentence(problem)}) and leaves without "
            "saving; resume from the last checkpoint with torchrun --max-restarts N, or start all ranks with --resume"
        ) from None


def sum_over_ranks(values: Tensor) -> Tensor:
    """Replace `values` by their sum over all ranks, bit-identical on each, and return them."""
    if world_size() > 1:
        with lost_ranks_raise():
            dist.all_reduce(values)
    return values


def any_rank(flag: bool) -> bool:
    """Return True on all ranks if `flag` is set on any rank."""
    return bool(sum_over_ranks(torch.tensor(int(flag))))


def barrier() -> None:
    """Wait for all ranks."""
    any_rank(False)


BUCKET_BYTES = 64 << 20


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace .grad of every parameter that is not frozen by its sum over the ranks. A missing gradient counts as 0."""
    if world_size() == 1:
        return
    bucket: list[Tensor] = []
    for parameter in (parameter for parameter in parameters if parameter.requires_grad):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        bucket.append(parameter.grad)
        if sum(gradient.nbytes for gradient in bucket) >= BUCKET_BYTES:
            _sum_bucket(bucket)
            bucket = []
    if bucket:
        _sum_bucket(bucket)


def _sum_bucket(gradients: list[Tensor]) -> None:
    """Sum tensors of one type over the ranks, in one message."""
    total = sum_over_ranks(torch.cat([gradient.flatten() for gradient in gradients]))
    sums = total.split([gradient.numel() for gradient in gradients])
    for gradient, values in zip(gradients, sums, strict=True):
        gradient.copy_(values.view_as(gradient))


# ---- work of the leader ------------------------------------------------------------------------------------------


@contextmanager
def leader_first() -> Iterator[None]:
    """Run the block on rank 0, then on all other ranks at once. The others wait without a time limit."""
    if world_size() == 1:
        yield
    elif is_leader():
        with _Heartbeat() as heartbeat:
            yield
        heartbeat.send(b"done")
    else:
        _wait_for_leader()
        yield


def run_on_leader(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` on rank 0 and return its result, a JSON value, on all ranks.

    Rank 0 starts when all ranks have called this function. The others wait without a time limit.
    """
    if world_size() == 1:
        return work(*args, **kwargs)
    barrier()
    if not is_leader():
        return json.loads(_wait_for_leader())
    with _Heartbeat() as heartbeat:
        result = work(*args, **kwargs)
    heartbeat.send(json.dumps(result).encode())
    return result


class _Heartbeat:
    """A thread of rank 0 that shows the other ranks that rank 0 is alive. If it stops, they time out.

    A heartbeat is a sum over ranks of 0. The sum is the length of the message once there is one.
    """

    def __enter__(self) -> "_Heartbeat":
        self.stop = threading.Event()
        self.problem: ConnectionError | None = None
        self.thread = threading.Thread(target=self._beat, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _beat(self) -> None:
        try:
            while not self.stop.wait(BEAT_SECONDS):
                sum_over_ranks(torch.tensor(0))
        except ConnectionError as problem:
            self.problem = problem

    def send(self, message: bytes) -> None:
        """Send the message that `_wait_for_leader` returns. Raises ConnectionError if a rank has been lost."""
        if self.problem is not None:
            raise self.problem
        sum_over_ranks(torch.tensor(len(message)))
        sum_over_ranks(torch.frombuffer(bytearray(message), dtype=torch.uint8))


def _wait_for_leader() -> bytes:
    """Wait until rank 0 sends a message, and return it."""
    length = 0
    while not length:
        length = int(sum_over_ranks(torch.tensor(0)))
    return bytes(sum_over_ranks(torch.zeros(length, dtype=torch.uint8)).tolist())
