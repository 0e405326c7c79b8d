"""Hostile files: refused with a UserError, within 2 s and 200 MB, and never executed."""

import io
import json
import multiprocessing
import os
import pickle
import resource
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from support.checkpoints import stored_state

from transduce.config.files import to_json
from transduce.config.schema import Config, ModelConfig
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError
from transduce.model.transformer import Transformer
from transduce.storage.atomic_folder import Content, encode_json, write_folder
from transduce.storage.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from transduce.storage.model_folder import load_model, save_model
from transduce.storage.run_log import read_log
from transduce.storage.tensors import average
from transduce.training.weights import weights

MAX_SECONDS = 2  # of processor time
MAX_BYTES = 200 << 20

# ---- undamaged folders -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model and a checkpoint."""
    tokenizer = Tokenizer.learn(["a dog runs and a cat runs"] * 2, vocab_size=300)
    model = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=8, n_layers=1, n_heads=2, d_ff=16)
    folder = tmp_path_factory.mktemp("originals")
    tensors = weights(Transformer(model))
    save_model(folder / "model", tensors, Config(model=model), tokenizer, "# A card\n")
    save_checkpoint(folder, Checkpoint(tensors, tensors, None, stored_state(5)))
    return folder


def forge(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of a folder, and write a manifest that fits."""
    files: dict[str, Content] = {
        path.name: [path.read_bytes()] for path in folder.iterdir() if path.name != "manifest.json"
    }
    shutil.rmtree(folder)
    write_folder(folder, {**files, name: [content]})


# ---- hostile content ---------------------------------------------------------------------------------------------


class Harm:
    """Creates the file `canary` when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def pickle_content(canary: Path) -> bytes:
    return pickle.dumps(Harm(canary))


def torch_content(canary: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": Harm(canary)}, file)
    return file.getvalue()


def old_torch_content(canary: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": Harm(canary)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def numpy_object(canary: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Harm(canary)], dtype=object), allow_pickle=True)
    return file.getvalue()


def numpy_objects(canary: Path) -> bytes:
    file = io.BytesIO()
    np.savez(file, weight=np.array([Harm(canary)], dtype=object))
    return file.getvalue()


def zip_bomb(_: Path) -> bytes:
    """Return a zip archive of 256 kB with a file of 256 MB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", bytes(256 << 20))
    return file.getvalue()


def header(text: bytes, values: bytes = b"", *, size: int | None = None) -> bytes:
    """Return a safetensors file with this header. size: the length of the header as stored; None: the true one."""
    return struct.pack("<Q", len(text) if size is None else size) + text + values


def compact(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def tensor(name: str = "w", dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> bytes:
    return compact({name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


def empty_tensors(count: int) -> bytes:
    tensor = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return header(compact({f"{number}": tensor for number in range(count)}))


def content_of(folder: Path, name: str = "model.safetensors") -> bytes:
    return (folder / name).read_bytes()


MakeContent = Callable[[Path], bytes]  # from the canary to the content of a file
EXECUTABLE = [pickle_content, torch_content, old_torch_content, numpy_object, numpy_objects, zip_bomb]
HEADERS: dict[str, MakeContent] = {
    "300,000 tensors": lambda _: empty_tensors(300_000),
    "62,000 empty tensors": lambda _: empty_tensors(62_000),
    "a size of 2^62": lambda _: header(b"{}", size=1 << 62),
    "a size of 2^64-1": lambda _: header(b"{}", size=(1 << 64) - 1),
    "an incomplete header": lambda _: header(b'{"w":', size=400),
    "a negative shape": lambda _: header(tensor(shape=(-2,)), bytes(8)),
    "negative offsets": lambda _: header(tensor(offsets=(-8, 0)), bytes(8)),
    "reversed offsets": lambda _: header(tensor(offsets=(8, 0)), bytes(8)),
    "offsets past the end": lambda _: header(tensor(offsets=(1 << 40, (1 << 40) + 8)), bytes(8)),
    "a shape that overflows": lambda _: header(tensor(shape=(1 << 33, 1 << 33)), bytes(8)),
    "an unknown type": lambda _: header(tensor(dtype="PICKLE"), bytes(8)),
    "a path as a name": lambda _: header(tensor(name="../../../canary"), bytes(8)),
    "a name twice": lambda _: header(tensor()[:-1] + b"," + tensor()[1:], bytes(8)),
    "deeply nested": lambda _: header(b'{"w":' * 200_000),
    "a list": lambda _: header(b"[" * 1_000 + b"]" * 1_000),
    "not UTF-8": lambda _: header(b"\xff\xfe{}"),
}
JSONS: dict[str, bytes] = {
    "deeply nested": b'{"model":' * 500_000,
    "deeply nested lists": b"[" * 900_000,
    "349,000 lists": b"[" + b"[]," * 349_000 + b"[]]",
    "a number of 900,000 digits": b'{"format_version": ' + b"9" * 900_000 + b"}",
    "a huge exponent": b'{"format_version": 1e999999999}',
    "half a surrogate pair": b'{"format_version": "\\ud800"}',
    "not UTF-8": b"\xff\xfe\x00",
    "2 MB of spaces": b" " * (2 << 20),
}


def sizes(**changes: Any) -> bytes:
    """Return config.json of the model with other values."""
    model = ModelConfig(vocab_size=300, d_model=8, n_layers=1, n_heads=2, d_ff=16)
    content = json.loads(to_json(Config(model=model)))
    content["model"].update(changes)
    return json.dumps(content).encode()


CONFIGS: dict[str, bytes] = {
    "d_model of 10^9": sizes(d_model=10**9),
    "d_model of 10^6": sizes(d_model=10**6),
    "10^4 layers": sizes(n_layers=10**4),
    "d_ff of 10^6": sizes(d_ff=10**6),
    "d_k of 10^6": sizes(d_k=10**6),
    "10^6 learned positions": sizes(positions="learned", max_positions=10**6),
    "vocabulary of 10^6": sizes(vocab_size=10**6),
    "-1 layers": sizes(n_layers=-1),
    "a size that is text": sizes(d_model="__import__('os').system('touch canary')"),
    "an unknown key": sizes(hook="os.system"),
    "a key twice": sizes().replace(b'"d_model": 8', b'"d_model": 8, "d_model": 1000000'),
    "not a number": sizes().replace(b'"dropout": 0.1', b'"dropout": NaN'),
}


def forged_weights(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    tensors = safetensors.torch.load(content_of(folder))
    return safetensors.torch.save({**tensors, name: change(tensors[name])})


BIAS = "encoder.0.feed_forward.w_1.bias"
WEIGHTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "not a number": lambda values: torch.full_like(values, float("nan")),
    "infinity": lambda values: torch.full_like(values, float("inf")),
    "integers": lambda values: values.int(),
    "booleans": lambda values: values > 0,
    "another shape": lambda values: values[:-1].clone(),
    "another dimension": lambda values: values[None],
}


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / "manifest.json").read_bytes())
    change(content["files"])
    (folder / "manifest.json").write_bytes(encode_json(content))


def link_a_file(folder: Path) -> None:
    (folder.parent / "outside.json").write_bytes(content_of(folder, "config.json"))
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder.parent / "outside.json")


def link_to_a_device(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


def link_the_manifest_to_a_device(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to("/dev/zero")


def make_a_pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def make_a_sparse_file(folder: Path) -> None:
    """Make the file a sparse one of 1 TB, and write a manifest that fits."""
    os.truncate(folder / "model.safetensors", 1 << 40)
    change_manifest(folder, lambda files: files["model.safetensors"].update({"size": 1 << 40}))


FOLDERS: dict[str, Callable[[Path], None]] = {
    "a file in the parent folder": lambda folder: change_manifest(
        folder, lambda files: files.update({"../x.json": files["config.json"]})
    ),
    "an absolute path": lambda folder: change_manifest(
        folder, lambda files: files.update({"/etc/passwd": files["config.json"]})
    ),
    "a file in a subfolder": lambda folder: change_manifest(
        folder, lambda files: files.update({"a/b.json": files["config.json"]})
    ),
    "a pickle in the manifest": lambda folder: change_manifest(
        folder, lambda files: files.update({"model.bin": files["config.json"]})
    ),
    "a negative size": lambda folder: change_manifest(folder, lambda files: files["config.json"].update({"size": -1})),
    "a manifest of 2 MB": lambda folder: (folder / "manifest.json").write_bytes(bytes(2 << 20)) and None,
    "a manifest with a key twice": lambda folder: (
        (folder / "manifest.json").write_text(
            (folder / "manifest.json").read_text().replace('"files":', '"files": {},\n  "files":')
        )
        and None
    ),
    "a link": link_a_file,
    "a link to a device": link_to_a_device,
    "a manifest that is a link to a device": link_the_manifest_to_a_device,
    "a pipe": make_a_pipe,
    "a sparse file of 1 TB": make_a_sparse_file,
}

# ---- refusals ----------------------------------------------------------------------------------------------------


def measure(load: Callable[[], object], results: Any) -> None:
    """Put the result of `load`, its seconds, and the bytes that it added to the peak memory into `results`."""
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_at = time.process_time()
    try:
        load()
        ending = "it was loaded"
    except UserError as mistake:
        ending = f"refused: {mistake}"
    except BaseException as problem:
        ending = repr(problem)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    results.put((ending, time.process_time() - started_at, kilobytes * 1024))


def refusal(load: Callable[[], object], canary: Path) -> str:
    """Return the message of the UserError that `load` raises within the limits on time and memory.

    `load` runs in a forked process, which starts with the memory of this one: the rise of its peak is due to `load`.
    """
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=measure, args=(load, results))
    process.start()
    process.join(20)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, f"exit code {process.exitcode}"
    ending, seconds, size = results.get()
    assert ending.startswith("refused: ") and len(ending) < 2_000, ending[:2_000]
    assert seconds < MAX_SECONDS and size < MAX_BYTES, (ending[:200], seconds, size)
    assert not canary.exists()
    return ending


@pytest.fixture
def model(originals: Path, tmp_path: Path) -> Path:
    shutil.copytree(originals / "model", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.mark.parametrize("make", EXECUTABLE)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_pickle_instead_of_a_file_is_refused(model: Path, canary: Path, make: MakeContent, name: str) -> None:
    forge(model, name, make(canary))
    assert name in refusal(lambda: load_model(model), canary)


def test_unpickling_creates_the_canary(canary: Path) -> None:
    """Check that the content is hostile: without this, the other tests could not fail."""
    pickle.loads(pickle_content(canary))  # noqa: S301
    assert canary.exists()


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "weights.npz", "__init__.py", ".metadata"])
def test_a_pickle_next_to_the_files_is_ignored(model: Path, canary: Path, name: str) -> None:
    (model / name).write_bytes(pickle_content(canary))
    load_model(model)
    assert not canary.exists()


def test_a_pickle_after_the_tensors_is_refused(model: Path, canary: Path) -> None:
    forge(model, "model.safetensors", content_of(model) + pickle_content(canary))
    assert "model.safetensors" in refusal(lambda: load_model(model), canary)


@pytest.mark.parametrize("kind", HEADERS)
def test_a_hostile_header_of_a_model_is_refused(model: Path, canary: Path, kind: str) -> None:
    forge(model, "model.safetensors", HEADERS[kind](canary))
    assert "model.safetensors" in refusal(lambda: load_model(model), canary)


@pytest.mark.parametrize("kind", HEADERS)
def test_a_hostile_header_of_a_checkpoint_is_refused(originals: Path, canary: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "step-00000005"
    shutil.copytree(originals / "checkpoints" / path.name, path)
    forge(path, "optimizer.safetensors", HEADERS[kind](canary))
    if kind in ("62,000 empty tensors", "a path as a name"):  # harmless: tensors are looked up by name
        assert load_checkpoint(path).state == stored_state(5)
        return
    assert "optimizer.safetensors" in refusal(lambda: load_checkpoint(path), canary)


@pytest.mark.parametrize("kind", JSONS)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_hostile_json_of_a_model_is_refused(model: Path, canary: Path, kind: str, name: str) -> None:
    forge(model, name, JSONS[kind])
    assert name in refusal(lambda: load_model(model), canary)


@pytest.mark.parametrize("kind", JSONS)
def test_hostile_json_as_the_state_of_a_checkpoint_is_refused(
    originals: Path, canary: Path, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "step-00000005"
    shutil.copytree(originals / "checkpoints" / path.name, path)
    forge(path, "state.json", JSONS[kind])
    assert "state.json" in refusal(lambda: load_checkpoint(path), canary)


@pytest.mark.parametrize("kind", JSONS)
def test_hostile_json_as_a_line_of_the_log_is_refused(canary: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "log.jsonl").write_bytes(JSONS[kind] + b"\n")
    assert "log.jsonl:1" in refusal(lambda: read_log(tmp_path), canary)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_hostile_configuration_is_refused(model: Path, canary: Path, kind: str) -> None:
    forge(model, "config.json", CONFIGS[kind])
    assert str(model) in refusal(lambda: load_model(model), canary)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_hostile_weights_are_refused(model: Path, canary: Path, kind: str) -> None:
    forge(model, "model.safetensors", forged_weights(model, BIAS, WEIGHTS[kind]))
    assert BIAS in refusal(lambda: load_model(model), canary)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_hostile_folder_is_refused(model: Path, canary: Path, kind: str) -> None:
    FOLDERS[kind](model)
    assert str(model) in refusal(lambda: load_model(model), canary)


def test_the_mean_with_a_forged_checkpoint_is_refused(originals: Path, canary: Path, tmp_path: Path) -> None:
    paths = [originals / "checkpoints" / "step-00000005", tmp_path / "step-00000006"]
    shutil.copytree(*paths)
    forge(paths[1], "model.safetensors", torch_content(canary))
    assert "step-00000006" in refusal(lambda: average(paths), canary)


# ---- pickles -----------------------------------------------------------------------------------------------------


def test_loading_never_unpickles(model: Path, originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a pickle is read")

    for owner, name in [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load"), (np, "load")]:
        monkeypatch.setattr(owner, name, fail)
    load_model(model)
    load_checkpoint(originals / "checkpoints" / "step-00000005")
