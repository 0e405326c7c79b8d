"""Files made to do harm: refused as a user's mistake, at once, with little memory, and nothing in them is run."""

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

MAX_SECONDS = 2  # of the processor
MAX_BYTES = 200 << 20

# ---- what is whole -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder, and a checkpoint beside it."""
    tokenizer = Tokenizer.learn(["a dog runs and a cat runs"] * 2, vocab_size=300)
    model = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=8, n_layers=1, n_heads=2, d_ff=16)
    folder = tmp_path_factory.mktemp("whole")
    tensors = weights(Transformer(model))
    save_model(folder / "model", tensors, Config(model=model), tokenizer, "# A card\n")
    save_checkpoint(folder, Checkpoint(tensors, tensors, None, {"step": 5}))
    return folder


def forge(folder: Path, name: str, content: bytes) -> None:
    """Put other content into a folder and its manifest, as only somebody who means harm does."""
    files: dict[str, Content] = {
        path.name: [path.read_bytes()] for path in folder.iterdir() if path.name != "manifest.json"
    }
    shutil.rmtree(folder)
    write_folder(folder, {**files, name: [content]})


# ---- what does harm ----------------------------------------------------------------------------------------------


class Harm:
    """Writes the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def pickled(canary: Path) -> bytes:
    return pickle.dumps(Harm(canary))


def torch_saved(canary: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": Harm(canary)}, file)
    return file.getvalue()


def torch_saved_as_of_old(canary: Path) -> bytes:
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
    """Of 256 MB, in 256 kB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", bytes(256 << 20))
    return file.getvalue()


def header(text: bytes, values: bytes = b"", *, size: int | None = None) -> bytes:
    """A safetensors file with this header. size: what it gives as the length of the header."""
    return struct.pack("<Q", len(text) if size is None else size) + text + values


def compact(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def tensor(name: str = "w", dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> bytes:
    return compact({name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


def empty_tensors(count: int) -> bytes:
    one = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return header(compact({f"{number}": one for number in range(count)}))


def whole_file(folder: Path, name: str = "model.safetensors") -> bytes:
    return (folder / name).read_bytes()


Artefact = Callable[[Path], bytes]  # from the canary to the content of a file
RUN = [pickled, torch_saved, torch_saved_as_of_old, numpy_object, numpy_objects, zip_bomb]
HEADERS: dict[str, Artefact] = {
    "of 300,000 tensors": lambda _: empty_tensors(300_000),
    "of as many as it has room for": lambda _: empty_tensors(62_000),
    "that is said to be huge": lambda _: header(b"{}", size=1 << 62),
    "that is said to have 2^64-1 bytes": lambda _: header(b"{}", size=(1 << 64) - 1),
    "that ends before it should": lambda _: header(b'{"w":', size=400),
    "with a shape below 0": lambda _: header(tensor(shape=(-2,)), bytes(8)),
    "with offsets below 0": lambda _: header(tensor(offsets=(-8, 0)), bytes(8)),
    "with offsets turned round": lambda _: header(tensor(offsets=(8, 0)), bytes(8)),
    "with offsets past the end": lambda _: header(tensor(offsets=(1 << 40, (1 << 40) + 8)), bytes(8)),
    "with a shape that overflows": lambda _: header(tensor(shape=(1 << 33, 1 << 33)), bytes(8)),
    "of an unknown type": lambda _: header(tensor(dtype="PICKLE"), bytes(8)),
    "with a name that is a path": lambda _: header(tensor(name="../../../canary"), bytes(8)),
    "that says a name twice": lambda _: header(tensor()[:-1] + b"," + tensor()[1:], bytes(8)),
    "nested without end": lambda _: header(b'{"w":' * 200_000),
    "of a list": lambda _: header(b"[" * 1_000 + b"]" * 1_000),
    "of bytes that are not text": lambda _: header(b"\xff\xfe{}"),
}
JSONS: dict[str, bytes] = {
    "nested without end": b'{"model":' * 500_000,
    "lists without end": b"[" * 900_000,
    "a thousand thousand lists": b"[" + b"[]," * 349_000 + b"[]]",
    "a number without end": b'{"format_version": ' + b"9" * 900_000 + b"}",
    "a huge exponent": b'{"format_version": 1e999999999}',
    "half a character": b'{"format_version": "\\ud800"}',
    "no text": b"\xff\xfe\x00",
    "too much": b" " * (2 << 20),
}


def sizes(**changes: Any) -> bytes:
    """A configuration that asks for something else than the weights are."""
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
    "layers below 0": sizes(n_layers=-1),
    "sizes that are text": sizes(d_model="__import__('os').system('touch canary')"),
    "a key it does not know": sizes(hook="os.system"),
    "a key twice": sizes().replace(b'"d_model": 8', b'"d_model": 8, "d_model": 1000000'),
    "not a number": sizes().replace(b'"dropout": 0.1', b'"dropout": NaN'),
}


def bad_weights(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    tensors = safetensors.torch.load(whole_file(folder))
    return safetensors.torch.save({**tensors, name: change(tensors[name])})


BIAS = "encoder.0.feed_forward.w_1.bias"
WEIGHTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "not a number": lambda values: torch.full_like(values, float("nan")),
    "infinity": lambda values: torch.full_like(values, float("inf")),
    "whole numbers": lambda values: values.int(),
    "truth values": lambda values: values > 0,
    "another shape": lambda values: values[:-1].clone(),
    "one dimension more": lambda values: values[None],
}


def manifest_of(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / "manifest.json").read_bytes())
    change(content["files"])
    (folder / "manifest.json").write_bytes(encode_json(content))


def linked(folder: Path) -> None:
    (folder.parent / "outside.json").write_bytes(whole_file(folder, "config.json"))
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder.parent / "outside.json")


def linked_to_a_device(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


def manifest_linked_to_a_device(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to("/dev/zero")


def a_pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def mostly_a_hole(folder: Path) -> None:
    """A file of 1 TB that takes no room, with a manifest that says so."""
    os.truncate(folder / "model.safetensors", 1 << 40)
    manifest_of(folder, lambda files: files["model.safetensors"].update({"size": 1 << 40}))


FOLDERS: dict[str, Callable[[Path], None]] = {
    "a file above": lambda folder: manifest_of(folder, lambda files: files.update({"../x.json": files["config.json"]})),
    "an absolute path": lambda folder: manifest_of(
        folder, lambda files: files.update({"/etc/passwd": files["config.json"]})
    ),
    "a file in a folder": lambda folder: manifest_of(
        folder, lambda files: files.update({"a/b.json": files["config.json"]})
    ),
    "a pickle in the manifest": lambda folder: manifest_of(
        folder, lambda files: files.update({"model.bin": files["config.json"]})
    ),
    "a size below 0": lambda folder: manifest_of(folder, lambda files: files["config.json"].update({"size": -1})),
    "a manifest of 2 MB": lambda folder: (folder / "manifest.json").write_bytes(bytes(2 << 20)) and None,
    "a manifest that says something twice": lambda folder: (
        (folder / "manifest.json").write_text(
            (folder / "manifest.json").read_text().replace('"files":', '"files": {},\n  "files":')
        )
        and None
    ),
    "a link": linked,
    "a link to a device": linked_to_a_device,
    "a manifest that is a link to a device": manifest_linked_to_a_device,
    "a pipe": a_pipe,
    "a file of 1 TB that takes no room": mostly_a_hole,
}

# ---- refused, at once, with little memory ------------------------------------------------------------------------


def refuse(load: Callable[[], object], told: Any) -> None:
    """In a process of its own: how it ended, how long it took, and what memory it added at its peak."""
    torch.set_num_threads(1)
    before, began_at = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        load()
        ended = "it was loaded"
    except UserError as mistake:
        ended = f"refused: {mistake}"
    except BaseException as problem:
        ended = repr(problem)
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    told.put((ended, time.process_time() - began_at, added * 1024))


def is_refused(load: Callable[[], object], canary: Path) -> str:
    """The message. A fork begins with this process's memory, so that its peak says what was added."""
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    process = context.Process(target=refuse, args=(load, told))
    process.start()
    process.join(20)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, f"it ended with {process.exitcode}"
    ended, seconds, added = told.get()
    assert ended.startswith("refused: ") and len(ended) < 2_000, ended[:2_000]
    assert seconds < MAX_SECONDS and added < MAX_BYTES, (ended[:200], seconds, added)
    assert not canary.exists()
    return ended


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole / "model", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.mark.parametrize("make", RUN)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_pickle_under_the_name_of_a_file_of_ours(model: Path, canary: Path, make: Artefact, name: str) -> None:
    forge(model, name, make(canary))
    assert name in is_refused(lambda: load_model(model), canary)


def test_the_pickles_do_harm(canary: Path) -> None:
    """To whoever unpickles them: otherwise the canary would say nothing."""
    pickle.loads(pickled(canary))  # noqa: S301
    assert canary.exists()


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "weights.npz", "__init__.py", ".metadata"])
def test_a_pickle_beside_the_files_is_not_touched(model: Path, canary: Path, name: str) -> None:
    (model / name).write_bytes(pickled(canary))
    load_model(model)
    assert not canary.exists()


def test_a_pickle_behind_the_tensors(model: Path, canary: Path) -> None:
    forge(model, "model.safetensors", whole_file(model) + pickled(canary))
    assert "model.safetensors" in is_refused(lambda: load_model(model), canary)


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header(model: Path, whole: Path, canary: Path, tmp_path: Path, kind: str) -> None:
    """Of a model, and of a checkpoint, of which less is known beforehand."""
    forge(model, "model.safetensors", HEADERS[kind](canary))
    assert "model.safetensors" in is_refused(lambda: load_model(model), canary)


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_of_a_checkpoint(whole: Path, canary: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "step-00000005"
    shutil.copytree(whole / "checkpoints" / path.name, path)
    forge(path, "optimizer.safetensors", HEADERS[kind](canary))
    if kind in ("of as many as it has room for", "with a name that is a path"):  # tensors are asked for by their names
        assert load_checkpoint(path).state == {"step": 5}
        return
    assert "optimizer.safetensors" in is_refused(lambda: load_checkpoint(path), canary)


@pytest.mark.parametrize("kind", JSONS)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_json(model: Path, canary: Path, kind: str, name: str) -> None:
    forge(model, name, JSONS[kind])
    assert name in is_refused(lambda: load_model(model), canary)


@pytest.mark.parametrize("kind", JSONS)
def test_json_as_the_state_of_a_checkpoint(whole: Path, canary: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "step-00000005"
    shutil.copytree(whole / "checkpoints" / path.name, path)
    forge(path, "state.json", JSONS[kind])
    assert "state.json" in is_refused(lambda: load_checkpoint(path), canary)


@pytest.mark.parametrize("kind", JSONS)
def test_json_as_a_line_of_the_log(canary: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "log.jsonl").write_bytes(JSONS[kind] + b"\n")
    assert "log.jsonl:1" in is_refused(lambda: read_log(tmp_path), canary)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_configuration(model: Path, canary: Path, kind: str) -> None:
    forge(model, "config.json", CONFIGS[kind])
    assert str(model) in is_refused(lambda: load_model(model), canary)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights(model: Path, canary: Path, kind: str) -> None:
    forge(model, "model.safetensors", bad_weights(model, BIAS, WEIGHTS[kind]))
    assert BIAS in is_refused(lambda: load_model(model), canary)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder(model: Path, canary: Path, kind: str) -> None:
    FOLDERS[kind](model)
    assert str(model) in is_refused(lambda: load_model(model), canary)


def test_the_mean_of_a_checkpoint_and_a_forged_one(whole: Path, canary: Path, tmp_path: Path) -> None:
    paths = [whole / "checkpoints" / "step-00000005", tmp_path / "step-00000006"]
    shutil.copytree(*paths)
    forge(paths[1], "model.safetensors", torch_saved(canary))
    assert "step-00000006" in is_refused(lambda: average(paths), canary)


# ---- no reader of pickles ----------------------------------------------------------------------------------------


def test_reading_calls_no_reader_of_pickles(model: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to(*given: object, **more: object) -> None:
        raise AssertionError("a pickle is read")

    for owner, name in [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load"), (np, "load")]:
        monkeypatch.setattr(owner, name, refuse_to)
    load_model(model)
    load_checkpoint(whole / "checkpoints" / "step-00000005")
