"""Many ranks: the same training as one alone, and one that a lost rank does not change.

Most ranks here are forked (`ranks.py`). The slow tests at the end are the short form of `killing_ranks.py`.
"""

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support.killing_ranks import Hosts, Runs, cut_off, disturbed, host_lost, undisturbed, why_no_hosts
from support.ranks import (
    Mishap,
    Ranks,
    die_meanwhile,
    everywhere,
    join,
    new_store,
    others_wait,
    run_command,
    summed_gradients,
    sums,
    train_watched,
)
from support.small_runs import AVERAGE, Texts, differences, ending
from support.toy_task import Finished

from transduce.storage.checkpoints import checkpoints, step_of
from transduce.storage.run_log import read_log

Steps = list[list[int]]  # the pairs of each step, in the order of the batch


# Without dropout, which each rank draws for itself. Steps 9, 18 and 27 are in turn for a report and for an evaluation.
PLAIN = replace(
    AVERAGE,
    model=replace(AVERAGE.model, dropout=0.0, attention_dropout=0.0),
    train=replace(AVERAGE.train, log_every_steps=3),
)


def whole_steps(by_rank: list[list[list[list[int]]]]) -> Steps:
    """The pairs of all micro-batches of all ranks, put together as they were dealt."""
    steps = []
    for hands in zip(*by_rank, strict=True):
        parts = [part for turn in itertools.zip_longest(*hands, fillvalue=[]) for part in turn]
        turns = itertools.zip_longest(*parts)
        steps.append([pair for turn in turns for pair in turn if pair is not None])
    return steps


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model" / "model.safetensors")


def assert_close(run: Path, expected: Path) -> None:
    """Two runs whose sums were rounded otherwise: the log has the same lines, and weights hardly differ."""
    for mine, theirs in zip(read_log(run), read_log(expected), strict=True):
        assert mine.keys() == theirs.keys() and mine["step"] == theirs["step"]
        for name in mine.keys() & {"loss", "gradient_norm", "valid_loss"}:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4)
    others = weights_of(expected)
    for name, values in weights_of(run).items():
        if not name.endswith("w_k.bias"):  # its gradient is 0, but for rounding, and that is all that Adam sees
            torch.testing.assert_close(values, others[name], rtol=0, atol=1e-4)


# ---- the same training -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Steps]:
    """A run of one rank without dropout, and the pairs of its steps."""
    folder = tmp_path_factory.mktemp("alone")
    seen = everywhere(folder / "ranks", 1, train_watched, PLAIN, texts, folder / "run")
    return folder / "run", whole_steps(seen)


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_are_one(texts: Texts, alone: tuple[Path, Steps], tmp_path: Path, count: int) -> None:
    """They see the same pairs in the same order, and without dropout differ by rounding alone."""
    seen = everywhere(tmp_path / "ranks", count, train_watched, PLAIN, texts, tmp_path / "run")
    run, steps = alone
    assert whole_steps(seen) == steps and len(steps) == 32
    assert_close(tmp_path / "run", run)


def test_the_number_of_ranks_may_change(texts: Texts, alone: tuple[Path, Steps], tmp_path: Path) -> None:
    """The run goes on with the batches that one rank alone would see."""
    run, steps = tmp_path / "run", []
    for count, last in ((3, 9), (1, 27), (2, 32)):
        config = replace(PLAIN, train=replace(PLAIN.train, max_steps=last))
        may_change = ["train.max_steps"]
        seen = everywhere(tmp_path / f"{count}", count, train_watched, config, texts, run, allow_change=may_change)
        steps += whole_steps(seen)
    assert steps == alone[1]
    assert_close(run, alone[0])


def test_a_rank_without_pairs_waits_for_no_one(texts: Texts, tmp_path: Path) -> None:
    """Batches of few pairs, of which the last of four ranks get none."""
    few = replace(PLAIN, data=replace(PLAIN.data, batch_tokens=PLAIN.data.max_tokens))
    seen = {n: everywhere(tmp_path / f"{n}", n, train_watched, few, texts, tmp_path / f"run{n}") for n in (1, 4)}
    assert [[] in steps for steps in seen[4]] == [False, True, True, True]
    assert whole_steps(seen[4]) == whole_steps(seen[1])
    assert_close(tmp_path / "run4", tmp_path / "run1")


# ---- bad numbers on one rank -------------------------------------------------------------------------------------


def test_a_number_that_is_not_finite_on_one_rank_skips_the_step_on_all(texts: Texts, tmp_path: Path) -> None:
    """Whichever rank it is, the run is the same, and the log has the lines of the whole batch."""
    for victim in (0, 1):
        run, mishaps = tmp_path / f"run{victim}", [Mishap(victim, step, "nan") for step in (4, 5, 20)]
        seen = everywhere(tmp_path / f"{victim}", 2, train_watched, AVERAGE, texts, run, mishaps)
        skipped = [line for line in read_log(run) if "skipped" in line]
        assert [line["step"] for line in skipped] == [4, 5, 20]
        for line in skipped:
            pairs = whole_steps(seen)[line["step"] - 1]
            assert all(str(pair + 1) in line["lines"] for pair in pairs)
    assert differences(ending(tmp_path / "run0"), ending(tmp_path / "run1")) == []


# ---- lost ranks --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def left_alone(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three ranks, with dropout."""
    folder = tmp_path_factory.mktemp("left-alone")
    everywhere(folder / "ranks", 3, train_watched, AVERAGE, texts, folder / "run")
    return folder / "run"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_changes_nothing(texts: Texts, left_alone: Path, tmp_path: Path, victim: int) -> None:
    """The others leave without saving. All are started again through the same store, and end in the same bits."""
    store, run = new_store(), tmp_path / "run"
    mishaps = [Mishap(victim, 21, "kill")]
    ended = Ranks(tmp_path / "killed", store, 3, train_watched, AVERAGE, texts, run, mishaps).ended()
    for rank, one in enumerate(ended):
        assert one.code == (-signal.SIGKILL if rank == victim else 1)
        assert rank == victim or f"ConnectionError: rank {rank} of 3 has lost the other ranks (" in one.said
    assert step_of(checkpoints(run)[-1]) == 18
    again = Ranks(tmp_path / "again", store, 3, train_watched, AVERAGE, texts, run).ended()
    assert [one.code for one in again] == [0, 0, 0], again
    assert differences(ending(run), ending(left_alone)) == []


def test_a_stopped_rank_is_not_waited_for_longer_than_the_timeout(texts: Texts, tmp_path: Path) -> None:
    """The command ends with exit code 3 and one line."""
    program = "from support.small_runs import AVERAGE\nrecipe = lambda: AVERAGE\n"
    (tmp_path / "recipe.py").write_text(program, encoding="utf-8")
    command = ["train", "--recipe", f"{tmp_path / 'recipe.py'}:recipe", "--out", str(tmp_path / "run")]
    command += ["--train", *map(str, texts["train"]), "--valid", *map(str, texts["valid"]), "--rank-timeout", "5"]
    began_at = time.monotonic()
    ranks = Ranks(tmp_path / "ranks", new_store(), 2, run_command, command, [Mishap(1, 21, "stop")])
    first, _ = ranks.ended()
    assert time.monotonic() - began_at > 5
    *_, last = first.said.splitlines()
    assert first.code == 3, first.said
    assert last.startswith("transduce: rank 0 of 2 has lost the other ranks (Timed out ")
    assert last.endswith("or start all ranks with --resume")
    assert step_of(checkpoints(tmp_path / "run")[-1]) == 18


def test_the_others_leave_when_the_first_dies_at_work_of_its_own(tmp_path: Path) -> None:
    """They wait as long as it shows signs of life, and no longer."""
    ended = Ranks(tmp_path, new_store(), 3, others_wait, 2.0, dies=True).ended()
    assert [one.code for one in ended] == [-signal.SIGKILL, 1, 1]
    assert all("has lost the other ranks (" in one.said for one in ended[1:])


def test_the_first_finds_out_that_another_died_while_it_was_at_work(tmp_path: Path) -> None:
    ended = Ranks(tmp_path, new_store(), 3, die_meanwhile).ended()
    assert [one.code for one in ended] == [1, 1, -signal.SIGKILL]
    assert "rank 0 of 3 has lost the other ranks (" in ended[0].said


# ---- sums, and what the first does alone -------------------------------------------------------------------------


def test_sums_over_ranks(tmp_path: Path) -> None:
    assert everywhere(tmp_path / "3", 3, sums) == [[[3.0, 3.0], True, False, {"of": 0}]] * 3
    assert everywhere(tmp_path / "1", 1, sums) == [[[0.0, 1.0], True, False, {"of": 0}]]


def test_gradients_are_summed_whatever_fits_into_a_bucket(tmp_path: Path) -> None:
    """One that a rank lacks counts as 0."""
    assert everywhere(tmp_path, 3, summed_gradients) == [[[[6.0] * 4, [30.0] * 3, [600.0]]] * 3] * 3


def test_others_wait_for_the_first_longer_than_the_timeout(tmp_path: Path) -> None:
    assert everywhere(tmp_path, 3, others_wait, 6.5) == ["told"] * 3


# ---- joining -----------------------------------------------------------------------------------------------------


def test_ranks_that_do_not_come_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    first, _ = Ranks(tmp_path, new_store(), 2, join, 1.0, absent=1).ended()
    assert first.code == 1
    assert "ConnectionError: rank 0 of 2: expected all ranks at 127.0.0.1:" in first.said


@pytest.mark.parametrize("seconds", ["0", "4.9", "86401", "nan", "-1"])
def test_a_timeout_out_of_bounds_is_refused(cli: Callable[..., Finished], seconds: str) -> None:
    done = cli(*TRAIN, "--rank-timeout", seconds)
    assert done.code == 2 and "expected 5 to 86,400 seconds" in done.err


def test_a_timeout_without_torchrun_is_refused(cli: Callable[..., Finished]) -> None:
    done = cli(*TRAIN, "--rank-timeout", "60")
    assert done.code == 2 and "--rank-timeout=60: expected several ranks, started by torchrun; leave it out" in done.err


TRAIN = "train --recipe small --train a.en a.de --valid b.en b.de --out run".split()


# ---- under torchrun ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with Runs(tmp_path_factory.mktemp("runs")) as runs:
        yield runs


@pytest.fixture(scope="module")
def expected(runs: Runs) -> dict[str, Any]:
    """How a run of two ranks ends that nothing disturbs."""
    return undisturbed(runs, 2)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if reason := why_no_hosts():
        pytest.skip(reason)
    with Hosts() as hosts:
        yield hosts


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "by"), [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_torchrun_goes_on_without_a_trace(
    runs: Runs, expected: dict[str, Any], victim: int, by: signal.Signals
) -> None:
    """One of two ranks is killed, or stopped: the other leaves, and the run ends in the same files."""
    disturbed(runs, expected, 2, victim, by, step=40)


@pytest.mark.slow
def test_a_cable_that_is_cut_changes_nothing(runs: Runs, expected: dict[str, Any], hosts: Hosts) -> None:
    cut_off(runs, hosts, expected, step=40)


@pytest.mark.slow
def test_a_host_that_is_lost_changes_nothing(runs: Runs, expected: dict[str, Any], hosts: Hosts) -> None:
    host_lost(runs, hosts, expected, 1, step=40)
