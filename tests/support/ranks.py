"""Ranks as torchrun starts them, but forked from a server that has imported torch once: in half a second, not in eight.

The functions below are what ranks do in tests. They are here, and not beside the tests, for a rank to need no pytest.
"""

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
from torch import Tensor
from torch.distributed import TCPStore

from support.killing import IMPORTED_LATE
from support.small_runs import Texts
from support.trainings import train
from transduce.cli.main import main
from transduce.config.schema import Config, ModelConfig, TrainConfig
from transduce.data.batches import Batch, collate
from transduce.model.transformer import Transformer
from transduce.train import TranslationTask
from transduce.training import distributed, sharding, state
from transduce.training.gradients import Gradient, Gradients

# ---- ranks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code, or the signal it died of, negative; what its work returned; what it said."""

    code: int
    returned: Any
    said: str


def new_store() -> TCPStore:
    """Through which ranks find each other: torchrun has one as long as it lives, for ranks it starts again, too."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Ranks:
    """So many processes, each of which does `work(*args, **more)`. What it returns must be a JSON value."""

    def __init__(
        self, folder: Path, store: TCPStore, count: int, work: Callable[..., Any], *args: Any, **more: Any
    ) -> None:
        self.folder, self.store = folder, store
        folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["transduce.train", *IMPORTED_LATE, "torch.distributed.fsdp"])
        self.processes = []
        for rank in range(count):
            given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "TORCHELASTIC_USE_AGENT_STORE": "True"}
            given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
            environment = {name: str(value) for name, value in given.items()}
            process = context.Process(target=_live, args=(environment, folder / str(rank), work, args, more))
            process.start()
            self.processes.append(process)

    def ended(self, *, seconds: float = 90) -> list[Ended]:
        """Wait for all but those that are stopped. What is still there then is killed."""
        until = time.monotonic() + seconds
        while any(map(_is_running, self.processes)) and time.monotonic() < until:
            time.sleep(0.005)
        for process in self.processes:
            process.kill()
            process.join()
        return [self._ended(rank) for rank in range(len(self.processes))]

    def _ended(self, rank: int) -> Ended:
        code, returned = self.processes[rank].exitcode, self.folder / f"{rank}.returned"
        assert code is not None
        value = json.loads(returned.read_bytes()) if returned.exists() else None
        return Ended(code, value, (self.folder / f"{rank}.said").read_text("utf-8"))


def _is_running(process: BaseProcess) -> bool:
    with suppress(OSError):  # it has ended meanwhile
        return process.is_alive() and "T (stopped)" not in Path(f"/proc/{process.pid}/status").read_text()
    return False


def everywhere(folder: Path, count: int, work: Callable[..., Any], *args: Any, **more: Any) -> list[Any]:
    """What `work` returns on each of so many ranks, all of which must come to an end."""
    ended = Ranks(folder, new_store(), count, work, *args, **more).ended()
    assert [one.code for one in ended] == [0] * count, "\n".join(one.said for one in ended)
    return [one.returned for one in ended]


def _live(
    environment: dict[str, str], place: Path, work: Callable[..., Any], args: Sequence[Any], more: Mapping[str, Any]
) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    with place.with_suffix(".said").open("w", encoding="utf-8", buffering=1) as sys.stderr:
        try:
            place.with_suffix(".returned").write_text(json.dumps(work(*args, **more)), encoding="utf-8")
        except SystemExit as ended:
            os._exit(ended.code if isinstance(ended.code, int) else 1)
        except Exception:
            traceback.print_exc()
            os._exit(1)


# ---- training ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mishap:
    """What happens to one rank when it comes to a step, counted from 1 in this life of it: in the middle, so to say."""

    rank: int
    step: int
    what: Literal["nan", "memory", "kill", "stop"]


def watched(mishaps: Sequence[Mishap]) -> list[list[list[int]]]:
    """From now on, the pairs of each micro-batch of each step of this rank."""
    seen: list[list[list[int]]] = []
    gradient_of, loss = Gradients.of, TranslationTask.loss

    def of(self: Gradients, micro_batches: Sequence[Batch], *, seed: int) -> Gradient:
        seen.append([batch.pairs.tolist() for batch in micro_batches])
        for mishap in mishaps:
            if (mishap.rank, mishap.step) == (distributed.rank(), len(seen)):
                befall(mishap.what)
        gradient = gradient_of(self, micro_batches, seed=seed)
        TranslationTask.loss = staticmethod(loss)
        return gradient

    def befall(what: str) -> None:
        if what == "nan":
            TranslationTask.loss = staticmethod(not_a_number)
        elif what == "memory":
            TranslationTask.loss = staticmethod(no_memory)
        else:
            os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)

    def not_a_number(*given: Any) -> Tensor:
        return loss(*given) * math.nan

    def no_memory(*_: Any) -> Tensor:
        raise MemoryError

    Gradients.of = of
    return seen


def train_watched(config: Config, texts: Texts, out: Path, mishaps: Sequence[Mishap] = (), **more: Any) -> list[Any]:
    """Begin the run in `out` or go on with it, and return what is `watched`. more: further arguments of `train`."""
    seen = watched(mishaps)
    train(config, train=texts["train"], valid=texts["valid"], out=out, resume=True, **more)
    return seen


def run_command(words: Sequence[str], mishaps: Sequence[Mishap] = ()) -> None:
    """`transduce WORDS`, as this rank."""
    watched(mishaps)
    sys.argv = ["transduce", *words]
    main()


# ---- sums, and what the first does alone -------------------------------------------------------------------------


def sums() -> list[Any]:
    """What ranks make of their own numbers, r for rank r."""
    with distributed.process_group():
        mine = torch.tensor([float(distributed.rank()), 1.0])
        is_last = distributed.rank() == distributed.world_size() - 1
        found = [distributed.sum_over_ranks(mine).tolist(), distributed.any_rank(is_last), distributed.any_rank(False)]
        found.append(distributed.run_on_leader(lambda number: {"of": number}, distributed.rank()))
        return found


def summed_gradients() -> list[list[list[float]]]:
    """Of three parameters, with buckets of three sizes. Only the last rank has a gradient of the second parameter."""
    found = []
    with distributed.process_group():
        for distributed.BUCKET_BYTES in (1, 16, 1 << 20):
            parameters = [torch.nn.Parameter(torch.zeros(size)) for size in ((2, 2), (3,), (1,))]
            for number, parameter in enumerate(parameters):
                if number != 1 or distributed.rank() == distributed.world_size() - 1:
                    parameter.grad = torch.full_like(parameter, 10.0**number * (1 + distributed.rank()))
            distributed.sum_gradients(parameters)
            found.append([parameter.grad.flatten().tolist() for parameter in parameters if parameter.grad is not None])
    return found


def others_wait(seconds: float, *, dies: bool = False) -> str:
    """The first rank is at work for so long, and perhaps dies of it; the others wait 5 seconds for a sign of life."""
    with distributed.process_group(5):
        with distributed.leader_first():
            if distributed.is_leader():
                time.sleep(seconds)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
        return distributed.run_on_leader(str, "told")


def die_meanwhile() -> None:
    """The last rank dies while the first is at work on its own."""
    with distributed.process_group():
        if distributed.rank() == distributed.world_size() - 1:
            distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.run_on_leader(time.sleep, 3 * distributed.BEAT_SECONDS)


def join(patience: float, *, absent: int) -> None:
    """All but one join, and do not wait for long."""
    distributed.TIMEOUT_SECONDS = patience
    if int(os.environ["RANK"]) != absent:
        with distributed.process_group():
            pass


# ---- a model in shards -------------------------------------------------------------------------------------------

TINY = ModelConfig(vocab_size=41, d_model=18, n_layers=2, n_heads=2, d_ff=35, dropout=0.0)  # no side is even on 3 ranks


def tiny_pairs() -> list[list[np.ndarray]]:
    """Both sides of nine pairs of different lengths."""
    rng = np.random.default_rng(1)
    return [[rng.integers(4, 41, rng.integers(1, 12)) for _ in range(9)] for _ in range(2)]


def tiny_model(config: ModelConfig, dtype: torch.dtype) -> Transformer:
    torch.manual_seed(1)
    return Transformer(config).to(dtype)


@distributed.process_group()
def gradient_in_shards(config: ModelConfig, dtype: torch.dtype, hands: list[list[list[int]]]) -> dict[str, Any]:
    """Loss, norm and gradient when rank r has the micro-batches hands[r] of pairs, and what it has of the parameters.

    Two steps are made, and the second is told: nothing may be left of the first.
    """
    model, (src, tgt) = tiny_model(config, dtype), tiny_pairs()
    sharding.shard(model)
    micro_batches = [collate([src[i] for i in hand], [tgt[i] for i in hand]) for hand in hands[distributed.rank()]]
    settings = TrainConfig(label_smoothing=0.1, accumulate=max(map(len, hands)))
    of = Gradients(model, TranslationTask(), settings, torch.device("cpu"), lambda lines: None).of
    found = [of(micro_batches, seed=1) for _ in range(2)][-1]
    taken = {name: sharding.full_tensor(p.grad).tolist() for name, p in model.named_parameters() if p.grad is not None}
    here = sum(cast(Any, p).to_local().numel() for p in model.parameters())
    return {"loss": found.loss, "norm": found.norm, "gradient": taken, "here": here}


def train_weighed(config: Config, texts: Texts, out: Path, **more: Any) -> int:
    """Train; the most bytes that all tensors of this rank have after an update, in a step after a checkpoint."""
    update, most = state.update, 0

    def weighed(optimizer: torch.optim.Adam, count: int) -> None:
        nonlocal most
        update(optimizer, count)
        if count % config.train.checkpoint_every_steps == 1:
            most = max(most, _bytes_of_tensors())

    state.update = weighed
    train(config, train=texts["train"], valid=texts["valid"], out=out, **more)
    return most


def _bytes_of_tensors() -> int:
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    here = [cast(Any, one).to_local() if sharding.is_sharded(one) else one for one in tensors]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in here}
    return sum(storages.values())
