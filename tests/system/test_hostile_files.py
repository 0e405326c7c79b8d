"""Hostile files: refused with a UserError, within 2 s and 200 MB, and never executed."""

import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import stored_state
from support.hostile_content import (
    BIAS,
    CONFIGS,
    EXECUTABLE,
    FOLDERS,
    HEADERS,
    JSONS,
    WEIGHTS,
    MakeContent,
    content_of,
    forged_weights,
    pickle_content,
    torch_content,
)
from support.measured import measured

from transduce.config.schema import Config, ModelConfig
from transduce.data.tokenizer import Tokenizer
from transduce.model.transformer import Transformer
from transduce.storage.atomic_folder import Content, write_folder
from transduce.storage.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from transduce.storage.model_folder import load_model, save_model
from transduce.storage.run_log import evaluations
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


# ---- refusals ----------------------------------------------------------------------------------------------------


def refusal(load: Callable[[], object], canary: Path) -> str:
    """Return the message of the UserError that `load` raises within the limits on time and memory."""
    ending, seconds, size = measured(load)
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
    assert name in refusal(partial(load_model, model), canary)


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
    assert "model.safetensors" in refusal(partial(load_model, model), canary)


@pytest.mark.parametrize("kind", HEADERS)
def test_a_hostile_header_of_a_model_is_refused(model: Path, canary: Path, kind: str) -> None:
    forge(model, "model.safetensors", HEADERS[kind](canary))
    assert "model.safetensors" in refusal(partial(load_model, model), canary)


@pytest.mark.parametrize("kind", HEADERS)
def test_a_hostile_header_of_a_checkpoint_is_refused(originals: Path, canary: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "step-00000005"
    shutil.copytree(originals / "checkpoints" / path.name, path)
    forge(path, "optimizer.safetensors", HEADERS[kind](canary))
    if kind in ("62,000 empty tensors", "a path as a name"):  # harmless: tensors are looked up by name
        assert load_checkpoint(path).state == stored_state(5)
        return
    assert "optimizer.safetensors" in refusal(partial(load_checkpoint, path), canary)


@pytest.mark.parametrize("kind", JSONS)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_hostile_json_of_a_model_is_refused(model: Path, canary: Path, kind: str, name: str) -> None:
    forge(model, name, JSONS[kind])
    assert name in refusal(partial(load_model, model), canary)


@pytest.mark.parametrize("kind", JSONS)
def test_hostile_json_as_the_state_of_a_checkpoint_is_refused(
    originals: Path, canary: Path, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "step-00000005"
    shutil.copytree(originals / "checkpoints" / path.name, path)
    forge(path, "state.json", JSONS[kind])
    assert "state.json" in refusal(partial(load_checkpoint, path), canary)


@pytest.mark.parametrize("kind", JSONS)
def test_hostile_json_as_a_line_of_the_log_is_refused(canary: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "log.jsonl").write_bytes(JSONS[kind] + b"\n")
    assert "log.jsonl:1" in refusal(partial(evaluations, tmp_path), canary)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_hostile_configuration_is_refused(model: Path, canary: Path, kind: str) -> None:
    forge(model, "config.json", CONFIGS[kind])
    assert str(model) in refusal(partial(load_model, model), canary)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_hostile_weights_are_refused(model: Path, canary: Path, kind: str) -> None:
    forge(model, "model.safetensors", forged_weights(model, BIAS, WEIGHTS[kind]))
    assert BIAS in refusal(partial(load_model, model), canary)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_hostile_folder_is_refused(model: Path, canary: Path, kind: str) -> None:
    FOLDERS[kind](model)
    assert str(model) in refusal(partial(load_model, model), canary)


def test_the_mean_with_a_forged_checkpoint_is_refused(originals: Path, canary: Path, tmp_path: Path) -> None:
    paths = [originals / "checkpoints" / "step-00000005", tmp_path / "step-00000006"]
    shutil.copytree(*paths)
    forge(paths[1], "model.safetensors", torch_content(canary))
    assert "step-00000006" in refusal(partial(average, paths), canary)


# ---- pickles -----------------------------------------------------------------------------------------------------


def test_loading_never_unpickles(model: Path, originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a pickle is read")

    for owner, name in [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load"), (np, "load")]:
        monkeypatch.setattr(owner, name, fail)
    load_model(model)
    load_checkpoint(originals / "checkpoints" / "step-00000005")
