"""Ranks as torchrun starts them, but forked from a server that has imported torch once: in half a second, not in eight.

The functions below are what ranks do in tests. They are here, and not beside the tests, for a rank to need no pytest.
"""

import json
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from killing import IMPORTED_LATE, Texts
from torch import Tensor
from torch.distributed import TCPStore

from transduce import distributed, gradients
from transduce.batches import Batch
from transduce.config import Config
from transduce.gradients import Gradient, Gradients
from transduce.train import train

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
    """So many processes, each of which does `work(*args)`. What it returns must be a JSON value."""

    def __init__(self, folder: Path, store: TCPStore, count: int, work: Callable[..., Any], *args: Any) -> None:
        self.folder, self.store = folder, store
        folder.mkdir(parents=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["transduce.train", *IMPORTED_LATE])
        self.processes = []
        for rank in range(count):
            given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "TORCHELASTIC_USE_AGENT_STORE": "True"}
            given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
            environment = {name: str(value) for name, value in given.items()}
            process = context.Process(target=_live, args=(environment, folder / str(rank), work, args))
            process.start()
            self.processes.append(process)

    def ended(self, *, seconds: float = 60) -> list[Ended]:
        """Wait for all. One that has not ended by then is killed, as is one that was stopped."""
        until = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
            process.kill()
            process.join()
        return [self._ended(rank) for rank in range(len(self.processes))]

    def _ended(self, rank: int) -> Ended:
        code, returned = self.processes[rank].exitcode, self.folder / f"{rank}.returned"
        assert code is not None
        value = json.loads(returned.read_bytes()) if returned.exists() else None
        return Ended(code, value, (self.folder / f"{rank}.said").read_text("utf-8"))


def everywhere(folder: Path, count: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work` returns on each of so many ranks, all of which must come to an end."""
    ended = Ranks(folder, new_store(), count, work, *args).ended()
    assert [one.code for one in ended] == [0] * count, "\n".join(one.said for one in ended)
    return [one.returned for one in ended]


def _live(environment: dict[str, str], place: Path, work: Callable[..., Any], args: Sequence[Any]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    with place.with_suffix(".said").open("w", encoding="utf-8", buffering=1) as sys.stderr:
        try:
            place.with_suffix(".returned").write_text(json.dumps(work(*args)), encoding="utf-8")
        except Exception:
            traceback.print_exc()
            os._exit(1)  # at once, as `destroy_process_group` may wait for ranks that are gone


# ---- training ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mishap:
    """What happens to one rank when it comes to a step, counted from 1 in this life of it: in the middle, so to say."""

    rank: int
    step: int
    what: Literal["nan", "kill", "stop"]


def train_watched(
    config: Config, texts: Texts, out: Path, more: Mapping[str, Any] | None = None, *mishaps: Mishap
) -> list[list[list[int]]]:
    """Begin the run in `out` or go on with it. Returns the pairs of each micro-batch of each step of this rank.

    more: further arguments of `train`.
    """
    seen: list[list[list[int]]] = []
    gradient_of, batch_loss = Gradients.of, gradients.batch_loss

    def watched(self: Gradients, micro_batches: Sequence[Batch], *, seed: int) -> Gradient:
        seen.append([batch.pairs.tolist() for batch in micro_batches])
        for mishap in mishaps:
            if (mishap.rank, mishap.step) == (distributed.rank(), len(seen)):
                _befall(mishap.what)
        gradient = gradient_of(self, micro_batches, seed=seed)
        gradients.batch_loss = batch_loss
        return gradient

    def _befall(what: str) -> None:
        if what == "nan":
            gradients.batch_loss = _not_a_number
        else:
            os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)

    def _not_a_number(*given: Any) -> Tensor:
        return batch_loss(*given) * math.nan

    Gradients.of = watched
    train(config, train=texts["train"], valid=texts["valid"], out=out, resume=True, **(more or {}))
    return seen
