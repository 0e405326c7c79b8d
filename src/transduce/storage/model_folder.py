"""Model folders, such as RUN/model: model.safetensors, config.json, tokenizer.json and README.md.

It may also have shortlist.safetensors, a vocabulary shortlist, and calibration.json, what turns the scores of a
translation into a confidence. A model folder has a manifest (`transduce.storage.atomic_folder`).
"""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from transduce.config.files import from_json, to_json
from transduce.config.schema import Config, ModelConfig, SearchConfig, value_or_none
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import TokenizerLike
from transduce.decoding.confidence import Calibration
from transduce.decoding.shortlist.table import Shortlist
from transduce.errors import UserError
from transduce.model.build import Model, build_without_values
from transduce.storage.atomic_folder import (
    MAX_JSON_BYTES,
    Content,
    listed_files,
    read_folder,
    read_verified,
    write_folder,
)
from transduce.storage.model_card import USES
from transduce.storage.tensors import Tensors, encode_tensors, read_tensors, tensor_shapes
from transduce.training.weights import check_shapes, misfit, set_weights

MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json")
SHORTLIST_FILE = "shortlist.safetensors"
CALIBRATION_FILE = "calibration.json"
MOST_CARD_BYTES = 1 << 20


def save_model(
    path: Path,
    tensors: Tensors,
    config: Config,
    tokenizer: TokenizerLike,
    card: str,
    shortlist: Shortlist | None = None,
) -> None:
    """Write a model folder: the weights `tensors`, configuration, tokenizer, `card` as README.md, and a shortlist."""
    files = {
        "model.safetensors": encode_tensors(tensors),
        "config.json": [to_json(config).encode()],
        "tokenizer.json": [tokenizer.to_json().encode()],
        "README.md": [card.encode()],
    }
    if shortlist is not None:
        files[SHORTLIST_FILE] = _encoded(shortlist)
    write_folder(path, files)


def save_shortlist(path: Path, shortlist: Shortlist) -> None:
    """Write a shortlist into a model folder, in one step. Everything else in the folder stays the same."""
    _replace_file(path, SHORTLIST_FILE, _encoded(shortlist))


def save_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration into a model folder, in one step. Everything else in the folder stays the same."""
    _replace_file(path, CALIBRATION_FILE, [msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n"])


def save_search(path: Path, search: SearchConfig) -> None:
    """Write the settings of the search into a model folder, in one step. Everything else in it stays the same."""
    config = from_json(read_verified(path, "config.json"), path / "config.json")
    _replace_file(path, "config.json", [to_json(dataclasses.replace(config, search=search)).encode()])


def _replace_file(path: Path, name: str, content: Content) -> None:
    path = path.resolve()
    files: dict[str, Content] = {other: [old] for other, old in read_folder(path).items()}
    card = path / "README.md"
    if card.is_file():
        files["README.md"] = [card.read_bytes()]
    write_folder(path, {**files, name: content})


def _encoded(shortlist: Shortlist) -> Content:
    arrays = {"common": shortlist.common, "candidates": shortlist.candidates}
    return encode_tensors({name: torch.from_numpy(array) for name, array in arrays.items()})


def card_of(path: Path) -> str:
    """Return the model card of a model folder, which its user may have edited; "" if there is none."""
    card = path / "README.md"
    if not card.is_file():
        return ""
    with card.open("rb") as file:
        return file.read(MOST_CARD_BYTES).decode(errors="replace")


@dataclass(frozen=True)
class LoadedModel:
    """A model folder in memory. name: the name of the model in messages."""

    model: Model
    config: Config
    tokenizer: TokenizerLike
    name: str = "the model"
    shortlist: Shortlist | None = None
    calibration: Calibration | None = None


def load_translation_model(path: Path) -> LoadedModel:
    """Return the model of `load_model`. Raises UserError for a model that reads no source, such as a language model."""
    loaded = load_model(path)
    if loaded.config.translation_model is None:
        kind, (_, use) = loaded.config.model.kind, USES[loaded.config.train.task]
        command = use.partition("THIS_FOLDER")[0].rstrip(' ("')
        raise UserError(f"{path}: expected a translation model, not model.kind={kind!r}; use {command}")
    return loaded


def load_model(path: Path, build: Callable[[Config], Any] | None = None) -> LoadedModel:
    """Read a model folder, and return its model in evaluation mode. Reads again if a training replaces it meanwhile.

    build: function that makes the model, for a model of your own task, such as `build` of that task. None: the model is
    made for its `model.kind`. Raises UserError if `path` is not a model folder, is damaged, or mixes files of different
    models.
    """
    while True:
        before = _identity(path)
        try:
            return _load(path, build)
        except (UserError, OSError):
            time.sleep(REPLACEMENT_SECONDS)
            if _identity(path) == before:
                raise


REPLACEMENT_SECONDS = 0.01  # the two renames of a replacement take far less


def _identity(path: Path) -> tuple[int, int] | None:
    """Return a mark that distinguishes a folder from its replacement; None if there is no folder."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def load_config(path: Path) -> Config:
    """Return the configuration of a model folder. Raises UserError if `path` is another folder."""
    _refuse_other_folder(path)
    listed_files(path, kind="model folder", needed=MODEL_FILES)
    return from_json(read_verified(path, "config.json"), path / "config.json")


def load_tokenizer(path: Path) -> TokenizerLike:
    """Return the tokenizer of a model folder. Raises UserError if it is damaged."""
    where = path / "tokenizer.json"
    try:
        return Tokenizer.from_json(read_verified(path, "tokenizer.json").decode(), where)
    except UnicodeDecodeError as problem:
        raise UserError(f"{where}: expected UTF-8 ({problem}); use another copy") from None


def _load(path: Path, build: Callable[[Config], Any] | None) -> LoadedModel:
    config = load_config(path)
    tokenizer = load_tokenizer(path)
    if config.model.vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"{path}: expected a tokenizer with {config.model.vocab_size} pieces, as many as the model has embedding "
            f"rows, not {tokenizer.vocab_size}; use the files of one run"
        )
    if value_or_none(config, "model.tgt_vocab_size") not in (None, tokenizer.target.vocab_size):
        raise UserError(
            f"{path}: expected a tokenizer with {config.model.tgt_vocab_size} symbols or labels, as many as the model "
            f"has rows of output, not {tokenizer.target.vocab_size}; use the files of one run"
        )
    where = path / "model.safetensors"
    if build is None:
        _refuse_misfit(config, tensor_shapes(path, "model.safetensors"), where)
    tensors = read_tensors(path, "model.safetensors")
    model = build(config) if build else build_without_values(config.model)
    set_weights(model, tensors, where)
    shortlist = _shortlist(path, tokenizer) if SHORTLIST_FILE in listed_files(path) else None
    calibration = _calibration(path) if CALIBRATION_FILE in listed_files(path) else None
    return LoadedModel(model.eval(), config, tokenizer, str(path), shortlist, calibration)


def _refuse_misfit(config: Config, shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Raise UserError unless `shapes` fit the model that `config` describes. No tensor is in memory yet."""
    if config.translation_model:
        _refuse_hostile_sizes(config.translation_model, shapes, where)
    elif config.model.n_layers > len(shapes):  # a layer has tensors; to build 10,000 takes long
        raise misfit(where, "they have fewer layers")
    with torch.device("meta"):  # without memory for the tensors
        check_shapes(build_without_values(config.model), shapes, where)


def _shortlist(path: Path, tokenizer: TokenizerLike) -> Shortlist:
    where = path / SHORTLIST_FILE
    tensors = read_tensors(path, SHORTLIST_FILE)
    if {name: one.dtype for name, one in tensors.items()} != dict.fromkeys(("common", "candidates"), torch.int32):
        raise UserError(
            f"{where}: expected int32 tensors common and candidates; learn it again with transduce shortlist"
        )
    shortlist = Shortlist(tensors["common"].numpy(), tensors["candidates"].numpy())
    shortlist.check(tokenizer.vocab_size, tokenizer.target.vocab_size, where)
    return shortlist


def _calibration(path: Path) -> Calibration:
    where = path / CALIBRATION_FILE
    try:
        calibration = msgspec.json.decode(read_verified(path, CALIBRATION_FILE), type=Calibration)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as problem:
        remedy = "learn it again with transduce calibrate"
        raise UserError(f"{where}: expected a calibration ({problem}); {remedy}") from None
    calibration.check(where)
    return calibration


def _refuse_other_folder(path: Path) -> None:
    """Raise UserError for a run or a checkpoint. The message names the model folder, or the command to make one."""
    if not path.is_dir():
        raise UserError(f"{path}: expected a model folder such as RUN/model, but it does not exist; check the path")
    if (path / "checkpoints").is_dir() and not (path / "manifest.json").exists():
        if (path / "model").is_dir():
            raise UserError(f"{path}: expected a model folder, not a run; use {path / 'model'}")
        raise UserError(f"{path}: expected a model folder, not an unfinished run; use transduce train ... --resume")
    if (path / "state.json").exists():
        run = path.absolute().parent.parent
        raise UserError(
            f"{path}: expected a model folder, not a checkpoint; use transduce average {run} --last 1 --out MODEL"
        )
    if (path / "transduce.json").exists():
        raise UserError(
            f"{path}: expected a model folder, not an export to CTranslate2, which `transduce translate`, `serve` and "
            "interop.ctranslate2_engine.load take; use the model before the export"
        )
    if _is_of_hugging_face(path / "config.json"):
        raise UserError(
            f"{path}: expected a model folder of transduce, not one in Hugging Face's form; `transduce continue`, "
            "`fill`, `embed`, `classify` and `finetune` take it as it is"
        )


def _is_of_hugging_face(config: Path) -> bool:
    """Return True for a config.json with the key model_type, which transduce does not write."""
    with suppress(OSError, ValueError, RecursionError):
        if config.is_file() and config.stat().st_size <= MAX_JSON_BYTES:
            return "model_type" in msgspec.json.decode(config.read_bytes(), type=dict)
    return False


ONCE_PER_LAYER = {  # a matrix that each layer of encoder and decoder has once
    "transformer": r"(encoder|decoder)\.\d+\.self_attention\.w_q\.weight",
    "recurrent": r"(reader|writer)\.weight_hh_l\d+",
    "convolutional": r"(readers|writers)\.\d+\.weights\.weight",
}


def _refuse_hostile_sizes(model: ModelConfig, shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Raise UserError for a configuration with larger sizes than the weights have.

    To build such a model could take hours or all memory, even without memory for tensors.
    """
    sides = [model.vocab_size or 0, model.output_size or 0, model.d_model]
    if model.kind == "transformer":
        d_k, d_v = (width or model.d_model // model.n_heads for width in (model.d_k, model.d_v))
        sides += [model.d_ff, model.n_heads * max(d_k, d_v), model.max_positions or 0]
    layers = sum(bool(re.fullmatch(ONCE_PER_LAYER[model.kind], name)) for name in shapes)
    largest = max(map(math.prod, shapes.values()), default=0)
    if sum(model.depths) != layers or max(sides) > largest:
        raise misfit(where, "they have other sizes")
