"""Checkpoints of a run: all of it comes back; the newest that is whole; which are kept; their mean."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from transduce.errors import UserError
from transduce.storage.atomic_folder import write_folder
from transduce.storage.checkpoints import (
    Checkpoint,
    checkpoint_path,
    checkpoints,
    drop_checkpoints_after,
    load_checkpoint,
    load_state,
    newest_checkpoint,
    prune_checkpoints,
    regular_checkpoints,
    save_checkpoint,
)
from transduce.storage.tensors import average

# ---- checkpoints -------------------------------------------------------------------------------------------------


def a_checkpoint(step: int, *, ema: bool = False) -> Checkpoint:
    torch.manual_seed(step)
    tensors = {"layer.weight": torch.randn(3, 4), "layer.bias": torch.randn(4)}
    moments = {f"exp_avg/{name}": torch.rand_like(value) for name, value in tensors.items()}
    state = {"step": step, "best_score": 1 / 3, "best_step": None, "data": {"epoch": 2, "index": 17}, "data_key": "ab"}
    averaged = {name: value / 2 for name, value in tensors.items()} if ema else None
    return Checkpoint(tensors, moments, averaged, state)


def equal(a: dict[str, Tensor] | None, b: dict[str, Tensor] | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


@pytest.mark.parametrize("ema", [False, True])
def test_a_checkpoint_comes_back(tmp_path: Path, ema: bool) -> None:
    saved = a_checkpoint(12_345, ema=ema)
    path = save_checkpoint(tmp_path, saved)
    assert path == tmp_path / "checkpoints" / "step-00012345"
    names = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}
    assert {file.name for file in path.iterdir()} == names | ({"ema.safetensors"} if ema else set())
    loaded = load_checkpoint(path)
    for part in ("weights", "optimizer", "ema"):
        assert equal(vars(loaded)[part], vars(saved)[part])
    assert loaded.state == saved.state


def test_the_state_alone(tmp_path: Path) -> None:
    saved = a_checkpoint(5)
    path = save_checkpoint(tmp_path, saved)
    assert load_state(path) == saved.state
    damage(path / "state.json")
    with pytest.raises(UserError, match="state.json differs from its manifest"):
        load_state(path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_library_reads_what_we_write_and_writes_the_same(tmp_path: Path, dtype: torch.dtype) -> None:
    """Names, shapes and values of any layout: no dimension, none along one, a transposed matrix, a part of another."""
    whole = torch.randn(4, 6, dtype=dtype)
    tensors = {"a": whole, "b.ü": whole.T, "c": whole[1:3, 2:], "d": torch.tensor(2.5, dtype=dtype), "e": whole[:0]}
    path = save_checkpoint(tmp_path, dataclasses.replace(a_checkpoint(5), weights=tensors))
    written = (path / "model.safetensors").read_bytes()
    assert equal(safetensors.torch.load(written), tensors)
    assert (int.from_bytes(written[:8], "little") + 8) % 8 == 0
    packed = {name: values.contiguous() for name, values in tensors.items()}
    assert len(written) == len(safetensors.torch.save(packed))
    assert equal(load_checkpoint(path).weights, tensors)
    turned = dataclasses.replace(a_checkpoint(5), weights=dict(reversed(tensors.items())))
    assert (save_checkpoint(tmp_path / "again", turned) / "model.safetensors").read_bytes() == written


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, a_checkpoint(1))
    for value in (float("nan"), float("inf"), -float("inf")):
        bad = a_checkpoint(2)
        bad.weights["layer.bias"][1] = value
        with pytest.raises(UserError, match="layer.bias holds values that are not finite"):
            save_checkpoint(tmp_path, bad)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    write_folder(tmp_path / "x", {"model.safetensors": [safetensors.torch.save({})]})
    with pytest.raises(UserError, match="x is not a checkpoint: it has no optimizer.safetensors"):
        load_checkpoint(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"step":5}'])
def test_a_state_that_is_none(tmp_path: Path, content: bytes) -> None:
    none = [safetensors.torch.save({})]
    files = {f"{name}.safetensors": none for name in ("model", "optimizer")}
    write_folder(tmp_path / "x", {**files, "state.json": [content]})
    with pytest.raises(UserError, match="state.json is not what a run writes"):
        load_checkpoint(tmp_path / "x")


def header(content: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04\x95",
        header(b"{"),
        header(b"[]"),
        (1 << 62).to_bytes(8, "little") + b"{}",
        header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes(8)),
        header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 16]}}, bytes(16)),
        header({"a": {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}}, bytes(16)),
        header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes(99)),
    ],
)
def test_tensors_that_are_none(tmp_path: Path, content: bytes) -> None:
    write_folder(tmp_path / "x", {"model.safetensors": [content]})
    with pytest.raises(UserError, match="model.safetensors holds no readable tensors"):
        average([tmp_path / "x"])


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_newest_that_is_whole(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None and checkpoints(tmp_path) == []
    paths = [save_checkpoint(tmp_path, a_checkpoint(step)) for step in (5, 10, 15)]
    assert checkpoints(tmp_path) == paths
    assert newest_checkpoint(tmp_path) == (paths[2], [])
    damage(paths[2] / "optimizer.safetensors")
    found = newest_checkpoint(tmp_path)
    assert found is not None and found[0] == paths[1]
    (reason,) = found[1]
    assert str(paths[2] / "optimizer.safetensors") in reason and "differs from its manifest" in reason
    (paths[1] / "manifest.json").unlink()
    found = newest_checkpoint(tmp_path)
    assert found is not None and found[0] == paths[0] and len(found[1]) == 2
    (paths[0] / "state.json").write_bytes(b"")
    with pytest.raises(UserError, match="every checkpoint of .* is damaged; begin anew with another --out") as caught:
        newest_checkpoint(tmp_path)
    assert all(path.name in str(caught.value) for path in paths)


def test_files_of_two_steps_do_not_mix(tmp_path: Path) -> None:
    old, new = (save_checkpoint(tmp_path, a_checkpoint(step)) for step in (5, 10))
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        kept = (new / name).read_bytes()
        shutil.copy(old / name, new / name)
        found = newest_checkpoint(tmp_path)
        assert found is not None and found[0] == old
        (new / name).write_bytes(kept)


def test_only_steps_are_checkpoints(tmp_path: Path) -> None:
    for step in (100_000_000, 99_999_999, 7):  # a ninth digit does not change the order
        save_checkpoint(tmp_path, a_checkpoint(step))
    for name in ("step-1", "step-0000000x", "step-00000003.bak", ".tmp-step-00000009-1", "other"):
        (tmp_path / "checkpoints" / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000007", "step-99999999", "step-100000000"]


def steps(run: Path) -> list[int]:
    return [int(path.name[5:]) for path in checkpoints(run)]


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """A run with the checkpoints 100, 200, ... 1000."""
    for step in range(100, 1_001, 100):
        checkpoint_path(tmp_path, step).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("keep", "also", "left"),
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
def test_pruning_keeps_the_newest_and_the_best(ten: Path, keep: int, also: int | None, left: list[int]) -> None:
    prune_checkpoints(ten, keep, also)
    assert steps(ten) == left


def test_pruning_removes_what_an_interrupted_save_left(ten: Path) -> None:
    for name in (".tmp-step-00000300-123", ".tmp-old-step-00000300-123"):
        (ten / "checkpoints" / name).mkdir()
        (ten / "checkpoints" / name / "model.safetensors").write_bytes(b"half")
    (ten / ".tmp-model-123").mkdir()
    (ten / "model").mkdir()
    prune_checkpoints(ten, 99, None)
    assert [path.name for path in (ten / "checkpoints").iterdir() if path.name.startswith(".")] == []
    assert sorted(path.name for path in ten.iterdir()) == ["checkpoints", "model"]


def test_an_interruption_changes_neither_what_is_kept_nor_what_is_averaged(tmp_path: Path) -> None:
    plain, interrupted = tmp_path / "plain", tmp_path / "interrupted"
    for step in range(50, 1_001, 50):
        if step % 100 == 0:
            checkpoint_path(plain, step).mkdir(parents=True)
        checkpoint_path(interrupted, step).mkdir(parents=True)  # stopped and resumed halfway to each checkpoint
        for run in (plain, interrupted):
            prune_checkpoints(run, 3, 200, every=100)
            assert checkpoint_path(run, step).exists() or run == plain
        kept = [[path.name for path in regular_checkpoints(run, 100)][-3:] for run in (plain, interrupted)]
        assert step % 100 or kept[0] == kept[1]
    assert steps(interrupted) == steps(plain) == [200, 800, 900, 1000]


def test_a_last_step_between_two_regular_ones_counts(ten: Path) -> None:
    checkpoint_path(ten, 1_050).mkdir()
    checkpoint_path(ten, 450).mkdir()
    assert [int(path.name[5:]) for path in regular_checkpoints(ten, 100)] == [*range(100, 1_001, 100), 1_050]
    prune_checkpoints(ten, 3, None, every=100)
    assert steps(ten) == [800, 900, 1000, 1050]
    assert regular_checkpoints(ten / "none", 5) == []


def test_checkpoints_that_were_passed_over_make_room(ten: Path) -> None:
    drop_checkpoints_after(ten, 800)
    assert steps(ten) == list(range(100, 801, 100))


# ---- weights -----------------------------------------------------------------------------------------------------


def test_the_average_is_the_mean_in_float64(tmp_path: Path) -> None:
    paths = [save_checkpoint(tmp_path, a_checkpoint(step)) for step in range(1, 6)]
    mean = average(paths)
    for name, value in mean.items():
        exact = torch.stack([load_checkpoint(path).weights[name].double() for path in paths]).mean(0)
        assert value.dtype == torch.float32
        assert torch.equal(value, exact.float())
    assert equal(average(paths[:1]), load_checkpoint(paths[0]).weights)


def test_the_average_keeps_what_float32_sums_lose(tmp_path: Path) -> None:
    values = [1e8, 1.0, -1e8, 1.0]
    paths = []
    for step, value in enumerate(values, start=1):
        one = a_checkpoint(step)
        paths.append(save_checkpoint(tmp_path, dataclasses.replace(one, weights={"w": torch.tensor([value])})))
    assert average(paths)["w"].item() == 0.5


@pytest.mark.parametrize(
    "other", [{"w": torch.zeros(4)}, {"v": torch.zeros(3)}, {}, {"w": torch.zeros(3), "v": torch.zeros(1)}]
)
def test_the_average_of_different_models_is_refused(tmp_path: Path, other: dict[str, Tensor]) -> None:
    first = save_checkpoint(tmp_path, dataclasses.replace(a_checkpoint(1), weights={"w": torch.zeros(3)}))
    second = save_checkpoint(tmp_path, dataclasses.replace(a_checkpoint(2), weights=other))
    with pytest.raises(UserError, match="step-00000002 holds another model than .*step-00000001"):
        average([first, second])
