"""Several ranks train like one, and a lost rank does not change the run.

Most ranks are forked (`support/ranks.py`). The slow tests at the end are the short form of `support/killing_ranks.py`.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support.killing_ranks import Hosts, Runs, cut_cable, disturb, lose_host, reference_ending, why_no_hosts
from support.ranks import (
    Fault,
    Ranks,
    join,
    lose_a_rank_during_work_of_the_leader,
    new_store,
    run_command,
    run_on_ranks,
    summed_gradients,
    sums,
    train_and_record,
    wait_for_leader,
)
from support.small_runs import AVERAGE, Texts, differences, ending
from support.toy_task import ROOT, CommandResult

from transduce.storage.checkpoints import checkpoints, step_of
from transduce.storage.run_log import reports

pytestmark = pytest.mark.xdist_group("ranks")  # one after the other: ranks must answer in time

Steps = list[list[int]]  # the pairs of each step, in the order of the batch


# Without dropout, whose masks differ between ranks. Steps 9, 18 and 27 have a report and an evaluation.
PLAIN = replace(
    AVERAGE,
    model=replace(AVERAGE.model, dropout=0.0, attention_dropout=0.0),
    train=replace(AVERAGE.train, log_every_steps=3),
)


def whole_steps(by_rank: list[list[list[list[int]]]]) -> Steps:
    """Return the pairs of all ranks and micro-batches in the order of the batch, which the ranks take in turns."""
    steps = []
    for ranks in zip(*by_rank, strict=True):
        micro_batches = [batch for turn in itertools.zip_longest(*ranks, fillvalue=[]) for batch in turn]
        turns = itertools.zip_longest(*micro_batches)
        steps.append([pair for turn in turns for pair in turn if pair is not None])
    return steps


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model" / "model.safetensors")


def assert_close(run: Path, expected: Path) -> None:
    """Check that two runs differ by rounding only, in the log and in the weights."""
    for line, other in zip(reports(run), reports(expected), strict=True):
        assert line.keys() == other.keys() and line["step"] == other["step"]
        for name in line.keys() & {"loss", "gradient_norm", "valid_loss"}:
            assert line[name] == pytest.approx(other[name], rel=1e-4)
    others = weights_of(expected)
    for name, values in weights_of(run).items():
        if not name.endswith("w_k.bias"):  # its gradient is 0 except for rounding, which Adam amplifies
            torch.testing.assert_close(values, others[name], rtol=0, atol=1e-4)


# ---- the same training -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def single(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Steps]:
    """Return a run of one rank without dropout, and the pairs of its steps."""
    folder = tmp_path_factory.mktemp("single")
    by_rank = run_on_ranks(folder / "ranks", 1, train_and_record, PLAIN, texts, folder / "run")
    return folder / "run", whole_steps(by_rank)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_ranks_train_like_one(texts: Texts, single: tuple[Path, Steps], tmp_path: Path, count: int) -> None:
    """Pairs and their order are equal; without dropout the weights differ by rounding only."""
    by_rank = run_on_ranks(tmp_path / "ranks", count, train_and_record, PLAIN, texts, tmp_path / "run")
    run, steps = single
    assert whole_steps(by_rank) == steps and len(steps) == 32
    assert_close(tmp_path / "run", run)


@pytest.mark.slow
def test_the_number_of_ranks_may_change(texts: Texts, single: tuple[Path, Steps], tmp_path: Path) -> None:
    """The resumed run has the batches of a run of one rank."""
    run, steps = tmp_path / "run", []
    for count, last in ((3, 9), (1, 27), (2, 32)):
        config = replace(PLAIN, train=replace(PLAIN.train, max_steps=last))
        may_change = ["train.max_steps"]
        by_rank = run_on_ranks(
            tmp_path / f"{count}", count, train_and_record, config, texts, run, allow_change=may_change
        )
        steps += whole_steps(by_rank)
    assert steps == single[1]
    assert_close(run, single[0])


def test_a_rank_without_pairs_does_not_block_the_others(texts: Texts, tmp_path: Path) -> None:
    """If a batch has few pairs, the last of four ranks have none."""
    few = replace(PLAIN, data=replace(PLAIN.data, batch_tokens=PLAIN.data.max_tokens))
    by_count = {
        n: run_on_ranks(tmp_path / f"{n}", n, train_and_record, few, texts, tmp_path / f"run{n}") for n in (1, 4)
    }
    assert [[] in steps for steps in by_count[4]] == [False, True, True, True]
    assert whole_steps(by_count[4]) == whole_steps(by_count[1])
    assert_close(tmp_path / "run4", tmp_path / "run1")


# ---- numbers that are not finite ---------------------------------------------------------------------------------


def test_a_number_that_is_not_finite_on_one_rank_skips_the_step_on_all(texts: Texts, tmp_path: Path) -> None:
    """Test each rank. The log has the lines of the whole batch."""
    for victim in (0, 1):
        run, faults = tmp_path / f"run{victim}", [Fault(victim, step, "nan") for step in (4, 5, 20)]
        by_rank = run_on_ranks(tmp_path / f"{victim}", 2, train_and_record, AVERAGE, texts, run, faults)
        skips = [line for line in reports(run) if "skipped" in line]
        assert [line["step"] for line in skips] == [4, 5, 20]
        for line in skips:
            pairs = whole_steps(by_rank)[line["step"] - 1]
            assert all(str(pair + 1) in line["lines"] for pair in pairs)
    assert differences(ending(tmp_path / "run0"), ending(tmp_path / "run1")) == []


# ---- lost ranks --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed_run(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of three ranks with dropout."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_on_ranks(folder / "ranks", 3, train_and_record, AVERAGE, texts, folder / "run")
    return folder / "run"


@pytest.mark.parametrize("victim", [0, *(pytest.param(rank, marks=pytest.mark.slow) for rank in (1, 2))])
def test_a_killed_rank_changes_nothing(texts: Texts, undisturbed_run: Path, tmp_path: Path, victim: int) -> None:
    """The other ranks exit without saving. All restart through the same store, and the weights are bit-identical."""
    store, run = new_store(), tmp_path / "run"
    faults = [Fault(victim, 21, "kill")]
    outcomes = Ranks(tmp_path / "killed", store, 3, train_and_record, AVERAGE, texts, run, faults).outcomes()
    for rank, end in enumerate(outcomes):
        assert end.code == (-signal.SIGKILL if rank == victim else 1)
        assert rank == victim or f"ConnectionError: rank {rank} of 3 has lost the other ranks (" in end.output
    assert step_of(checkpoints(run)[-1]) == 18
    second = Ranks(tmp_path / "again", store, 3, train_and_record, AVERAGE, texts, run).outcomes()
    assert [rank.code for rank in second] == [0, 0, 0], second
    assert differences(ending(run), ending(undisturbed_run)) == []


@pytest.mark.slow
def test_the_wait_for_a_stopped_rank_ends_with_the_timeout(texts: Texts, tmp_path: Path) -> None:
    """The command ends with exit code 3 and one line."""
    program = "from support.small_runs import AVERAGE\nrecipe = lambda: AVERAGE\n"
    (tmp_path / "recipe.py").write_text(program, encoding="utf-8")
    command = ["train", "--recipe", f"{tmp_path / 'recipe.py'}:recipe", "--out", str(tmp_path / "run")]
    command += ["--train", *map(str, texts["train"]), "--valid", *map(str, texts["valid"]), "--rank-timeout", "5"]
    started_at = time.monotonic()
    ranks = Ranks(tmp_path / "ranks", new_store(), 2, run_command, command, [Fault(1, 21, "stop")])
    first, _ = ranks.outcomes()
    assert time.monotonic() - started_at > 5
    *_, last = first.output.splitlines()
    assert first.code == 3, first.output
    assert last.startswith("transduce: rank 0 of 2 has lost the other ranks (Timed out ")
    assert last.endswith("or start all ranks with --resume")
    assert step_of(checkpoints(tmp_path / "run")[-1]) == 18


def test_the_other_ranks_leave_when_the_leader_dies_at_work(tmp_path: Path) -> None:
    """The other ranks wait as long as the leader sends heartbeats."""
    outcomes = Ranks(tmp_path, new_store(), 3, wait_for_leader, 2.0, dies=True).outcomes()
    assert [rank.code for rank in outcomes] == [-signal.SIGKILL, 1, 1]
    assert all("has lost the other ranks (" in rank.output for rank in outcomes[1:])


def test_the_leader_detects_a_rank_that_died_during_its_work(tmp_path: Path) -> None:
    outcomes = Ranks(tmp_path, new_store(), 3, lose_a_rank_during_work_of_the_leader).outcomes()
    assert [rank.code for rank in outcomes] == [1, 1, -signal.SIGKILL]
    assert "rank 0 of 3 has lost the other ranks (" in outcomes[0].output


# ---- sums, and work of the leader --------------------------------------------------------------------------------


def test_sums_over_ranks(tmp_path: Path) -> None:
    assert run_on_ranks(tmp_path / "3", 3, sums) == [[[3.0, 3.0], True, False, {"of": 0}]] * 3
    assert run_on_ranks(tmp_path / "1", 1, sums) == [[[0.0, 1.0], True, False, {"of": 0}]]


def test_gradients_are_summed_with_any_bucket_size(tmp_path: Path) -> None:
    """A missing gradient counts as 0."""
    assert run_on_ranks(tmp_path, 3, summed_gradients) == [[[[6.0] * 4, [30.0] * 3, [600.0]]] * 3] * 3


@pytest.mark.slow
def test_the_other_ranks_wait_for_the_leader_longer_than_the_timeout(tmp_path: Path) -> None:
    assert run_on_ranks(tmp_path, 3, wait_for_leader, 6.5) == ["message"] * 3


THREADS_AFTER_THE_GROUP = """
import os, torch
from transduce.training import distributed
with distributed.process_group():
    torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
print([open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")])
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_no_thread_of_the_process_group_outlives_it() -> None:
    """Such a thread aborts the process if it ends after Python."""
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    environment = {**os.environ, **rank, "PYTHONPATH": str(ROOT / "src")}
    names = subprocess.check_output([sys.executable, "-c", THREADS_AFTER_THE_GROUP], env=environment, text=True)
    assert "gloo" not in names and "python" in names


# ---- the process group -------------------------------------------------------------------------------------------


def test_the_wait_for_missing_ranks_ends_with_the_timeout(tmp_path: Path) -> None:
    first, _ = Ranks(tmp_path, new_store(), 2, join, 1.0, absent=1).outcomes()
    assert first.code == 1
    assert "ConnectionError: rank 0 of 2: expected all ranks at 127.0.0.1:" in first.output


@pytest.mark.parametrize("seconds", ["0", "4.9", "86401", "nan", "-1"])
def test_a_timeout_out_of_bounds_is_refused(cli: Callable[..., CommandResult], seconds: str) -> None:
    result = cli(*TRAIN, "--rank-timeout", seconds)
    assert result.code == 2 and "expected 5 to 86,400 seconds" in result.err


def test_a_timeout_without_torchrun_is_refused(cli: Callable[..., CommandResult]) -> None:
    result = cli(*TRAIN, "--rank-timeout", "60")
    message = "--rank-timeout=60: expected several ranks, started by torchrun; leave it out"
    assert result.code == 2 and message in result.err


TRAIN = "train --recipe mixture --train a.en a.de --valid b.en b.de --out run".split()


# ---- under torchrun ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with Runs(tmp_path_factory.mktemp("runs")) as runs:
        yield runs


@pytest.fixture(scope="module")
def expected(runs: Runs) -> dict[str, Any]:
    """Return the ending of an undisturbed run of two ranks."""
    return reference_ending(runs, 2)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if reason := why_no_hosts():
        pytest.skip(reason)
    with Hosts() as hosts:
        yield hosts


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "by"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_torchrun_resumes_without_a_difference(
    runs: Runs, expected: dict[str, Any], victim: int, by: signal.Signals
) -> None:
    """One of two ranks is killed or stopped: the other leaves, and the run ends with the same files."""
    disturb(runs, expected, 2, victim, by, step=40)


@pytest.mark.slow
def test_a_disconnected_host_changes_nothing(runs: Runs, expected: dict[str, Any], hosts: Hosts) -> None:
    cut_cable(runs, hosts, expected, step=40)


@pytest.mark.slow
def test_a_lost_host_changes_nothing(runs: Runs, expected: dict[str, Any], hosts: Hosts) -> None:
    lose_host(runs, hosts, expected, 1, step=40)
