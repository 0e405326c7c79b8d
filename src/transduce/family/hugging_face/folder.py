"""Folders in Hugging Face's form (config.json, safetensors, tokenizer.json): they become members, and members folders.

A folder has one file of tensors, `model.safetensors`, or several, with `model.safetensors.index.json`, which names the
file of each tensor. Every file is untrusted: it is read as data, and its sizes are checked before memory is taken.
"""

import errno
import fnmatch
import importlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import torch
from torch import Tensor, nn

from transduce.config.kinds import kinds_of
from transduce.errors import UserError, nearest
from transduce.family.hugging_face.conversion import Conversion, Shape, set_parameters, their_shapes, their_tensors
from transduce.family.hugging_face.settings import Settings
from transduce.storage.atomic_folder import MAX_JSON_BYTES, MAX_TOKENIZER_BYTES, write_folder
from transduce.storage.tensors import MAX_HEADER_BYTES, encode_tensors
from transduce.training.weights import check_finite

# The module with the conversion of each model_type.
CONVERSIONS = {
    "gpt2": "gpt2",
    "openai-gpt": "gpt2",
    "gpt_bigcode": "gpt2",
    "llama": "llama",
    "llada": "llada",
    "mamba": "mamba",
    "rwkv": "rwkv",
    "bert": "bert",
    "t5": "t5",
    "vit": "vit",
    "whisper": "whisper",
    "wav2vec2": "wav2vec2",
    "deit": "deit",
    "dinov2": "dinov2",
    "clip": "clip",
    "swin": "swin",
}
# Kinds that are trained here, and these files cannot hold.
ENCODERS_ONLY_HERE = tuple(kind for kind in kinds_of("masked_words") if kind not in CONVERSIONS)
DECODERS_ONLY_HERE = tuple(kind for kind in kinds_of("language_model") if kind not in CONVERSIONS)
WITHOUT_CONVERSION = (*DECODERS_ONLY_HERE, *ENCODERS_ONLY_HERE)
TENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Files next to the weights, of tokenizers and how to generate text, with the maximum number of bytes of each.
SIDE_FILES = {
    "tokenizer.json": MAX_TOKENIZER_BYTES,
    "tokenizer_config.json": MAX_JSON_BYTES,
    "special_tokens_map.json": MAX_JSON_BYTES,
    "generation_config.json": MAX_JSON_BYTES,
    "modules.json": MAX_JSON_BYTES,  # of sentence-transformers, as the next ones
    "1_Pooling/config.json": MAX_JSON_BYTES,
    "sentence_bert_config.json": MAX_JSON_BYTES,
    "config_sentence_transformers.json": MAX_JSON_BYTES,
}
DTYPES = ("F64", "F32", "F16", "BF16")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.msgpack", "*.h5")
# Other forms of the same weights, which a copy leaves out: files, and folders.
OTHER_WEIGHTS = (*PICKLES, "*.safetensors", "*.gguf", "*.tflite", "*.onnx"), ("onnx", "openvino")
REMEDY = "use another copy of the folder"


@dataclass(frozen=True)
class Member:
    """A model, the values of its config.json, and the content of the side files by name.

    folder: where it comes from; None: from no folder. A copy keeps the other files in it.
    """

    model: nn.Module
    settings: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    folder: Path | None = None


def read_member(folder: Path) -> Member:
    """Return the member in a folder, in fp32. Raises UserError for a folder that is not whole, or not supported."""
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a folder with config.json and {TENSORS}; check the path")
    values, where = read_json(folder / "config.json"), folder / "config.json"
    conversion = conversion_of(Settings(values, where))
    settings = Settings(values, where, _shapes(folder))
    with torch.device("meta"):  # before memory is allocated for the sizes in config.json
        model = conversion.build(settings)
    set_parameters(conversion.entries(model), model, _read_tensors(folder, conversion, model))
    files = {name: read_file(folder / name, most) for name, most in SIDE_FILES.items() if (folder / name).exists()}
    return Member(model.eval(), settings.values, files, folder)


def write_member(folder: Path, member: Member) -> None:
    """Write a member as a new folder that Hugging Face transformers can read, whole or not at all.

    Files that have no use here, such as chat_template.jinja, are copied from the folder of the member.
    """
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder}: expected a new folder; give another name")
    kind = member.settings.get("model_type")
    if kind in WITHOUT_CONVERSION:
        raise UserError(
            f"{folder}: expected a model that can be written in Hugging Face's form, not {kind}; "
            "keep the folder of its training"
        )
    (conversion,) = {each for each in map(_conversion, CONVERSIONS.values()) if isinstance(member.model, each.model)}
    old = {key: value for key, value in member.settings.items() if key != "torch_dtype"}  # the older name of dtype
    config = msgspec.json.format(
        msgspec.json.encode(old | conversion.settings(member.model) | {"dtype": "float32"}), indent=2
    )
    tensors = encode_tensors(their_tensors(conversion.entries(member.model), member.model))
    others = {} if member.folder is None else {path: [(member.folder / path).read_bytes()] for path in _others(member)}
    files = {name: [content] for name, content in member.files.items()}
    write_folder(folder, {"config.json": [config + b"\n"], TENSORS: tensors, **others, **files})


def _others(member: Member) -> list[str]:
    """Return the names of the files in the folder of a member that are neither its weights nor hidden."""
    assert member.folder is not None
    names = list[str]()
    for top, folders, files in os.walk(member.folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        names += [(Path(top) / name).relative_to(member.folder).as_posix() for name in files if name[0] != "."]
    ours = {"config.json", "manifest.json", INDEX, *SIDE_FILES}
    return [name for name in sorted({*names} - ours) if not _is_weights(name) and _is_own(member.folder, name)]


def _is_weights(name: str) -> bool:
    files, folders = OTHER_WEIGHTS
    top, _, rest = name.partition("/")
    return top in folders if rest else any(fnmatch.fnmatch(name, pattern) for pattern in files)


def _is_own(folder: Path, name: str) -> bool:
    """Check whether a file is in the folder, and no link to a file elsewhere except in Hugging Face's cache."""
    blobs, path = folder / "../../blobs", (folder / name).resolve()
    return path.is_file() and (path.is_relative_to(folder.resolve()) or path.parent == blobs.resolve())


def conversion_of(settings: Settings) -> Conversion:
    """Return the conversion of the model that config.json names. Raises UserError if `CONVERSIONS` lacks it."""
    if settings.get("quantization_config") is not None:
        raise UserError(f"{settings.where}: expected weights that are not quantized; use the original model")
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in CONVERSIONS:
        expected = f"expected one of {', '.join(CONVERSIONS)}; use a model of one of these"
        raise UserError(f"{settings.where}: model_type={kind!r}: {expected}")
    return _conversion(CONVERSIONS[kind])


def _conversion(module: str) -> Conversion:
    return importlib.import_module(f"transduce.family.hugging_face.{module}").CONVERSION


# ---- files -------------------------------------------------------------------------------------------------------


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a file of at most `most` bytes. A link may lead to it, as in Hugging Face's cache."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe or a device may never end
            raise UserError(f"{path}: expected a file; {REMEDY}")
        if status.st_size > most:
            raise UserError(f"{path}: expected at most {most:,} bytes, not {status.st_size:,}; {REMEDY}")
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: expected a file, but it is missing; use a whole folder") from None
    except OSError as problem:
        if problem.errno != errno.ELOOP:
            raise
        raise UserError(f"{path}: expected a file, not a link to itself; use a whole folder") from None


def read_json(path: Path, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        return msgspec.json.decode(read_file(path, most), type=dict[str, Any])
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path}: expected a JSON object ({problem}); {REMEDY}") from None


def _read_tensors(folder: Path, conversion: Conversion, model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a folder by the names and with the shapes of the entries."""
    entries = conversion.entries(model)
    shapes, names = their_shapes(entries, model), {conversion.bare(entry.theirs): entry.theirs for entry in entries}
    tensors: dict[str, Tensor] = {}
    for path in _tensor_files(folder):
        with _opened(path) as file:
            for name in file.keys():
                bare = conversion.bare(name)
                if bare not in names:
                    if re.fullmatch(conversion.without_weights, bare):
                        continue
                    raise _misfit(path, f"{name} is no part of the model{nearest(bare, names)}")
                if names[bare] in tensors:
                    raise _misfit(path, f"{name} is there twice")
                _check_part(path, name, file.get_slice(name), shapes[names[bare]])
                tensors[names[bare]] = file.get_tensor(name)
    missing = [entry.theirs for entry in entries if not entry.is_copy and entry.theirs not in tensors]
    if missing:
        raise _misfit(folder, f"{missing[0]} is missing" + (f", and {len(missing) - 1} more" if missing[1:] else ""))
    for copy in [entry for entry in entries if entry.is_copy and entry.theirs in tensors]:
        original = next(entry.theirs for entry in entries if entry.ours == copy.ours)
        if not tensors[copy.theirs].equal(tensors[original]):
            raise _misfit(folder, f"{copy.theirs} is not {original}, to which config.json ties it")
    check_finite(tensors, folder, REMEDY)
    return tensors


def _shapes(folder: Path) -> dict[str, Shape]:
    """Return the shape, of at least one dimension, of each tensor of a folder by its name. No value is read."""
    shapes = dict[str, Shape]()
    for path, names in _tensor_files(folder).items():
        with _opened(path) as file:
            if names is not None and names != {*file.keys()}:
                raise UserError(f"{path}: expected the tensors that {INDEX} names; use the files of one model")
            shapes |= {name: (*file.get_slice(name).get_shape(),) or (1,) for name in file.keys()}
    return shapes


def _check_part(path: Path, name: str, part: Any, shape: Shape) -> None:
    """Check the shape and the type of a tensor before its values are read."""
    if (*part.get_shape(),) != shape:
        raise _misfit(path, f"{name} has the shape {(*part.get_shape(),)}, not {shape}")
    if part.get_dtype() not in DTYPES:
        raise _misfit(path, f"{name} has the type {part.get_dtype()}, not one of {', '.join(DTYPES)}")


def _tensor_files(folder: Path) -> dict[Path, set[str] | None]:
    """Return the paths of the files of tensors, with the names of the tensors in each; None where no index says
    them."""
    if (folder / TENSORS).exists():
        return {folder / TENSORS: None}
    if not (folder / INDEX).exists():
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        why = f", and no pickle is read ({pickles[0]})" if pickles else ""
        raise UserError(f"{folder}: expected {TENSORS}{why}; save the model as safetensors")
    index = read_json(folder / INDEX, MAX_HEADER_BYTES).get("weight_map")
    files: dict[Path, set[str] | None] = {}
    for tensor, name in index.items() if isinstance(index, dict) else ():
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*\.safetensors", name):
            raise UserError(f"{folder / INDEX}: expected names of files in the folder, not {name!r}; {REMEDY}")
        names = files.setdefault(folder / name, set())
        assert names is not None
        names.add(tensor)
    if not files:
        raise UserError(f"{folder / INDEX}: expected weight_map, the file of each tensor; {REMEDY}")
    return files


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file of tensors. Raises UserError if it, or a tensor that the block reads, is damaged."""
    if not path.is_file():
        raise UserError(f"{path}: expected a file of tensors, but it is missing; use a whole folder")
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > MAX_HEADER_BYTES:
        raise UserError(f"{path}: expected a header of at most {MAX_HEADER_BYTES:,} bytes, not {size:,}; {REMEDY}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, ValueError, TypeError) as problem:
        raise UserError(f"{path}: expected readable tensors ({problem}); {REMEDY}") from None


def _misfit(where: Path, problem: str) -> UserError:
    return UserError(f"{where}: expected the tensors of its config.json, but {problem}; use the files of one model")
