"""Many ranks: the same training as one alone, and one that a lost rank does not change."""

import itertools
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from killing import AVERAGE, Texts, differences, ending, write_texts
from ranks import Mishap, Ranks, everywhere, new_store, train_watched

from transduce.checkpoint import checkpoints, step_of
from transduce.log import read_log

Steps = list[list[int]]  # the pairs of each step, in the order of the batch


# Without dropout, which each rank draws for itself. Steps 9, 18 and 27 are in turn for a report and for an evaluation.
PLAIN = replace(
    AVERAGE,
    model=replace(AVERAGE.model, dropout=0.0, attention_dropout=0.0),
    train=replace(AVERAGE.train, log_every_steps=3),
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    return write_texts(tmp_path_factory.mktemp("texts"))


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


@pytest.mark.parametrize("count", [2, 3, 4])
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
        change = {"allow_change": ["train.max_steps"]}
        steps += whole_steps(everywhere(tmp_path / f"{count}", count, train_watched, config, texts, run, change))
    assert steps == alone[1]
    assert_close(run, alone[0])


def test_a_rank_without_pairs_waits_for_no_one(texts: Texts, tmp_path: Path) -> None:
    """Batches of few pairs, of which the last ranks get none."""
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
        seen = everywhere(tmp_path / f"{victim}", 2, train_watched, AVERAGE, texts, run, {}, *mishaps)
        skipped = [line for line in read_log(run) if "skipped" in line]
        assert [line["step"] for line in skipped] == [4, 5, 20]
        for line in skipped:
            pairs = whole_steps(seen)[line["step"] - 1]
            assert all(str(pair + 1) in line["lines"] for pair in pairs)
    assert differences(ending(tmp_path / "run0"), ending(tmp_path / "run1")) == []


# ---- lost ranks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_changes_nothing(texts: Texts, undisturbed: Path, tmp_path: Path, victim: int) -> None:
    """The others leave without saving. All are started again through the same store, and end in the same bits."""
    store, run = new_store(), tmp_path / "run"
    mishap = Mishap(victim, 21, "kill")
    ended = Ranks(tmp_path / "killed", store, 3, train_watched, AVERAGE, texts, run, {}, mishap).ended()
    for rank, one in enumerate(ended):
        assert one.code == (-signal.SIGKILL if rank == victim else 1)
        assert rank == victim or f"ConnectionError: rank {rank} of 3 has lost the others (" in one.said
    assert step_of(checkpoints(run)[-1]) == 18
    again = Ranks(tmp_path / "again", store, 3, train_watched, AVERAGE, texts, run).ended()
    assert [one.code for one in again] == [0, 0, 0], again
    assert differences(ending(run), ending(undisturbed)) == []


@pytest.fixture(scope="module")
def undisturbed(texts: Texts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three ranks, with dropout."""
    folder = tmp_path_factory.mktemp("undisturbed")
    everywhere(folder / "ranks", 3, train_watched, AVERAGE, texts, folder / "run")
    return folder / "run"
