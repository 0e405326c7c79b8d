"""Tensors in safetensors files. Never a pickle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from transduce.errors import UserError
from transduce.storage.atomic_folder import Content, listed_file, listed_files, read_verified

Tensors = dict[str, Tensor]

# ---- files ---------------------------------------------------------------------------------------------------------

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
MAX_HEADER_BYTES = 4 << 20  # some 30,000 tensors


def encode_tensors(tensors: Tensors) -> Content:
    """A safetensors file: the length of its header, the header, then the values, which are not copied on a CPU.

    The same tensors, in whatever order they are given, make the same bytes.
    """
    header, end = {}, 0
    for name, values in sorted(tensors.items()):
        place = [end, end := end + values.nbytes]
        header[name] = {"dtype": DTYPES[values.dtype], "shape": [*values.shape], "data_offsets": place}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)  # so that values are aligned
    pieces = (tensors[name].detach().cpu().reshape(-1).view(torch.uint8) for name in header)
    return [len(text).to_bytes(8, "little") + text, *(piece.numpy().data for piece in pieces)]


class _Header(msgspec.Struct):
    """What a safetensors file says of one of its tensors."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def tensor_shapes(path: Path, name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in one of the files of a folder, by name. Reads no more than the header.

    UserError for a header that says anything twice, or does not fit the size of its file.
    """
    where = listed_file(path, name)
    with where.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_HEADER_BYTES:
            raise _unreadable(where, f"a header of {size:,} bytes, expected at most {MAX_HEADER_BYTES:,}")
        text = file.read(size)
    try:
        content = msgspec.json.decode(text, type=dict[str, Any])
        if msgspec.json.encode(content) != text.rstrip(b" "):
            raise ValueError("its header is not in the form in which it is written")
        content.pop("__metadata__", None)
        tensors = msgspec.convert(content, dict[str, _Header])
    except (ValueError, RecursionError) as problem:
        raise _unreadable(where, problem) from None
    expected = 8 + size + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if where.stat().st_size != expected:
        raise _unreadable(where, f"{where.stat().st_size:,} bytes, expected {expected:,} by its header")
    return {name: tensor.shape for name, tensor in tensors.items()}


def read_tensors(path: Path, name: str) -> Tensors:
    tensor_shapes(path, name)  # refuses what would be costly to refuse later
    try:
        return safetensors.torch.load(read_verified(path, name))
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as problem:
        raise _unreadable(path / name, problem) from None


def _unreadable(where: Path, problem: object) -> UserError:
    return UserError(f"{where} holds no readable tensors ({problem}); use another copy")


# ---- means ------------------------------------------------------------------------------------------------------


def average(paths: Sequence[Path]) -> Tensors:
    """The mean of the weights of several checkpoints (§6.1), summed in float64, one checkpoint in memory at a time."""
    total: Tensors = {}
    for path in paths:
        listed_files(path, kind="checkpoint", needed=["model.safetensors"])
        new = read_tensors(path, "model.safetensors")
        if total and {n: t.shape for n, t in new.items()} != {n: t.shape for n, t in total.items()}:
            raise UserError(f"{path} holds another model than {paths[0]}; only checkpoints of one run can be averaged")
        total = {name: total[name] + value if total else value.double() for name, value in new.items()}
    return {name: (value / len(paths)).float() for name, value in total.items()}
