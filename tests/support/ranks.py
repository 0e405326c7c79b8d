"""Ranks as torchrun starts them, but forked from a server that has imported torch: in 0.5 s instead of 8 s.

The functions that ranks run in tests are in this file and not in the tests, so that a rank does not import pytest.
"""

import faulthandler
import gc
import json
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore

from support.attention_inputs import random_inputs
from support.killing import LATE_IMPORTS
from support.small_runs import Texts, train_on
from transduce.cli.main import main
from transduce.config.schema import Config, ModelConfig, TrainConfig
from transduce.data.batches import Batch, collate
from transduce.family.online_softmax import attention_part, merge
from transduce.model.transformer import Transformer
from transduce.storage.checkpoints import CheckpointWriter
from transduce.train import TranslationTask
from transduce.training import distributed, sharding, state
from transduce.training.gradients import Gradient, Gradients
from transduce.training.state import Checkpoint

# ---- ranks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The end of a rank.

    code: its exit code, or the negative number of a signal. result: the JSON value that its work returned; None if it
    failed. output: its stderr.
    """

    code: int
    result: Any
    output: str


def new_store() -> TCPStore:
    """Return a store for the rendezvous, which outlives the ranks as torchrun's store does."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Ranks:
    """Starts `count` processes that run `work(*args, **kwargs)`, which returns a JSON value."""

    def __init__(
        self, folder: Path, store: TCPStore, count: int, work: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> None:
        self.folder, self.store = folder, store
        folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["transduce.train", *LATE_IMPORTS, "torch.distributed.fsdp"])
        self.processes = []
        for rank in range(count):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "TORCHELASTIC_USE_AGENT_STORE": "True"}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
            environment = {name: str(value) for name, value in variables.items()}
            process = context.Process(target=_run_rank, args=(environment, folder / str(rank), work, args, kwargs))
            process.start()
            self.processes.append(process)

    def outcomes(self, *, seconds: float = 90) -> list[Outcome]:
        """Wait until all ranks have ended or are stopped by SIGSTOP, then kill the remaining ones."""
        deadline = time.monotonic() + seconds
        while any(map(_is_running, self.processes)) and time.monotonic() < deadline:
            time.sleep(0.005)
        for process in self.processes:
            process.kill()
            process.join()
        return [self._outcome(rank) for rank in range(len(self.processes))]

    def _outcome(self, rank: int) -> Outcome:
        code, file = self.processes[rank].exitcode, self.folder / f"{rank}.result"
        assert code is not None
        result = json.loads(file.read_bytes()) if file.exists() else None
        return Outcome(code, result, (self.folder / f"{rank}.output").read_text("utf-8"))


def _is_running(process: BaseProcess) -> bool:
    with suppress(OSError):  # the process has ended
        return process.is_alive() and "T (stopped)" not in Path(f"/proc/{process.pid}/status").read_text()
    return False


def run_on_ranks(folder: Path, count: int, work: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Run `work` on `count` ranks and return their results. Fails unless all exit codes are 0."""
    outcomes = Ranks(folder, new_store(), count, work, *args, **kwargs).outcomes()
    assert [rank.code for rank in outcomes] == [0] * count, "\n".join(rank.output for rank in outcomes)
    return [rank.result for rank in outcomes]


def _run_rank(
    environment: dict[str, str], path: Path, work: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Run `work` in a new process, and write the files PATH.output and PATH.result."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    with path.with_suffix(".output").open("w", encoding="utf-8", buffering=1) as sys.stderr:
        faulthandler.enable(sys.stderr)  # a rank that a signal ends leaves the traceback of its threads
        try:
            path.with_suffix(".result").write_text(json.dumps(work(*args, **kwargs)), encoding="utf-8")
        except SystemExit as problem:
            os._exit(problem.code if isinstance(problem.code, int) else 1)
        except Exception:
            traceback.print_exc()
            os._exit(1)


# ---- training ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault of one rank in a step, counted from 1 in this process.

    - nan: the loss is NaN
    - memory: the loss raises MemoryError
    - kill, stop: SIGKILL, SIGSTOP
    """

    rank: int
    step: int
    kind: Literal["nan", "memory", "kill", "stop"]


def record_steps(faults: Sequence[Fault]) -> list[list[list[int]]]:
    """Return a list to which each later step of this rank adds the pairs of its micro-batches. Causes `faults`."""
    steps: list[list[list[int]]] = []
    gradient_of, loss = Gradients.of, TranslationTask.loss

    def of(self: Gradients, micro_batches: Sequence[Batch], *, seed: int) -> Gradient:
        steps.append([batch.pairs.tolist() for batch in micro_batches])
        for fault in faults:
            if (fault.rank, fault.step) == (distributed.rank(), len(steps)):
                cause(fault.kind)
        gradient = gradient_of(self, micro_batches, seed=seed)
        TranslationTask.loss = staticmethod(loss)
        return gradient

    def cause(kind: str) -> None:
        if kind == "nan":
            TranslationTask.loss = staticmethod(not_a_number)
        elif kind == "memory":
            TranslationTask.loss = staticmethod(no_memory)
        else:
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)

    def not_a_number(*args: Any) -> Tensor:
        return loss(*args) * math.nan

    def no_memory(*_: Any) -> Tensor:
        raise MemoryError

    Gradients.of = of
    return steps


def train_and_record(
    config: Config, texts: Texts, out: Path, faults: Sequence[Fault] = (), **request: Any
) -> list[Any]:
    """Start or resume the run in `out`, and return the steps of `record_steps`. request: as in `trainings.train`."""
    steps = record_steps(faults)
    train_on(texts, out, config, resume=True, **request)
    return steps


def run_command(words: Sequence[str], faults: Sequence[Fault] = ()) -> None:
    """Run the command `transduce WORDS` on this rank."""
    record_steps(faults)
    sys.argv = ["transduce", *words]
    main()


# ---- sums, and work of the leader --------------------------------------------------------------------------------


def sums() -> list[Any]:
    """Return sums, flags and the leader's result, where rank r contributes the number r."""
    with distributed.process_group():
        values = torch.tensor([float(distributed.rank()), 1.0])
        is_last = distributed.rank() == distributed.world_size() - 1
        flags = [distributed.any_rank(is_last), distributed.any_rank(False)]
        result = distributed.run_on_leader(lambda number: {"of": number}, distributed.rank())
        return [distributed.sum_over_ranks(values).tolist(), *flags, result]


def summed_gradients() -> list[list[list[float]]]:
    """Return the summed gradients of three parameters for three bucket sizes.

    Only the last rank has a gradient of the second parameter.
    """
    sums = []
    with distributed.process_group():
        for distributed.BUCKET_BYTES in (1, 16, 1 << 20):
            parameters = [torch.nn.Parameter(torch.zeros(size)) for size in ((2, 2), (3,), (1,))]
            for number, parameter in enumerate(parameters):
                if number != 1 or distributed.rank() == distributed.world_size() - 1:
                    parameter.grad = torch.full_like(parameter, 10.0**number * (1 + distributed.rank()))
            distributed.sum_gradients(parameters)
            sums.append([parameter.grad.flatten().tolist() for parameter in parameters if parameter.grad is not None])
    return sums


def ring_attention(n: int) -> list[Any]:
    """Return this rank's rows of attention over n positions, causal and not. Each rank has the same number of them.

    Keys and values go around the ring, from each rank to the next, until each rank has had them all.
    """
    everything = torch.ones(1, 1, dtype=torch.bool)
    with distributed.process_group():
        rank, size = distributed.rank(), distributed.world_size()
        queries, *part = (x.chunk(size, dim=2)[rank].contiguous() for x in random_inputs(n))
        outputs = [attention_part(queries, *part, mask) for mask in ("causal", everything)]
        for distance in range(1, size):
            sends = [dist.isend(x, (rank + 1) % size) for x in part]
            received = [torch.empty_like(x) for x in part]
            for x, send in zip(received, sends, strict=True):
                dist.recv(x, (rank - 1) % size)
                assert send is not None
                send.wait()
            part = received
            of_part = attention_part(queries, *part, everything)
            for i, is_visible in enumerate((distance <= rank, True)):  # the part belongs to rank - distance
                if is_visible:
                    outputs[i] = merge(outputs[i], of_part)
    return [output.tolist() for output, _ in outputs]


def wait_for_leader(seconds: float, *, dies: bool = False) -> str:
    """Let rank 0 work for `seconds`, then kill it if `dies` is set. The timeout of the other ranks is 5 s."""
    with distributed.process_group(5):
        with distributed.leader_first():
            if distributed.is_leader():
                time.sleep(seconds)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
        return distributed.run_on_leader(str, "message")


def lose_a_rank_during_work_of_the_leader() -> None:
    """Kill the last rank while only rank 0 works."""
    with distributed.process_group():
        if distributed.rank() == distributed.world_size() - 1:
            distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.run_on_leader(time.sleep, 3 * distributed.BEAT_SECONDS)


def join(timeout_seconds: float, *, absent: int) -> None:
    """Join the process group on all ranks but one."""
    distributed.TIMEOUT_SECONDS = timeout_seconds
    if int(os.environ["RANK"]) != absent:
        with distributed.process_group():
            pass


# ---- a model in shards -------------------------------------------------------------------------------------------

# No size of a matrix is divisible by 3, and the stacks have other depths.
TINY = ModelConfig(vocab_size=41, d_model=18, n_layers=2, n_decoder_layers=1, n_heads=2, d_ff=35, dropout=0.0)


def tiny_pairs() -> list[list[np.ndarray]]:
    """Return sources and targets of nine pairs of different lengths."""
    rng = np.random.default_rng(1)
    return [[rng.integers(4, 41, rng.integers(1, 12)) for _ in range(9)] for _ in range(2)]


def tiny_model(config: ModelConfig, dtype: torch.dtype) -> Transformer:
    torch.manual_seed(1)
    return Transformer(config).to(dtype)


@distributed.process_group()
def gradient_in_shards(config: ModelConfig, dtype: torch.dtype, indices: list[list[list[int]]]) -> dict[str, Any]:
    """Return loss, norm and gradient of a sharded model, and the number of parameters on this rank.

    indices: the pairs of each micro-batch of each rank. Two steps are computed and the second is returned, which must
    not depend on the first.
    """
    model, (src, tgt) = tiny_model(config, dtype), tiny_pairs()
    sharding.shard(model)
    micro_batches = [collate([src[i] for i in batch], [tgt[i] for i in batch]) for batch in indices[distributed.rank()]]
    settings = TrainConfig(label_smoothing=0.1, accumulate=max(map(len, indices)))
    of = Gradients(model, TranslationTask(), settings, torch.device("cpu"), lambda lines: None).of
    gradient = [of(micro_batches, seed=1) for _ in range(2)][-1]
    gradients = {
        name: sharding.full_tensor(p.grad).tolist() for name, p in model.named_parameters() if p.grad is not None
    }
    size = sum(cast(Any, p).to_local().numel() for p in model.parameters())
    return {"loss": gradient.loss, "norm": gradient.norm, "gradient": gradients, "size": size}


def train_and_measure(config: Config, texts: Texts, out: Path, **request: Any) -> int:
    """Train, and return the peak bytes of all tensors of this rank after an update, in steps after a checkpoint.

    Each checkpoint, of which the writer holds a copy, is written before the next step.
    """
    update, save, most = state.update, CheckpointWriter.save, 0

    def save_and_wait(self: CheckpointWriter, step: int, snapshot: Callable[[], Checkpoint]) -> None:
        save(self, step, snapshot)
        self.wait()

    def measure(optimizer: torch.optim.Adam, count: int) -> None:
        nonlocal most
        update(optimizer, count)
        if count % config.train.checkpoint_every_steps == 1:
            most = max(most, _bytes_of_tensors())

    state.update = measure
    CheckpointWriter.save = save_and_wait
    train_on(texts, out, config, **request)
    return most


def _bytes_of_tensors() -> int:
    gc.collect()  # when Python does it by itself depends on all that ran before
    tensors = [value for value in gc.get_objects() if issubclass(type(value), Tensor)]
    local = [cast(Any, values).to_local() if sharding.is_sharded(values) else values for values in tensors]
    storages = {values.untyped_storage().data_ptr(): values.untyped_storage().nbytes() for values in local}
    return sum(storages.values())
