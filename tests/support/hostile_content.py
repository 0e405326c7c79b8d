"""The content of hostile files and folders: pickles, bombs, and headers, JSON and weights that are false."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from transduce.config.files import to_json
from transduce.config.schema import Config, ModelConfig
from transduce.storage.atomic_folder import encode_json


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
    "10^4 layers of the decoder": sizes(n_decoder_layers=10**4),
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
