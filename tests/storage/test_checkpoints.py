"""Checkpoints of a run: saved and loaded, found when newer ones are damaged, and pruned."""

import shutil
from pathlib import Path

import pytest
import safetensors.torch
from support.checkpoints import are_equal, damage, random_checkpoint

from transduce.errors import UserError
from transduce.storage.atomic_folder import write_folder
from transduce.storage.checkpoints import (
    checkpoint_path,
    checkpoints,
    drop_checkpoints_after,
    load_checkpoint,
    load_state,
    newest_checkpoint,
    prune_checkpoints,
    regular_checkpoints,
    save_checkpoint,
    step_of,
)


def steps(run: Path) -> list[int]:
    return [step_of(path) for path in checkpoints(run)]


# ---- one checkpoint ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ema", [False, True])
def test_a_saved_checkpoint_loads_unchanged(tmp_path: Path, ema: bool) -> None:
    checkpoint = random_checkpoint(12_345, ema=ema)
    path = save_checkpoint(tmp_path, checkpoint)
    assert path == tmp_path / "checkpoints" / "step-00012345"
    names = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}
    assert {file.name for file in path.iterdir()} == names | ({"ema.safetensors"} if ema else set())
    loaded = load_checkpoint(path)
    assert are_equal(loaded.weights, checkpoint.weights) and are_equal(loaded.optimizer, checkpoint.optimizer)
    assert are_equal(loaded.ema, checkpoint.ema) and loaded.state == checkpoint.state


def test_the_state_can_be_read_without_the_weights(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(5)
    path = save_checkpoint(tmp_path, checkpoint)
    assert load_state(path) == checkpoint.state
    damage(path / "state.json")
    with pytest.raises(UserError, match="state.json: expected the SHA-256 in manifest.json"):
        load_state(path)


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, random_checkpoint(1))
    for value in (float("nan"), float("inf"), -float("inf")):
        checkpoint = random_checkpoint(2)
        checkpoint.weights["layer.bias"][1] = value
        with pytest.raises(UserError, match="expected finite numbers in layer.bias"):
            save_checkpoint(tmp_path, checkpoint)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "x", {"model.safetensors": [safetensors.torch.save({})]})
    with pytest.raises(UserError, match="x: expected a checkpoint with optimizer.safetensors"):
        load_checkpoint(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"step":5}'])
def test_a_foreign_state_is_refused(tmp_path: Path, content: bytes) -> None:
    no_tensors = [safetensors.torch.save({})]
    files = {f"{name}.safetensors": no_tensors for name in ("model", "optimizer")}
    write_folder(tmp_path / "x", {**files, "state.json": [content]})
    with pytest.raises(UserError, match="state.json: expected the state of a run"):
        load_checkpoint(tmp_path / "x")


# ---- the checkpoints of a run ------------------------------------------------------------------------------------


def test_the_newest_undamaged_checkpoint(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None and checkpoints(tmp_path) == []
    paths = [save_checkpoint(tmp_path, random_checkpoint(step)) for step in (5, 10, 15)]
    assert checkpoints(tmp_path) == paths
    assert newest_checkpoint(tmp_path) == (paths[2], [])
    assert newest_checkpoint(tmp_path, until=14) == (paths[1], [])
    damage(paths[2] / "optimizer.safetensors")
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest[0] == paths[1]
    (problem,) = newest[1]
    assert problem.startswith(f"{paths[2] / 'optimizer.safetensors'}: expected the SHA-256 in manifest.json")
    (paths[1] / "manifest.json").unlink()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest[0] == paths[0] and len(newest[1]) == 2
    (paths[0] / "state.json").write_bytes(b"")
    with pytest.raises(UserError, match="expected an undamaged checkpoint; start a new run with .* --out") as caught:
        newest_checkpoint(tmp_path)
    assert all(path.name in str(caught.value) for path in paths)
    with pytest.raises(UserError, match="expected an undamaged checkpoint up to step 5; start a new run"):
        newest_checkpoint(tmp_path, until=5)


def test_a_file_of_another_step_is_detected(tmp_path: Path) -> None:
    old, new = (save_checkpoint(tmp_path, random_checkpoint(step)) for step in (5, 10))
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        content = (new / name).read_bytes()
        shutil.copy(old / name, new / name)
        newest = newest_checkpoint(tmp_path)
        assert newest is not None and newest[0] == old
        (new / name).write_bytes(content)


def test_only_folders_named_by_a_step_are_checkpoints(tmp_path: Path) -> None:
    for step in (100_000_000, 99_999_999, 7):  # a ninth digit does not change the order
        save_checkpoint(tmp_path, random_checkpoint(step))
    for name in ("step-1", "step-0000000x", "step-00000003.bak", ".tmp-step-00000009-1", "other"):
        (tmp_path / "checkpoints" / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000007", "step-99999999", "step-100000000"]


# ---- pruning -----------------------------------------------------------------------------------------------------


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """A run with the checkpoints 100, 200, ... 1000."""
    for step in range(100, 1_001, 100):
        checkpoint_path(tmp_path, step).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("keep", "best_step", "remaining"),
    [
        (3, None, [800, 900, 1000]),
        (3, 900, [800, 900, 1000]),
        (3, 200, [200, 800, 900, 1000]),
        (1, None, [900, 1000]),
        (3, 250, [800, 900, 1000]),
        (2, None, [900, 1000]),
        (99, None, list(range(100, 1_001, 100))),
    ],
)
def test_the_newest_and_the_best_checkpoints_remain(
    ten: Path, keep: int, best_step: int | None, remaining: list[int]
) -> None:
    prune_checkpoints(ten, keep, best_step)
    assert steps(ten) == remaining


def test_pruning_removes_temporary_files_of_interrupted_saves(ten: Path) -> None:
    for name in (".tmp-step-00000300-123", ".tmp-old-step-00000300-123"):
        (ten / "checkpoints" / name).mkdir()
        (ten / "checkpoints" / name / "model.safetensors").write_bytes(b"half")
    (ten / "checkpoints" / ".tmp-mine").mkdir()
    prune_checkpoints(ten, 99, None)
    assert [path.name for path in (ten / "checkpoints").iterdir() if path.name.startswith(".")] == [".tmp-mine"]


def test_an_interruption_changes_neither_the_remaining_nor_the_averaged_checkpoints(tmp_path: Path) -> None:
    plain, other_run = tmp_path / "plain", tmp_path / "interrupted"
    for step in range(50, 1_001, 50):
        if step % 100 == 0:
            checkpoint_path(plain, step).mkdir(parents=True)
        checkpoint_path(other_run, step).mkdir(parents=True)  # stopped and resumed halfway to each checkpoint
        for run in (plain, other_run):
            prune_checkpoints(run, 3, 200, every=100)
            assert checkpoint_path(run, step).exists() or run == plain
        names = [[path.name for path in regular_checkpoints(run, 100)][-3:] for run in (plain, other_run)]
        assert step % 100 or names[0] == names[1]
    assert steps(other_run) == steps(plain) == [200, 800, 900, 1000]


def test_a_last_step_between_two_regular_ones_remains(ten: Path) -> None:
    checkpoint_path(ten, 1_050).mkdir()
    checkpoint_path(ten, 450).mkdir()
    assert [step_of(path) for path in regular_checkpoints(ten, 100)] == [*range(100, 1_001, 100), 1_050]
    prune_checkpoints(ten, 3, None, every=100)
    assert steps(ten) == [800, 900, 1000, 1050]
    assert regular_checkpoints(ten / "none", 5) == []


def test_later_checkpoints_can_be_removed(ten: Path) -> None:
    drop_checkpoints_after(ten, 800)
    assert steps(ten) == list(range(100, 801, 100))
