"""CTranslate2's own files of an exported model, compared with our configuration and tokenizer.

CTranslate2 trusts its files: with other shapes it reads and writes outside of its arrays. So the engine checks them
before CTranslate2 opens them. model.bin holds the weights. Its integers are little-endian. A string is its length in 2
bytes, then the text with a zero:

    version, 4 bytes; name of the model, string; revision, 4 bytes
    number of variables, 4 bytes; for each: name, string; rank, 1 byte; sides, 4 bytes each;
        type, 1 byte; size of the values, 4 bytes; values
    number of aliases, 4 bytes; for each: name, string; name of the variable with its values, string
"""

import io
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from transduce.config.schema import Config, ModelConfig
from transduce.data.vocabulary import BOS, CONTROLS, EOS, UNK, TokenizerLike
from transduce.errors import UserError

T = TypeVar("T")

VERSION = 6
MODEL = "TransformerSpec"
REVISION = 7
# The codes of the types.
FLOAT32 = 0
INT8 = 1
INT16 = 2
TYPES = {FLOAT32: ("float32", 4), INT8: ("int8", 1), INT16: ("int16", 2)}  # code: name, bytes of a value
MAX_STRING = 256  # bytes; the longest name of a variable has 55
MAX_VARIABLES = 100_000  # a layer of encoder and decoder has up to 60


@dataclass(frozen=True)
class Variable:
    """An array in model.bin. value: the value of a number without a shape; None for arrays, which are not read."""

    type: int
    shape: tuple[int, ...]
    value: int | None = None

    def __str__(self) -> str:
        kind = TYPES[self.type][0]
        return f"{kind} {self.shape}" if self.value is None else f"{kind} {self.value}"


@dataclass
class ModelVariables:
    """The variables of model.bin by name, and for each alias the name of its variable."""

    variables: dict[str, Variable] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)


# ---- the expectation ---------------------------------------------------------------------------------------------

POSITIONS = 1_024  # minimum rows of the table: CTranslate2 cannot compute further rows


def position_rows(config: Config) -> int:
    """Return the number of rows in the table of positions of an exported model."""
    length = config.data.max_tokens + config.search.max_extra_tokens
    return config.model.max_positions or max(length, POSITIONS)


def check_heads(model: ModelConfig) -> None:
    """Raise UserError unless heads are d_model / n_heads wide, the only width that CTranslate2 has."""
    d_k, d_v = (width or model.d_model // model.n_heads for width in (model.d_k, model.d_v))
    if not d_k == d_v == model.d_model / model.n_heads:
        raise UserError(
            f"model.d_k={d_k} and model.d_v={d_v}: expected d_model / n_heads={model.d_model / model.n_heads:g}, as "
            "in CTranslate2; translate with --engine torch"
        )


def expected_numbers(model: ModelConfig) -> dict[str, Variable]:
    """Return the numbers without a shape that CTranslate2 stores for `model`."""
    activation = {"relu": 0, "swish": 2}[model.activation]
    common = {"activation": activation, "pre_norm": int(model.norm == "pre"), "scale_embeddings": 1}
    flags = {
        "encoder": {**common, "embeddings_merge": 0, "multi_query_attention": 0},
        "decoder": {
            **common,
            **dict.fromkeys(("alibi", "alibi_use_positive_positions", "scale_alibi", "start_from_zero_embedding"), 0),
        },
    }
    numbers = {
        f"{side}/{name}": Variable(INT8, (), value) for side, values in flags.items() for name, value in values.items()
    }
    shorts = {"encoder/num_heads": model.n_heads, "decoder/num_heads": model.n_heads}
    shorts |= {"decoder/alignment_heads": 1, "decoder/alignment_layer": -1}
    return {**numbers, **{name: Variable(INT16, (), value) for name, value in shorts.items()}}


def expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array that CTranslate2 stores for a model, except the scales of int8."""
    model = config.model
    shapes = {}
    d_model = model.d_model
    rows = model.vocab_size or 0

    def add_linear(name: str, outputs: int, inputs: int, has_bias: bool) -> None:
        shapes[f"{name}/weight"] = (outputs, inputs)
        if has_bias:
            shapes[f"{name}/bias"] = (outputs,)

    def add_norm(name: str) -> None:
        shapes[f"{name}/gamma"] = shapes[f"{name}/beta"] = (d_model,)

    def add_attention(name: str, *widths: int) -> None:
        add_norm(f"{name}/layer_norm")
        for i, width in enumerate(widths):
            add_linear(f"{name}/linear_{i}", width * d_model, d_model, model.attention_bias)

    for side, depth in zip(("encoder", "decoder"), model.depths, strict=True):
        for layer in (f"{side}/layer_{i}" for i in range(depth)):
            add_attention(f"{layer}/self_attention", 3, 1)
            if side == "decoder":
                add_attention(f"{layer}/attention", 1, 2, 1)
            add_norm(f"{layer}/ffn/layer_norm")
            add_linear(f"{layer}/ffn/linear_0", model.d_ff, d_model, has_bias=True)
            add_linear(f"{layer}/ffn/linear_1", d_model, model.d_ff, has_bias=True)
        if model.norm == "pre":
            add_norm(f"{side}/layer_norm")
        shapes[f"{side}/position_encodings/encodings"] = (position_rows(config), d_model)
    shapes["encoder/embeddings_0/weight"] = shapes["decoder/embeddings/weight"] = (rows, d_model)
    add_linear("decoder/projection", rows, d_model, model.output_bias)
    return shapes


def expected_settings(config: Config) -> dict[str, object]:
    """Return the content of CTranslate2's config.json."""
    return {
        "add_source_bos": False,
        "add_source_eos": True,
        "bos_token": CONTROLS[BOS],
        "decoder_start_token": CONTROLS[BOS],
        "eos_token": CONTROLS[EOS],
        "layer_norm_epsilon": config.model.norm_eps,
        "multi_query_attention": False,
        "unk_token": CONTROLS[UNK],
    }


# ---- the check ---------------------------------------------------------------------------------------------------


def check_files(files: Mapping[str, Path | bytes], config: Config, tokenizer: TokenizerLike, where: Path) -> None:
    """Raise UserError if CTranslate2's files do not fit the model that `config` and `tokenizer` describe.

    files: paths or contents of the files, by name. where: their folder, for messages. The values of weights are not
    read.
    """
    if config.model.kind != "transformer" or config.model.vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"{where / 'transduce.json'}: expected a Transformer with as many rows of the embedding as tokenizer.json "
            f"has pieces, {tokenizer.vocab_size}; {EXPORT_AGAIN}"
        )
    check_heads(config.model)
    comparisons = {
        "config.json": partial(_compare_json, expected_settings(config)),
        "shared_vocabulary.json": partial(_compare_json, tokenizer.vocabulary),
        "model.bin": partial(_compare_weights, config),
    }
    for name, compare in comparisons.items():
        content = files[name]
        try:
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
                compare(file)
        except _Misfit as problem:
            raise UserError(
                f"{where / name}: expected the content that fits transduce.json, but {problem}; {EXPORT_AGAIN}"
            ) from None


EXPORT_AGAIN = "export the model again"


class _Misfit(Exception):
    """A difference between a file and its expected content."""


def _compare_json(expected: object, file: IO[bytes]) -> None:
    """Raise _Misfit unless the file is JSON of the value `expected`."""
    try:
        value = json.loads(file.read())
    except (ValueError, RecursionError) as problem:
        raise _Misfit(f"it is not valid JSON ({problem})") from None
    if json.dumps(value, sort_keys=True) != json.dumps(expected, sort_keys=True):  # in Python 1 == True == 1.0
        raise _Misfit("it has other values")


def _compare_weights(config: Config, file: IO[bytes]) -> None:
    """Raise _Misfit for the first difference. Each array is stored in fp32, or all weights are in int8 with scales."""
    stored = _read(file)
    numbers = expected_numbers(config.model)
    shapes = expected_shapes(config)
    variables = stored.variables
    aliases = stored.aliases
    is_int8 = any(variable.type == INT8 and variable.shape for variable in variables.values())
    expected: dict[str, Variable] = dict(numbers)
    for name, shape in shapes.items():
        is_rounded = is_int8 and name.endswith("/weight")
        expected[name] = Variable(INT8 if is_rounded else FLOAT32, shape)
        if is_rounded and name not in aliases:  # an alias has the scales of its variable
            expected[f"{name}_scale"] = Variable(FLOAT32, shape[:1])
    for name, target in aliases.items():
        if name in variables or target not in shapes or target not in variables or name not in shapes:
            raise _Misfit(f"{name!r} has the values of {target!r}")
    names = sorted({*variables, *aliases} ^ expected.keys())
    if names:
        raise _Misfit(f"{names[0]!r} is in only one of the two")
    for name, variable in expected.items():
        place = aliases.get(name, name)
        if variables[place] != variable:
            raise _Misfit(f"{place!r} is {variables[place]}, not {variable}")


# ---- the file ----------------------------------------------------------------------------------------------------


def _read(file: IO[bytes]) -> ModelVariables:
    """Return the variables and aliases in a file. Raises _Misfit if it is not complete, or has further bytes."""
    head = {"version": _number(file, "<I"), "model": _string(file), "revision": _number(file, "<I")}
    expected = {"version": VERSION, "model": MODEL, "revision": REVISION}
    for name, value in expected.items():
        if head[name] != value:
            raise _Misfit(f"its {name} is {head[name]!r}, not {value!r}")
    stored = ModelVariables()
    for _ in range(_count(file)):
        name = _string(file)
        _add(stored.variables, name, _variable(file, name))
    for _ in range(_count(file)):
        _add(stored.aliases, _string(file), _string(file))
    if file.read(1):
        raise _Misfit("it has further bytes")
    return stored


def _count(file: IO[bytes]) -> int:
    """Return a number of variables or aliases."""
    count = _number(file, "<I")
    if count > MAX_VARIABLES:
        raise _Misfit(f"it has {count:,} variables")
    return count


def _variable(file: IO[bytes], name: str) -> Variable:
    """Return a variable. The position in the file is then after its values."""
    shape = tuple(_number(file, "<I") for _ in range(_number(file, "<B")))
    code = _number(file, "<B")
    size = _number(file, "<I")
    if code not in TYPES or size != math.prod(shape) * TYPES[code][1]:
        raise _Misfit(f"{name!r} has type {code}, shape {shape} and {size:,} bytes")
    if not shape and code != FLOAT32:
        return Variable(code, shape, _number(file, {INT8: "<b", INT16: "<h"}[code]))
    file.seek(size, io.SEEK_CUR)  # after the end of a short file, the next read finds nothing
    return Variable(code, shape)


def _add(mapping: dict[str, T], name: str, value: T) -> None:
    if name in mapping:
        raise _Misfit(f"it has {name!r} twice")
    mapping[name] = value


def _number(file: IO[bytes], form: str) -> int:
    return struct.unpack(form, _bytes(file, struct.calcsize(form)))[0]


def _string(file: IO[bytes]) -> str:
    size = _number(file, "<H")
    content = _bytes(file, size) if size <= MAX_STRING else b""
    if content[-1:] != b"\0" or b"\0" in content[:-1]:
        raise _Misfit("a name in it is not readable")
    return content[:-1].decode(errors="backslashreplace")


def _bytes(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise _Misfit("it is cut")
    return content
