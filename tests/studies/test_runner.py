"""Tasks of a study in one process and in several: signals, and processes that are killed."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from support.study_rows import interrupting, killed

from transduce.errors import NotFiniteError, UserError
from transduce.studies.results import Results, Study, read_results
from transduce.studies.runner import CellTask, in_pool, in_turn, run_cells

STUDY = Study("made-up", lambda name, settings: [dict])


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results.json", STUDY, {})


def test_a_training_that_is_killed_ends_the_study_in_words(results: Results) -> None:
    def make(names: list[str]) -> list[CellTask]:
        return [CellTask(name, {}, partial(killed, name)) for name in names]

    with pytest.raises(UserError, match="the process of a training was killed.* run the same command again"):
        run_cells(["large", "small"], make, in_pool(2), results)
    assert not results.is_done("large")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_signal_ends_the_trainings(results: Results, jobs: int) -> None:
    def make(names: list[str]) -> list[CellTask]:
        return [CellTask(name, {}, partial(interrupting, name)) for name in names]

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_cells(["first", "second", "third"], make, in_pool(jobs), results)
    assert time.monotonic() - start < 50
    assert results.entries and not results.done()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_task_in_this_process_at_once(results: Results, number: signal.Signals) -> None:
    ended = []

    def interrupted() -> dict[str, object]:
        os.kill(os.getpid(), number)
        ended.append(number)
        return {}

    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    tasks = [CellTask("a", {"row": "a"}, dict), CellTask("b", {}, interrupted), CellTask("c", {}, dict)]
    with pytest.raises(KeyboardInterrupt):
        run_cells(["a", "b", "c"], lambda names: tasks, in_turn, results)
    assert not ended and [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    saved = read_results(results.path, STUDY)
    assert {name: entry["status"] for name, entry in saved.entries.items()} == {
        "a": "done", "b": "not run", "c": "not run"
    }  # fmt: skip


def test_a_failed_task_is_recorded_and_the_others_continue(results: Results) -> None:
    def fail(problem: UserError) -> dict[str, object]:
        raise problem

    works = {
        "a": partial(fail, UserError("the disk is full")),
        "b": partial(fail, NotFiniteError("the loss is nan\n  - remedies")),
        "c": lambda: {"loss": 1.5},
    }

    def make(names: list[str]) -> list[CellTask]:
        return [CellTask(name, {"row": name}, works[name]) for name in names]

    with pytest.raises(UserError, match="2 of 3 trainings failed: a, b; see the report"):
        run_cells([*works], make, in_turn, results, advice="see the report")
    entries = read_results(results.path, STUDY).entries
    assert entries["a"]["why"] == "the disk is full" and "diverged" not in entries["a"]
    assert entries["b"]["why"] == "the loss is nan" and entries["b"]["diverged"]
    assert (entries["c"]["status"], entries["c"]["row"], entries["c"]["loss"]) == ("done", "c", 1.5)


def test_done_cells_are_computed_again_only_when_asked(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    discarded = []

    def make(names: list[str]) -> list[CellTask]:
        return [CellTask(name, {}, partial(dict, names=names)) for name in names]

    run_cells(["a", "b"], make, in_turn, results)
    capsys.readouterr()
    run_cells(["a", "b"], make, in_turn, results)
    assert "there is nothing to do" in capsys.readouterr().err
    run_cells(["a", "b"], make, in_turn, results, again={"b": partial(discarded.append, "b")})
    assert (results.entries["a"]["names"], results.entries["b"]["names"]) == (["a", "b"], ["b"])
    assert discarded == ["b"]
