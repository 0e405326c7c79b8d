"""Tensors in safetensors files. Never a pickle."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from transduce.errors import UserError
from transduce.storage.atomic_folder import Content, listed_file, listed_files, read_verified

Tensors = dict[str, Tensor]

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32"}
MAX_HEADER_BYTES = 4 << 20  # some 30,000 tensors


def encode_tensors(tensors: Tensors) -> Content:
    """Return a safetensors file in parts: length of the header, header, values. It copies no value on a CPU.

    The bytes do not depend on the order of the tensors.
    """
    header = {}
    end = 0
    for name, values in sorted(tensors.items()):
        offsets = [end, end := end + values.nbytes]
        header[name] = {"dtype": DTYPES[values.dtype], "shape": [*values.shape], "data_offsets": offsets}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)  # aligns the values
    pieces = (tensors[name].detach().cpu().reshape(-1).view(torch.uint8) for name in header)
    return [len(text).to_bytes(8, "little") + text, *(piece.numpy().data for piece in pieces)]


class _Header(msgspec.Struct):
    """The entry of a tensor in the header of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def tensor_shapes(path: Path, name: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in the file `name` of the folder `path`. Reads only the header.

    Raises UserError for a header with a repeated key, or one that does not fit the size of its file.
    """
    file_path = listed_file(path, name)
    with file_path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_HEADER_BYTES:
            raise _unreadable(file_path, f"its header has {size:,} bytes, at most {MAX_HEADER_BYTES:,} are allowed")
        text = file.read(size)
    try:
        content = msgspec.json.decode(text, type=dict[str, object])
        if msgspec.json.encode(content) != text.rstrip(b" "):
            raise ValueError("its header is not in the form in which transduce writes it")
        content.pop("__metadata__", None)
        tensors = msgspec.convert(content, dict[str, _Header])
    except (ValueError, RecursionError) as problem:
        raise _unreadable(file_path, problem) from None
    expected = 8 + size + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if file_path.stat().st_size != expected:
        raise _unreadable(file_path, f"it has {file_path.stat().st_size:,} bytes, but {expected:,} by its header")
    return {name: tensor.shape for name, tensor in tensors.items()}


def read_tensors(path: Path, name: str) -> Tensors:
    """Return the tensors in the file `name` of the folder `path`, by name. Raises UserError if they are damaged."""
    tensor_shapes(path, name)  # to check the header before reading the whole file
    try:
        return safetensors.torch.load(read_verified(path, name))
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as problem:
        raise _unreadable(path / name, problem) from None


def _unreadable(file_path: Path, problem: object) -> UserError:
    return UserError(f"{file_path}: expected readable tensors ({problem}); use another copy")


def average(paths: Sequence[Path]) -> Tensors:
    """Return the mean of the weights of several checkpoints (§6.1), summed in float64.

    One checkpoint is in memory at a time. Raises UserError if their names or shapes differ.
    """
    total: Tensors = {}
    for path in paths:
        listed_files(path, kind="checkpoint", needed=["model.safetensors"])
        new = read_tensors(path, "model.safetensors")
        if total and {n: t.shape for n, t in new.items()} != {n: t.shape for n, t in total.items()}:
            raise UserError(f"{path}: expected the tensors of {paths[0]}; average checkpoints of one run")
        total = {name: total[name] + values if total else values.double() for name, values in new.items()}
    return {name: (values / len(paths)).float() for name, values in total.items()}
