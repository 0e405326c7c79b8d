"""What is on disk: checkpoints of a run, and the model to use. Tensors and JSON; never a pickle.

    RUN/checkpoints/step-00012345/   {model,optimizer}.safetensors, state.json, and ema.safetensors if there is one
    MODEL/                           model.safetensors, config.json, tokenizer.json, README.md

Each is a folder with a manifest (`transduce.storage.atomic_folder`): there whole or not at all, and verified when it
is read.
"""

import math
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

from transduce.config.files import from_json, to_json
from transduce.config.schema import Config, ModelConfig
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError
from transduce.model.build import Model, build
from transduce.storage.atomic_folder import (
    Content,
    check_folder,
    decode_json,
    encode_json,
    listed_file,
    listed_files,
    read_verified,
    remove_unfinished,
    write_folder,
)
from transduce.training import distributed

Tensors = dict[str, Tensor]

# ---- tensors -----------------------------------------------------------------------------------------------------

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
MAX_HEADER_BYTES = 4 << 20  # some 30,000 tensors


def _tensor_file(tensors: Tensors) -> Content:
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


def _shapes(path: Path, name: str) -> dict[str, tuple[int, ...]]:
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


def _read_tensors(path: Path, name: str) -> Tensors:
    _shapes(path, name)  # refuses what would be costly to refuse later
    try:
        return safetensors.torch.load(read_verified(path, name))
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as problem:
        raise _unreadable(path / name, problem) from None


def _unreadable(where: Path, problem: object) -> UserError:
    return UserError(f"{where} holds no readable tensors ({problem}); use another copy")


# ---- weights -----------------------------------------------------------------------------------------------------


def weights(model: nn.Module) -> Tensors:
    """A copy of the parameters by name, on the CPU; a tied matrix is there once."""
    return {name: p.detach().to("cpu", copy=True).contiguous() for name, p in model.named_parameters()}


def set_weights(model: nn.Module, given: Tensors, where: Path | str) -> None:
    """Copy `given` into the parameters of `model`. UserError if a name or a shape differs, or a value is not finite."""
    _refuse_misfit(model, {name: (*values.shape,) for name, values in given.items()}, where)
    for name, values in given.items():
        if not values.is_floating_point():
            raise UserError(f"{where}: {name} holds {values.dtype}, expected floating-point numbers")
    _refuse_nonfinite(given, where, "use another copy")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(distributed.part_of(given[name], parameter))


def _refuse_misfit(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], where: Path | str) -> None:
    expected = {name: (*parameter.shape,) for name, parameter in model.named_parameters()}
    names = sorted(expected.keys() ^ shapes.keys())
    if names:
        raise UserError(f"{where} does not fit its configuration: {names[0]} is in only one of them")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise UserError(
                f"{where} does not fit its configuration: {name} has the shape {shapes[name]}, expected {shape}"
            )


def _refuse_nonfinite(given: Tensors, where: Path | str, remedy: str) -> None:
    for name, values in given.items():
        if not values.isfinite().all():
            raise UserError(f"{where}: {name} holds values that are not finite numbers; {remedy}")


def average(paths: Sequence[Path]) -> Tensors:
    """The mean of the weights of several checkpoints (§6.1), summed in float64, one checkpoint in memory at a time."""
    total: Tensors = {}
    for path in paths:
        listed_files(path, kind="checkpoint", needed=["model.safetensors"])
        new = _read_tensors(path, "model.safetensors")
        if total and {n: t.shape for n, t in new.items()} != {n: t.shape for n, t in total.items()}:
            raise UserError(f"{path} holds another model than {paths[0]}; only checkpoints of one run can be averaged")
        total = {name: total[name] + value if total else value.double() for name, value in new.items()}
    return {name: (value / len(paths)).float() for name, value in total.items()}


# ---- checkpoints of a run ----------------------------------------------------------------------------------------


MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json")
CHECKPOINT_FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
LEAST_KEPT = 2  # checkpoints, should one of them not be readable one day


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped.

    optimizer: Adam's moments by parameter, as "exp_avg/NAME" and "exp_avg_sq/NAME"; ema: averaged weights, or None;
    state: step, data position, best-so-far and the like, as JSON values.
    """

    weights: Tensors
    optimizer: Tensors
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
        "model.safetensors": _tensor_file(checkpoint.weights),
        "optimizer.safetensors": _tensor_file(checkpoint.optimizer),
        "state.json": [encode_json(checkpoint.state)],
    }
    if checkpoint.ema is not None:
        files["ema.safetensors"] = _tensor_file(checkpoint.ema)
    write_folder(path, files)
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. UserError if it is incomplete or damaged."""
    names = listed_files(path, kind="checkpoint", needed=CHECKPOINT_FILES)
    tensors = {name: _read_tensors(path, name) for name in names if name.endswith(".safetensors")}
    return Checkpoint(
        tensors["model.safetensors"],
        tensors["optimizer.safetensors"],
        tensors.get("ema.safetensors"),
        load_state(path),
    )


def load_state(path: Path) -> dict[str, Any]:
    """The state of a checkpoint alone. UserError if it is damaged."""
    listed_files(path, kind="checkpoint", needed=["state.json"])
    try:
        return msgspec.convert(decode_json(read_verified(path, "state.json")), dict[str, Any])
    except ValueError:
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
            check_folder(path)
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

    Kept are the newest `keep` of the checkpoints at multiples of `every` steps, the newest of all, but at least
    `LEAST_KEPT`, and step `also`.
    """
    paths = checkpoints(run)
    regular = [path for path in paths if step_of(path) % every == 0]
    spared = {*regular[-max(keep, LEAST_KEPT) :], *paths[-1:]}
    for path in paths:
        if path not in spared and step_of(path) != also:
            shutil.rmtree(path)
    for folder in (run, run / "checkpoints"):
        remove_unfinished(folder)


def drop_checkpoints_after(run: Path, step: int) -> None:
    """Remove the checkpoints of later steps, which `newest_checkpoint` passed over: the run will make them anew."""
    for path in checkpoints(run):
        if step_of(path) > step:
            shutil.rmtree(path)


# ---- the model to use --------------------------------------------------------------------------------------------


def save_model(path: Path, tensors: Tensors, config: Config, tokenizer: Tokenizer, card: str) -> None:
    """Write a model folder: weights, configuration, tokenizer, and `card` as its README.md."""
    files = {
        "model.safetensors": _tensor_file(tensors),
        "config.json": [to_json(config).encode()],
        "tokenizer.json": [tokenizer.to_json().encode()],
        "README.md": [card.encode()],
    }
    write_folder(path, files)


@dataclass(frozen=True)
class LoadedModel:
    """A model folder in memory."""

    model: Model
    config: Config
    tokenizer: Tokenizer


def load_model(path: Path) -> LoadedModel:
    """Read a model folder. UserError if it is not one, is damaged, or its parts do not fit each other."""
    _refuse_other(path)
    listed_files(path, kind="model folder", needed=MODEL_FILES)
    config = from_json(read_verified(path, "config.json"), path / "config.json")
    tokenizer = _tokenizer(read_verified(path, "tokenizer.json"), path / "tokenizer.json")
    if config.model.vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"{path}: the model has {config.model.vocab_size} embedding rows but its tokenizer {tokenizer.vocab_size} "
            "pieces; the two are not from the same run"
        )
    where = path / "model.safetensors"
    shapes = _shapes(path, "model.safetensors")
    _refuse_hostile_sizes(config.model, shapes, where)
    with torch.device("meta"):  # which takes no memory
        _refuse_misfit(build(config.model), shapes, where)
    tensors = _read_tensors(path, "model.safetensors")
    model = build(config.model)
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


ONE_OF_A_LAYER = {  # a matrix that each layer has one of
    "transformer": r"encoder\.\d+\.self_attention\.w_q\.weight",
    "recurrent": r"writer\.weight_hh_l\d+",
    "convolutional": r"readers\.\d+\.weights\.weight",
}


def _refuse_hostile_sizes(model: ModelConfig, shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """UserError for a configuration whose model is too large even to be compared with the weights."""
    sides = [model.vocab_size or 0, model.d_model]
    if model.kind == "transformer":
        d_k, d_v = (width or model.d_model // model.n_heads for width in (model.d_k, model.d_v))
        sides += [model.d_ff, model.n_heads * max(d_k, d_v), model.max_positions or 0]
    layers = sum(bool(re.fullmatch(ONE_OF_A_LAYER[model.kind], name)) for name in shapes)
    largest = max(map(math.prod, shapes.values()), default=0)
    if model.n_layers != layers or max(sides) > largest:
        raise UserError(f"{where} does not fit its configuration: they are of different sizes")
