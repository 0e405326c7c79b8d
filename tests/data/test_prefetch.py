"""The batches of the next step, prepared in a thread: the same ones, one step ahead, with the errors of the stream."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from transduce.config.schema import DataConfig
from transduce.data.batches import Batches, DataPosition, collate
from transduce.data.prefetch import Prefetch, Step
from transduce.data.token_file import DamagedTokenFile
from transduce.data.token_store import TokenStore
from transduce.data.tokenizer import Tokenizer

CPU = torch.device("cpu")
GPU = torch.device("mps")  # no GPU is touched


def take(stream: Iterator[Step], count: int, device: torch.device) -> Iterator[Step]:
    """Yield steps as the loop of a training takes them."""
    prefetch = Prefetch(stream, device)
    for _ in range(count):
        yield prefetch.take()
        prefetch.start()


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_steps_are_those_of_the_stream(
    store: TokenStore, tokenizer: Tokenizer, dropout: float, device: torch.device
) -> None:
    """From the middle of an epoch to the next epoch, and from each position on the way."""
    config = DataConfig(batch_tokens=400, max_tokens=60, bpe_dropout=dropout)
    batches = Batches(store, tokenizer, config, seed=3)
    start = DataPosition(0, len(batches.plan(0)) - 3)
    steps = [*islice(Batches(store, tokenizer, config, seed=3).stream(start), 6)]
    assert steps[-1][1].epoch == 1
    for first in (0, 2, 5):
        position = steps[first - 1][1] if first else start
        ours_and_after = take(batches.stream(position), 6 - first, device)
        for (ours, after), (theirs, expected) in zip(ours_and_after, steps[first:], strict=True):
            assert after == expected
            assert [batch.pairs.tolist() for batch in ours] == [batch.pairs.tolist() for batch in theirs]
            assert torch.equal(ours[0].src, theirs[0].src) and torch.equal(ours[0].tgt_out, theirs[0].tgt_out)


def numbered_steps(made: list[int]) -> Iterator[Step]:
    batch = collate([np.array([5])], [np.array([6])])
    for i in range(10):
        made.append(threading.get_ident())
        yield [batch], DataPosition(0, i)


def test_only_the_step_that_was_started_is_prepared() -> None:
    made: list[int] = []
    prefetch = Prefetch(numbered_steps(made), GPU)
    for i in range(3):
        assert prefetch.take()[1].index == i
        time.sleep(0.01)
        assert len(made) == i + 1
        prefetch.start()
    prefetch.take()
    assert {*made} == {made[0]} and made[0] != threading.get_ident()


def test_a_problem_of_the_stream_is_raised_where_the_step_is_taken() -> None:
    def stream() -> Iterator[Step]:
        yield from islice(numbered_steps([]), 1)
        raise DamagedTokenFile(Path("no-such-file"), "block 3")

    prefetch = Prefetch(stream(), GPU)
    assert prefetch.take()[1].index == 0
    prefetch.start()
    with pytest.raises(DamagedTokenFile, match="block 3"):
        prefetch.take()


def test_ctrl_c_interrupts_the_wait_for_a_step() -> None:
    is_over = threading.Event()
    waits: list[bool] = []

    def stream() -> Iterator[Step]:
        waits.append(is_over.wait(20))
        yield from numbered_steps([])

    prefetch = Prefetch(stream(), GPU)
    threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        prefetch.take()
    is_over.set()
    prefetch.take()
    assert waits == [True], "the interrupt came before the end of the wait"


PROGRAM = """
import time, torch
from transduce.data.prefetch import Prefetch
def stream():
    while True:
        time.sleep(0.2)
        yield [], None
prefetch = Prefetch(stream(), torch.device("mps"))
prefetch.take()
prefetch.start()
raise SystemExit(7)
"""


def test_a_program_ends_while_a_step_is_prepared() -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM], timeout=60).returncode == 7
