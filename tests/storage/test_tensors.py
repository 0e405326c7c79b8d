"""Safetensors files: equal to the library's; damaged ones are refused; the mean of checkpoints."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support.checkpoints import are_equal, random_checkpoint
from torch import Tensor

from transduce.errors import UserError
from transduce.storage.atomic_folder import write_folder
from transduce.storage.checkpoints import load_checkpoint, save_checkpoint
from transduce.storage.tensors import average, encode_tensors, read_tensors, tensor_shapes

# ---- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_safetensors_library_reads_the_file_and_would_write_the_same_size(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """Tensors of any layout: scalar, empty, transposed, a slice."""
    matrix = torch.randn(4, 6, dtype=dtype)
    scalar = torch.tensor(2.5, dtype=dtype)
    tensors = {"a": matrix, "b.ü": matrix.T, "c": matrix[1:3, 2:], "d": scalar, "e": matrix[:0]}
    write_folder(tmp_path / "x", {"model.safetensors": encode_tensors(tensors)})
    content = (tmp_path / "x" / "model.safetensors").read_bytes()
    assert are_equal(safetensors.torch.load(content), tensors)
    assert (int.from_bytes(content[:8], "little") + 8) % 8 == 0
    contiguous = {name: values.contiguous() for name, values in tensors.items()}
    assert len(content) == len(safetensors.torch.save(contiguous))
    assert are_equal(read_tensors(tmp_path / "x", "model.safetensors"), tensors)
    assert tensor_shapes(tmp_path / "x", "model.safetensors") == {
        name: values.shape for name, values in tensors.items()
    }
    assert b"".join(encode_tensors(dict(reversed(tensors.items())))) == content


def file_of(header: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04\x95",
        file_of(b"{"),
        file_of(b"[]"),
        (1 << 62).to_bytes(8, "little") + b"{}",
        file_of({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes(8)),
        file_of({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 16]}}, bytes(16)),
        file_of({"a": {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}}, bytes(16)),
        file_of({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, bytes(99)),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    write_folder(tmp_path / "x", {"model.safetensors": [content]})
    with pytest.raises(UserError, match="model.safetensors: expected readable tensors"):
        read_tensors(tmp_path / "x", "model.safetensors")
    with pytest.raises(UserError, match="model.safetensors: expected readable tensors"):
        average([tmp_path / "x"])


# ---- the mean of checkpoints -------------------------------------------------------------------------------------


def save_weights(run: Path, step: int, weights: dict[str, Tensor]) -> Path:
    return save_checkpoint(run, dataclasses.replace(random_checkpoint(step), weights=weights))


def test_the_average_is_the_mean_in_float64(tmp_path: Path) -> None:
    paths = [save_checkpoint(tmp_path, random_checkpoint(step)) for step in range(1, 6)]
    for name, values in average(paths).items():
        exact = torch.stack([load_checkpoint(path).weights[name].double() for path in paths]).mean(0)
        assert values.dtype == torch.float32
        assert torch.equal(values, exact.float())
    assert are_equal(average(paths[:1]), load_checkpoint(paths[0]).weights)


def test_the_average_has_digits_that_sums_in_float32_lose(tmp_path: Path) -> None:
    weights = [{"w": torch.tensor([value])} for value in (1e8, 1.0, -1e8, 1.0)]
    paths = [save_weights(tmp_path, step, tensors) for step, tensors in enumerate(weights, start=1)]
    assert average(paths)["w"].item() == 0.5


@pytest.mark.parametrize(
    "other", [{"w": torch.zeros(4)}, {"v": torch.zeros(3)}, {}, {"w": torch.zeros(3), "v": torch.zeros(1)}]
)
def test_the_average_of_different_models_is_refused(tmp_path: Path, other: dict[str, Tensor]) -> None:
    paths = [save_weights(tmp_path, 1, {"w": torch.zeros(3)}), save_weights(tmp_path, 2, other)]
    with pytest.raises(UserError, match="step-00000002: expected the tensors of .*step-00000001"):
        average(paths)
