"""Folders on disk: there whole or not at all; whatever is damaged or foreign is refused by name."""

import ast
import dataclasses
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import transduce
from transduce import checkpoint as checkpoint_module
from transduce.checkpoint import (
    Checkpoint,
    average,
    checkpoint_path,
    checkpoints,
    drop_checkpoints_after,
    load_checkpoint,
    load_model,
    newest_checkpoint,
    prune_checkpoints,
    read_folder,
    regular_checkpoints,
    save_checkpoint,
    save_model,
    set_weights,
    weights,
    write_folder,
)
from transduce.config import Config, DataConfig, ModelConfig, to_json
from transduce.errors import UserError
from transduce.model import Transformer
from transduce.tokens import Tokenizer

FILES = {"a.json": b'{"x": 1}', "b.safetensors": bytes(range(256)), "README.md": b"# A card\n"}


# ---- folders -----------------------------------------------------------------------------------------------------


def test_a_folder_comes_back(tmp_path: Path) -> None:
    write_folder(tmp_path / "deep" / "er" / "model", FILES)
    assert read_folder(tmp_path / "deep" / "er" / "model") == {
        name: content for name, content in FILES.items() if name != "README.md"
    }
    assert {path.name for path in (tmp_path / "deep" / "er" / "model").iterdir()} == {*FILES, "manifest.json"}
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["model"]


def test_an_older_folder_is_replaced_whole(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", FILES)
    write_folder(tmp_path / "model", {"c.json": b"{}"})
    assert read_folder(tmp_path / "model") == {"c.json": b"{}"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_manifest_lists_size_and_hash_of_all_but_the_card(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", FILES)
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_bytes())
    assert manifest == {
        "format_version": 1,
        "files": {
            name: {"size": len(FILES[name]), "sha256": hashlib.sha256(FILES[name]).hexdigest()}
            for name in ("a.json", "b.safetensors")
        },
    }


def test_the_card_may_be_edited_or_removed(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", FILES)
    (tmp_path / "model" / "README.md").write_text("other words", encoding="utf-8")
    read_folder(tmp_path / "model")
    (tmp_path / "model" / "README.md").unlink()
    read_folder(tmp_path / "model")


@pytest.mark.parametrize(("umask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_permissions_are_the_users(tmp_path: Path, umask: int, file_mode: int, folder_mode: int) -> None:
    before = os.umask(umask)
    try:
        write_folder(tmp_path / "model", FILES)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == folder_mode
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()} == {file_mode}


class Faults:
    """Counts the calls that change the disk, and fails one of them as a full or broken disk does."""

    def __init__(self, patch: pytest.MonkeyPatch, fail_at: int | None) -> None:
        self.calls: list[str] = []
        self.fail_at = fail_at
        for owner, name in [(os, "fsync"), (Path, "rename"), (Path, "mkdir"), (Path, "open")]:
            patch.setattr(owner, name, self.faulty(name, vars(owner)[name]))

    def faulty(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) - 1 == self.fail_at:
                raise OSError(28, f"No space left on device (in {name})")
            return real(*args, **kwargs)

        return call


def number_of_calls(tmp_path: Path, *, replace: bool) -> int:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path / "counted" / "model"
        path.parent.mkdir()
        if replace:
            write_folder(path, {"old.json": b"{}"})
        faults = Faults(patch, None)
        write_folder(path, FILES)
        assert {"fsync", "rename", "open"} <= set(faults.calls)
        return len(faults.calls)


@pytest.mark.parametrize("replace", [False, True])
def test_a_disk_that_fails_at_any_point_leaves_what_was_there(tmp_path: Path, replace: bool) -> None:
    for point in range(number_of_calls(tmp_path, replace=replace)):
        path = tmp_path / str(point) / "model"
        path.parent.mkdir()
        if replace:
            write_folder(path, {"old.json": b"{}"})
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, point)
            with pytest.raises(OSError, match="No space left"):
                write_folder(path, FILES)
        done = faults.calls[-1] == "fsync" and path.exists() and "a.json" in read_folder(path)
        if done:  # only the last fsync, of a folder that is in place already, may fail afterwards
            assert faults.calls.count("fsync") == len(FILES) + 3
        else:
            assert read_folder(path) == {"old.json": b"{}"} if replace else not path.exists()
        assert [left.name for left in path.parent.iterdir()] == (["model"] if path.exists() else [])


def test_every_file_is_on_the_disk_before_the_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        real_fsync(descriptor)

    def rename(self: Path, target: Path) -> Path:
        events.append(("rename", target.name))
        return real_rename(self, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    write_folder(tmp_path / "model", FILES)
    place = events.index(("rename", "model"))
    before = [name for kind, name in events[:place] if kind == "fsync"]
    assert before[:-2] == list(FILES) and before[-2] == "manifest.json" and before[-1].startswith(".tmp-model-")
    assert events[place + 1 :] == [("fsync", tmp_path.name)]


# ---- damage ------------------------------------------------------------------------------------------------------


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "manifest.json"
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps(change(content) or content), encoding="utf-8")


def entry(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "model", FILES)
    return tmp_path / "model"


def test_every_changed_byte_is_found(folder: Path) -> None:
    for name in ("a.json", "b.safetensors"):
        content = (folder / name).read_bytes()
        for place in range(len(content)):
            (folder / name).write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
            with pytest.raises(UserError, match=f"{name} differs from its manifest"):
                read_folder(folder)
        for damaged in (content[:-1], content + b"\0", b""):
            (folder / name).write_bytes(damaged)
            with pytest.raises(UserError, match=rf"{name} has {len(damaged)} bytes, expected {len(content)}"):
                read_folder(folder)
        (folder / name).unlink()
        with pytest.raises(UserError, match=f"{name} is missing"):
            read_folder(folder)
        (folder / name).write_bytes(content)


def test_every_changed_byte_of_the_manifest_is_found_or_changes_nothing(folder: Path) -> None:
    whole, manifest = read_folder(folder), (folder / "manifest.json").read_bytes()
    for place in range(len(manifest)):
        for flip in (0x01,) if place % 4 else (0x10, 0x80):
            damaged = manifest[:place] + bytes([manifest[place] ^ flip]) + manifest[place + 1 :]
            (folder / "manifest.json").write_bytes(damaged)
            try:
                assert read_folder(folder) == whole
            except UserError as problem:
                assert str(folder) in str(problem)
    for length in range(len(manifest) - 1):
        (folder / "manifest.json").write_bytes(manifest[:length])
        with pytest.raises(UserError, match="manifest.json is damaged"):
            read_folder(folder)


@pytest.mark.parametrize(
    "text", ["null", "[]", "{}", '{"format_version": 1}', '{"format_version": 1, "files": []}', "[" * 100_000, "\xff"]
)
def test_a_foreign_manifest(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="manifest.json is damaged"):
        read_folder(folder)


def test_another_format_version(folder: Path) -> None:
    rewrite_manifest(folder, lambda content: {**content, "format_version": 2})
    with pytest.raises(UserError, match="format version 2, this program reads 1"):
        read_folder(folder)


@pytest.mark.parametrize(
    "name",
    ["../secret.json", "/etc/passwd", "sub/a.json", "a.pt", "a.bin", ".json", "a.json\n", "A.json", "", "a.json/"],
)
def test_a_manifest_can_name_only_files_of_ours(folder: Path, name: str) -> None:
    (folder.parent / "secret.json").write_bytes(b"secret")
    rewrite_manifest(folder, lambda content: content["files"].update({name: entry(b"secret")}))
    with pytest.raises(UserError, match="which is not a file of a transduce folder"):
        read_folder(folder)


def test_a_link_is_not_followed(folder: Path) -> None:
    (folder.parent / "secret.json").write_bytes(FILES["a.json"])
    (folder / "a.json").unlink()
    (folder / "a.json").symlink_to(folder.parent / "secret.json")
    with pytest.raises(UserError, match="'a.json', which is not a file of a transduce folder"):
        read_folder(folder)


def test_a_folder_in_the_place_of_a_file(folder: Path) -> None:
    (folder / "a.json").unlink()
    (folder / "a.json").mkdir()
    with pytest.raises(UserError, match="a.json is missing"):
        read_folder(folder)


def test_no_folder_of_ours(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        read_folder(tmp_path / "absent")
    with pytest.raises(UserError, match="not a folder written by transduce"):
        read_folder(tmp_path)


# ---- checkpoints -------------------------------------------------------------------------------------------------


def a_checkpoint(step: int, *, ema: bool = False) -> Checkpoint:
    torch.manual_seed(step)
    tensors = {"layer.weight": torch.randn(3, 4), "layer.bias": torch.randn(4)}
    moments = {f"exp_avg/{name}": torch.rand_like(value) for name, value in tensors.items()}
    state = {"step": step, "best_score": 1 / 3, "best_step": None, "data": {"epoch": 2, "index": 17}, "data_key": "ab"}
    averaged = {name: value / 2 for name, value in tensors.items()} if ema else None
    return Checkpoint(tensors, moments, {"cpu": torch.get_rng_state()}, averaged, state)


def equal(a: dict[str, Tensor] | None, b: dict[str, Tensor] | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


@pytest.mark.parametrize("ema", [False, True])
def test_a_checkpoint_comes_back(tmp_path: Path, ema: bool) -> None:
    saved = a_checkpoint(12_345, ema=ema)
    path = save_checkpoint(tmp_path, saved)
    assert path == tmp_path / "checkpoints" / "step-00012345"
    names = {"model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json", "manifest.json"}
    assert {file.name for file in path.iterdir()} == names | ({"ema.safetensors"} if ema else set())
    loaded = load_checkpoint(path)
    for part in ("weights", "optimizer", "rng", "ema"):
        assert equal(vars(loaded)[part], vars(saved)[part])
    assert loaded.state == saved.state


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, a_checkpoint(1))
    for value in (float("nan"), float("inf"), -float("inf")):
        bad = a_checkpoint(2)
        bad.weights["layer.bias"][1] = value
        with pytest.raises(UserError, match="layer.bias holds values that are not finite"):
            save_checkpoint(tmp_path, bad)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    write_folder(tmp_path / "x", {"model.safetensors": safetensors.torch.save({})})
    with pytest.raises(UserError, match="x is not a checkpoint: it has no optimizer.safetensors"):
        load_checkpoint(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_a_state_that_is_none(tmp_path: Path, content: bytes) -> None:
    none = safetensors.torch.save({})
    files = {f"{name}.safetensors": none for name in ("model", "optimizer", "rng")}
    write_folder(tmp_path / "x", {**files, "state.json": content})
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
    write_folder(tmp_path / "x", {"model.safetensors": content})
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
        (1, None, [1000]),
        (3, 250, [800, 900, 1000]),
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


@pytest.mark.parametrize("fail_at", range(9))
def test_a_save_that_fails_leaves_the_checkpoint_before_it(tmp_path: Path, fail_at: int) -> None:
    first = save_checkpoint(tmp_path, a_checkpoint(5))
    with pytest.MonkeyPatch.context() as patch:
        Faults(patch, fail_at)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(tmp_path, a_checkpoint(10))
    assert newest_checkpoint(tmp_path) == (first, [])
    second = save_checkpoint(tmp_path, a_checkpoint(10))
    assert newest_checkpoint(tmp_path) == (second, [])


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


def test_weights_are_copies(tiny: "Tiny") -> None:
    taken = weights(tiny.model)
    before = taken["src_embedding.weight"].clone()
    with torch.no_grad():
        tiny.model.src_embedding.weight.add_(1)
    assert torch.equal(taken["src_embedding.weight"], before)
    set_weights(tiny.model, taken, "here")
    assert equal(weights(tiny.model), taken)
    assert "output.weight" not in taken and "tgt_embedding.weight" not in taken  # tied: there once


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("encoder_extra.weight", torch.zeros(1), "encoder_extra.weight is in only one of them"),
        ("src_embedding.weight", None, "src_embedding.weight is in only one of them"),
        ("src_embedding.weight", torch.zeros(2, 2), r"src_embedding.weight has the shape \(2, 2\), expected"),
        (
            "encoder.0.feed_forward.w_1.bias",
            torch.full((16,), float("nan")),
            "w_1.bias holds values that are not finite",
        ),
        (
            "encoder.0.feed_forward.w_1.bias",
            torch.full((16,), float("inf")),
            "w_1.bias holds values that are not finite",
        ),
        ("encoder.0.feed_forward.w_1.bias", torch.ones(16, dtype=torch.int64), "w_1.bias holds torch.int64"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(tiny: "Tiny", name: str, value: Tensor | None, words: str) -> None:
    before = weights(tiny.model)
    given = {key: torch.zeros_like(tensor) for key, tensor in before.items()}
    if value is None:
        del given[name]
    else:
        given[name] = value
    with pytest.raises(UserError, match=words):
        set_weights(tiny.model, given, "here")
    assert equal(weights(tiny.model), before)


# ---- models ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tiny:
    """A model and what belongs to it, unsaved."""

    model: Transformer
    config: Config
    tokenizer: Tokenizer

    def save(self, path: Path) -> Path:
        save_model(path, weights(self.model), self.config, self.tokenizer, "# A card\n")
        return path


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(["a dog runs and a cat runs"] * 2, vocab_size=300)


@pytest.fixture
def tiny(tokenizer: Tokenizer) -> Iterator[Tiny]:
    torch.manual_seed(1)
    model = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=8, n_layers=2, n_heads=2, d_ff=16)
    yield Tiny(Transformer(model), Config(model=model, data=DataConfig(vocab_size=300)), tokenizer)


@pytest.fixture
def saved(tiny: Tiny, tmp_path: Path) -> Path:
    return tiny.save(tmp_path / "model")


def test_a_model_comes_back(tiny: Tiny, saved: Path) -> None:
    names = {"model.safetensors", "config.json", "tokenizer.json", "README.md", "manifest.json"}
    assert {path.name for path in saved.iterdir()} == names
    loaded = load_model(saved)
    assert loaded.config == tiny.config and loaded.tokenizer.to_json() == tiny.tokenizer.to_json()
    assert equal(weights(loaded.model), weights(tiny.model))
    assert not loaded.model.training
    src = torch.tensor([[5, 6, 7]])
    mask = torch.ones_like(src, dtype=torch.bool)
    assert torch.equal(loaded.model(src, mask, src), tiny.model.eval()(src, mask, src))


def test_a_model_moved_and_linked_still_loads(saved: Path, tmp_path: Path) -> None:
    moved = saved.rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(moved)
    load_model(tmp_path / "link")


def test_every_file_of_a_model_is_checked(saved: Path) -> None:
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        content = (saved / name).read_bytes()
        damage(saved / name)
        with pytest.raises(UserError, match=f"{name} differs from its manifest"):
            load_model(saved)
        (saved / name).write_bytes(content)
    load_model(saved)


def replace_file(folder: Path, name: str, content: bytes | None) -> None:
    """Put other content into a folder and its manifest, as a forger would."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}
    if content is None:
        del files[name]
    else:
        files[name] = content
    shutil.rmtree(folder)
    write_folder(folder, files)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_model_without_one_of_its_files(saved: Path, name: str) -> None:
    replace_file(saved, name, None)
    with pytest.raises(UserError, match=f"is not a model folder: it has no {name}"):
        load_model(saved)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"null", b"[" * 100_000, b"\x80\x04\x95"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_forged_file_is_a_user_error(saved: Path, name: str, content: bytes) -> None:
    replace_file(saved, name, content)
    with pytest.raises(UserError, match=name):
        load_model(saved)


def test_the_tokenizer_of_another_model(saved: Path) -> None:
    other = Tokenizer.learn(["another text with other letters: xyz"] * 2, vocab_size=310)
    other.save(saved / "tokenizer.json")
    with pytest.raises(UserError, match="tokenizer.json"):
        load_model(saved)
    replace_file(saved, "tokenizer.json", other.to_json().encode())
    with pytest.raises(UserError, match=f"embedding rows but its tokenizer {other.vocab_size} pieces"):
        load_model(saved)


@pytest.mark.parametrize(
    "sizes",
    [
        {"d_model": 10**6},
        {"d_ff": 10**6},
        {"n_layers": 10**4},
        {"n_heads": 1, "d_k": 10**6},
        {"n_heads": 10**4, "d_k": 4, "d_v": 4},
        {"positions": "learned", "max_positions": 10**6},
        {"d_model": 16},
        {"n_layers": 3},
        {"n_heads": 4},
        {"d_ff": 4096},
        {"norm": "pre"},
        {"tie_src_tgt": False},
        {"attention_bias": False},
    ],
)
def test_a_configuration_of_another_size_is_refused_at_once(tiny: Tiny, saved: Path, sizes: dict[str, Any]) -> None:
    model = dataclasses.replace(tiny.config.model, **sizes)
    replace_file(saved, "config.json", to_json(dataclasses.replace(tiny.config, model=model)).encode())
    if sizes == {"n_heads": 4}:  # the one that no shape betrays
        load_model(saved)
        return
    started_at = time.monotonic()
    with pytest.raises(UserError, match="does not fit its configuration"):
        load_model(saved)
    assert time.monotonic() - started_at < 2


def test_weights_that_are_not_finite_are_not_loaded(tiny: Tiny, tmp_path: Path) -> None:
    with torch.no_grad():
        tiny.model.src_embedding.weight[3, 3] = float("nan")
    with pytest.raises(UserError, match="src_embedding.weight holds values that are not finite"):
        load_model(tiny.save(tmp_path / "model"))


def test_other_folders_are_told_from_models(tiny: Tiny, tmp_path: Path) -> None:
    run = tmp_path / "run"
    path = save_checkpoint(run, a_checkpoint(5))
    with pytest.raises(UserError, match="run is a run that has no model yet"):
        load_model(run)
    tiny.save(run / "model")
    with pytest.raises(UserError, match=f"run is a run, not a model; give {run / 'model'}"):
        load_model(run)
    with pytest.raises(UserError, match=f"is a checkpoint, not a model; make one: transduce average {run} --last 1"):
        load_model(path)
    with pytest.raises(UserError, match="no such folder; expected a model folder"):
        load_model(tmp_path / "absent")
    with pytest.raises(UserError, match="not a folder written by transduce"):
        load_model(tmp_path)


# ---- no pickle ---------------------------------------------------------------------------------------------------


def test_nothing_in_the_package_reads_pickles_or_runs_text() -> None:
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    calls = {"torch.load", "torch.jit.load", "np.load", "numpy.load", "eval", "exec", "pickle.loads", "torch.save"}
    package = Path(transduce.__file__).parent
    files = sorted(package.rglob("*.py"))
    assert Path(checkpoint_module.__file__) in files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not modules & {alias.name.split(".")[0] for alias in node.names}, file
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in modules, file
            elif isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in calls, f"{file}:{node.lineno}"
