"""Folders on disk: checkpoints of a run, and the model to use. Tensors, JSON and a manifest; never a pickle.

    RUN/checkpoints/step-00012345/   {model,optimizer,rng}.safetensors, state.json, and ema.safetensors if there is one
    MODEL/                           model.safetensors, config.json, tokenizer.json, README.md

Each folder holds a manifest.json with the size and SHA-256 of every other file (but README.md, which may be edited).
A folder is written beside its place under another name, flushed to disk, and renamed: it is there whole or not at all.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from transduce.config import Config, ModelConfig, from_json, to_json
from transduce.errors import UserError
from transduce.model import Transformer
from transduce.tokens import Tokenizer

FORMAT_VERSION = 1
Tensors = dict[str, Tensor]

# ---- folders: atomic, and verified -------------------------------------------------------------------------------


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` and their manifest as the folder `path`, whole or not at all. An older `path` is replaced.

    After an OSError everything is as before. Whoever dies while a folder is replaced leaves the old one beside its
    place, as .tmp-old-NAME-PID.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    building = path.parent / f".tmp-{path.name}-{os.getpid()}"
    shutil.rmtree(building, ignore_errors=True)
    try:
        _fill(building, files)
        _put_in_place(building, path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    _sync(path.parent)


def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make `folder` with `files` and, last, their manifest, all of it on the disk and not only on its way there."""
    folder.mkdir()
    listed = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
        if name != "README.md"
    }
    manifest = msgspec.json.encode({"format_version": FORMAT_VERSION, "files": listed})
    for name, content in {**files, "manifest.json": msgspec.json.format(manifest)}.items():
        _write_synced(folder / name, content)
    _sync(folder)


def _put_in_place(building: Path, path: Path) -> None:
    if not path.exists():
        building.rename(path)
        return
    old = path.parent / f".tmp-old-{path.name}-{os.getpid()}"
    path.rename(old)
    try:
        building.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Write `path`, whole or not at all, and as durably as a folder. An older one is replaced."""
    building = path.with_name(f".tmp-{path.name}")
    _write_synced(building, content)
    building.replace(path)
    _sync(path.parent)


def _write_synced(path: Path, content: bytes) -> None:
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:  # which does not say where
        raise OSError(problem.errno, f"{problem.strerror}, writing {len(content):,} bytes", str(path)) from problem


def _sync(folder: Path) -> None:
    """Make the names in `folder` durable, where the system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_folder(path: Path) -> dict[str, bytes]:
    """Every file that the manifest of `path` lists, checked against it. UserError if anything is missing or differs."""
    if not path.is_dir():
        raise UserError(f"{path}: no such folder")
    manifest = path / "manifest.json"
    if not manifest.is_file():
        raise UserError(f"{path} is not a folder written by transduce: it has no manifest.json; give another one")
    try:
        content = msgspec.json.decode(manifest.read_bytes())
        version, listed = content["format_version"], content["files"]
        expected = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in listed.items()}
    except (msgspec.DecodeError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{manifest} is damaged; use another copy of {path}") from None
    if version != FORMAT_VERSION:
        raise UserError(f"{path} has format version {version}, this program reads {FORMAT_VERSION}; update transduce")
    return {name: _read_verified(path, name, size, sha256) for name, (size, sha256) in expected.items()}


def _read_verified(path: Path, name: str, size: int, sha256: str) -> bytes:
    file = path / name
    if not re.fullmatch(r"[a-z]+\.(json|safetensors)", name) or file.is_symlink():
        raise UserError(
            f"{path}/manifest.json lists {name!r}, which is not a file of a transduce folder; use another copy"
        )
    if not file.is_file() or file.stat().st_size != size:
        found = f"has {file.stat().st_size} bytes" if file.is_file() else "is missing"
        raise UserError(f"{file} {found}, expected {size} bytes; the folder is incomplete, use another copy")
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{file} differs from its manifest; it is damaged or was changed, use another copy")
    return content


def _read_parts(path: Path, kind: str, names: Sequence[str]) -> dict[str, bytes]:
    """`read_folder` of a folder that must hold `names`, for it is to be a `kind`."""
    files = read_folder(path)
    for name in names:
        if name not in files:
            raise UserError(f"{path} is not a {kind}: it has no {name}; use another copy, or another folder")
    return files


def _tensors(content: bytes, where: Path) -> Tensors:
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as problem:
        raise UserError(f"{where} holds no readable tensors ({problem}); use another copy") from None


# ---- weights -----------------------------------------------------------------------------------------------------


def weights(model: nn.Module) -> Tensors:
    """A copy of the parameters by name, on the CPU; a tied matrix is there once."""
    return {name: p.detach().to("cpu", copy=True).contiguous() for name, p in model.named_parameters()}


def set_weights(model: nn.Module, given: Tensors, where: Path | str) -> None:
    """Copy `given` into the parameters of `model`. UserError if a name or a shape differs, or a value is not finite."""
    _refuse_misfit(model, given, where)
    _refuse_nonfinite(given, where, "use another copy")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(given[name])


def _refuse_misfit(model: nn.Module, given: Tensors, where: Path | str) -> None:
    expected = dict(model.named_parameters())
    names = sorted(expected.keys() ^ given.keys())
    if names:
        raise UserError(f"{where} does not fit its configuration: {names[0]} is in only one of them; use another copy")
    for name, parameter in expected.items():
        if given[name].shape != parameter.shape:
            shapes = f"{tuple(given[name].shape)}, expected {tuple(parameter.shape)}"
            raise UserError(f"{where} does not fit its configuration: {name} has the shape {shapes}; use another copy")
        if not given[name].is_floating_point():
            raise UserError(
                f"{where}: {name} holds {given[name].dtype}, expected floating-point numbers; use another copy"
            )


def _refuse_nonfinite(given: Tensors, where: Path | str, remedy: str) -> None:
    for name, values in given.items():
        if not values.isfinite().all():
            raise UserError(f"{where}: {name} holds values that are not finite numbers; {remedy}")


def average(paths: Sequence[Path]) -> Tensors:
    """The mean of the weights of several checkpoints (§6.1), summed in float64, one checkpoint in memory at a time."""
    total: Tensors = {}
    for path in paths:
        files = _read_parts(path, "checkpoint", ["model.safetensors"])
        new = _tensors(files["model.safetensors"], path / "model.safetensors")
        if total and {n: t.shape for n, t in new.items()} != {n: t.shape for n, t in total.items()}:
            raise UserError(f"{path} holds another model than {paths[0]}; only checkpoints of one run can be averaged")
        total = {name: total[name] + value if total else value.double() for name, value in new.items()}
    return {name: (value / len(paths)).float() for name, value in total.items()}


# ---- checkpoints of a run ----------------------------------------------------------------------------------------


MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json")
CHECKPOINT_FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped.

    optimizer: Adam's moments by parameter, as "exp_avg/NAME" and "exp_avg_sq/NAME"; rng: generator states;
    ema: averaged weights, or None; state: step, data position, best-so-far and the like, as JSON values.
    """

    weights: Tensors
    optimizer: Tensors
    rng: Tensors
    ema: Tensors | None
    state: dict[str, Any]


def checkpoint_path(run: Path, step: int) -> Path:
    """RUN/checkpoints/step-00012345."""
    return run / "checkpoints" / f"step-{step:08d}"


def save_checkpoint(run: Path, checkpoint: Checkpoint) -> Path:
    """Write `checkpoint` under its step and return its folder. UserError if any of its numbers is not finite."""
    path = checkpoint_path(run, checkpoint.state["step"])
    for tensors in (checkpoint.weights, checkpoint.optimizer, checkpoint.ema or {}):
        _refuse_nonfinite(
            tensors,
            f"not saved as {path}",
            "begin anew with a lower train.lr_factor or more train.warmup_steps; if the machine was at fault, --resume",
        )
    files = {
        "model.safetensors": safetensors.torch.save(checkpoint.weights),
        "optimizer.safetensors": safetensors.torch.save(checkpoint.optimizer),
        "rng.safetensors": safetensors.torch.save(checkpoint.rng),
        "state.json": msgspec.json.encode(checkpoint.state),
    }
    if checkpoint.ema is not None:
        files["ema.safetensors"] = safetensors.torch.save(checkpoint.ema)
    write_folder(path, files)
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. UserError if it is incomplete or damaged."""
    files = _read_parts(path, "checkpoint", CHECKPOINT_FILES)
    tensors = {name: _tensors(files[name], path / name) for name in files if name.endswith(".safetensors")}
    return Checkpoint(
        tensors["model.safetensors"],
        tensors["optimizer.safetensors"],
        tensors["rng.safetensors"],
        tensors.get("ema.safetensors"),
        _state(files["state.json"], path),
    )


def _state(content: bytes, path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise UserError(f"{path / 'state.json'} is not what a run writes; use another copy") from None


def checkpoints(run: Path) -> list[Path]:
    """The checkpoint folders of a run, oldest first. They are not verified."""
    found = (p for p in (run / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d{8,}", p.name))
    return sorted(found, key=step_of)


def newest_checkpoint(run: Path) -> tuple[Path, list[str]] | None:
    """The newest checkpoint of `run` that is whole, and why newer ones were passed over; None if there is none at all.

    Raises UserError if there are checkpoints but every one is damaged.
    """
    refused: list[str] = []
    for path in reversed(checkpoints(run)):
        try:
            read_folder(path)
        except UserError as problem:
            refused.append(str(problem))
        else:
            return path, refused
    if refused:
        lines = [f"every checkpoint of {run} is damaged; begin anew with another --out:", *refused]
        raise UserError("\n  ".join(lines))
    return None


def step_of(path: Path) -> int:
    """The step of a checkpoint folder."""
    return int(path.name.removeprefix("step-"))


def regular_checkpoints(run: Path, every: int) -> list[Path]:
    """The checkpoints at multiples of `every` steps, and the newest one: oldest first.

    They do not depend on where the run was interrupted, and saved, on its way here.
    """
    paths = checkpoints(run)
    return [path for path in paths if step_of(path) % every == 0 or path == paths[-1]]


def prune_checkpoints(run: Path, keep: int, also: int | None, *, every: int = 1) -> None:
    """Remove what a run need not keep, and what interrupted saves left behind.

    Kept are the newest `keep` of the checkpoints at multiples of `every` steps, the newest of all, and step `also`.
    """
    paths = checkpoints(run)
    regular = [path for path in paths if step_of(path) % every == 0]
    spared = {*regular[-keep:], *paths[-1:]}
    for path in paths:
        if path not in spared and step_of(path) != also:
            shutil.rmtree(path)
    for folder in (run, run / "checkpoints"):
        for path in folder.glob(".tmp-*"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def drop_checkpoints_after(run: Path, step: int) -> None:
    """Remove the checkpoints of later steps, which `newest_checkpoint` passed over: the run will make them anew."""
    for path in checkpoints(run):
        if step_of(path) > step:
            shutil.rmtree(path)


# ---- the model to use --------------------------------------------------------------------------------------------


def save_model(path: Path, tensors: Tensors, config: Config, tokenizer: Tokenizer, card: str) -> None:
    """Write a model folder: weights, configuration, tokenizer, and `card` as its README.md."""
    files = {
        "model.safetensors": safetensors.torch.save(tensors),
        "config.json": to_json(config).encode(),
        "tokenizer.json": tokenizer.to_json().encode(),
        "README.md": card.encode(),
    }
    write_folder(path, files)


@dataclass(frozen=True)
class LoadedModel:
    """A model folder in memory."""

    model: Transformer
    config: Config
    tokenizer: Tokenizer


def load_model(path: Path) -> LoadedModel:
    """Read a model folder. UserError if it is not one, is damaged, or its parts do not fit each other."""
    _refuse_other(path)
    files = _read_parts(path, "model folder", MODEL_FILES)
    config = from_json(files["config.json"], path / "config.json")
    tokenizer = _tokenizer(files["tokenizer.json"], path / "tokenizer.json")
    if config.model.vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"{path}: the model has {config.model.vocab_size} embedding rows but its tokenizer {tokenizer.vocab_size} "
            "pieces; the two are not from the same run, use another copy"
        )
    where = path / "model.safetensors"
    tensors = _tensors(files["model.safetensors"], where)
    _refuse_hostile_sizes(config.model, tensors, where)
    with torch.device("meta"):  # which takes no memory
        _refuse_misfit(Transformer(config.model), tensors, where)
    model = Transformer(config.model)
    set_weights(model, tensors, where)
    return LoadedModel(model.eval(), config, tokenizer)


def _refuse_other(path: Path) -> None:
    """Say where the model is to whoever gives another folder: a run, or one of its checkpoints."""
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; expected a model folder, such as RUN/model")
    if (path / "checkpoints").is_dir() and not (path / "manifest.json").exists():
        if (path / "model").is_dir():
            raise UserError(f"{path} is a run, not a model; give {path / 'model'}")
        raise UserError(f"{path} is a run that has no model yet; let it finish: transduce train ... --resume")
    if (path / "state.json").exists():
        run = path.absolute().parent.parent
        raise UserError(f"{path} is a checkpoint, not a model; make one: transduce average {run} --last 1 --out MODEL")


def _tokenizer(content: bytes, where: Path) -> Tokenizer:
    try:
        return Tokenizer.from_json(content.decode(), where)
    except UnicodeDecodeError as problem:
        raise UserError(f"{where} is not valid UTF-8 ({problem}); use another copy") from None


def _refuse_hostile_sizes(model: ModelConfig, tensors: Tensors, where: Path) -> None:
    """UserError for a configuration whose model is too large even to be compared with the weights."""
    d_k, d_v = (width or model.d_model // model.n_heads for width in (model.d_k, model.d_v))
    sides = (model.vocab_size or 0, model.d_model, model.d_ff, model.n_heads * max(d_k, d_v), model.max_positions or 0)
    layers = sum(bool(re.fullmatch(r"encoder\.\d+\.self_attention\.w_q\.weight", name)) for name in tensors)
    largest = max((values.numel() for values in tensors.values()), default=0)
    if model.n_layers != layers or max(sides) > largest:
        raise UserError(f"{where} does not fit its configuration: they are of different sizes; use another copy")
