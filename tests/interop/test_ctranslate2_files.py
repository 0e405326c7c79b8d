"""CTranslate2's own files are compared with the configuration before CTranslate2 opens them, because it trusts them."""

import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from support.random_models import CONFIG, random_model, save_to

from transduce import UserError
from transduce.config.files import from_json
from transduce.data.tokenizer import Tokenizer
from transduce.storage.atomic_folder import write_folder

pytest.importorskip("ctranslate2", reason="needs transduce[export]")

from transduce.interop import ctranslate2_engine as engine  # noqa: E402
from transduce.interop.ctranslate2_export import export_ctranslate2  # noqa: E402
from transduce.interop.ctranslate2_files import check_files  # noqa: E402

Files = dict[str, bytes]
SIZES = {0: 4, 1: 1, 2: 2}  # bytes of a value, by the code of its type


@pytest.fixture(scope="module", params=["fp32", "int8"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The content of each file of an exported model."""
    folder = tmp_path_factory.mktemp("export")
    export_ctranslate2(save_to(random_model(CONFIG), folder / "model"), folder / "out", request.param)
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir() if path.name != "manifest.json"}


def load(files: Files, folder: Path) -> engine.ExportedTranslator:
    """Write an exported model with a valid manifest, and load it."""
    write_folder(folder, {name: [content] for name, content in files.items()})
    return engine.load(folder)


def string(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def changed_variable(model: bytes, name: str, change: Callable[[list[int]], None]) -> bytes:
    """Return model.bin with another shape of a variable, and as many values as this shape has."""
    start = model.index(string(name)) + len(string(name))
    rank = model[start]
    shape = [*struct.unpack_from(f"<{rank}I", model, start + 1)]
    code, size = struct.unpack_from("<BI", model, start + 1 + 4 * rank)
    values = start + 1 + 4 * rank + 5
    change(shape)
    new_size = SIZES[code]
    for side in shape:
        new_size *= side
    content = (model[values : values + size] * 2)[:new_size].ljust(new_size, b"\1")
    header = struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, code, new_size)
    return model[:start] + header + content + model[values + size :]


def one_row(shape: list[int]) -> None:
    shape[0] = 1


def one_more(shape: list[int]) -> None:
    shape[-1] += 1


def flat(shape: list[int]) -> None:
    shape.clear()


ARRAYS = [
    "decoder/embeddings/weight",
    "decoder/position_encodings/encodings",
    "encoder/layer_0/self_attention/layer_norm/gamma",
    "encoder/layer_1/self_attention/linear_0/weight",
    "decoder/layer_0/attention/linear_1/bias",
    "decoder/layer_1/ffn/linear_1/weight",
]


@pytest.mark.parametrize("change", [one_row, one_more, flat])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_other_shapes_are_refused(
    files: Files, tmp_path: Path, name: str, change: Callable[[list[int]], None]
) -> None:
    model = changed_variable(files["model.bin"], name, change)
    with pytest.raises(UserError, match=rf"model\.bin: expected .*{name}.*; export the model again"):
        load({**files, "model.bin": model}, tmp_path / "out")


NUMBERS = {
    "encoder/num_heads": b"\0\0",  # CTranslate2 divides by it
    "decoder/num_heads": b"\7\0",
    "encoder/pre_norm": b"\1",  # there is no norm after the stack
    "decoder/activation": b"\5",
    "decoder/alibi": b"\1",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_other_numbers_are_refused(files: Files, tmp_path: Path, name: str) -> None:
    start = files["model.bin"].index(string(name)) + len(string(name)) + 1 + 5
    model = bytearray(files["model.bin"])
    model[start : start + len(NUMBERS[name])] = NUMBERS[name]
    with pytest.raises(UserError, match=rf"model\.bin: expected .*{name}"):
        load({**files, "model.bin": bytes(model)}, tmp_path / "out")


def test_missing_further_and_renamed_variables_are_refused(files: Files, tmp_path: Path) -> None:
    model = files["model.bin"]
    changes = {
        "it is cut": model[:-9],
        "it has further bytes": model + b"\0",
        "its version is 7": b"\7" + model[1:],
        "is in only one of the two": model.replace(string("encoder/num_heads"), string("encoder/num_headz")),
        "'decoder/num_heads' twice": model.replace(string("encoder/num_heads"), string("decoder/num_heads")),
        "has the values of 'decoder/num_heads'": model.replace(
            string("encoder/embeddings_0/weight") + string("decoder/embeddings/weight"),
            string("encoder/embeddings_0/weight") + string("decoder/num_heads"),
        ),
        "is not readable": model.replace(string("encoder/num_heads"), string("encoder/num\0heads")),
        "it has 4,294,967,295 variables": model[: model.index(b"Spec\0") + 9] + b"\xff" * 4,
    }
    for number, (message, content) in enumerate(changes.items()):
        with pytest.raises(UserError, match=f"expected the content that fits .*{re.escape(message)}"):
            load({**files, "model.bin": content}, tmp_path / str(number))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("shared_vocabulary.json", lambda pieces: pieces.pop()),
        ("shared_vocabulary.json", lambda pieces: pieces.append("x")),
        ("shared_vocabulary.json", lambda pieces: pieces.__setitem__(5, None)),
        ("config.json", lambda settings: settings.update(add_source_eos=1)),
        ("config.json", lambda settings: settings.update(layer_norm_epsilon=None)),
        ("config.json", lambda settings: settings.update(unk_token="no piece")),
        ("config.json", lambda settings: settings.update(quantization_type=1, quantization_bits=4)),
        ("transduce.json", lambda config: config["model"].update(vocab_size=None)),
        ("transduce.json", lambda config: config["model"].update(vocab_size=7)),
    ],
)
def test_other_settings_and_vocabularies_are_refused(
    files: Files, tmp_path: Path, name: str, change: Callable[[object], None]
) -> None:
    content = json.loads(files[name])
    change(content)
    with pytest.raises(UserError, match=rf"{name}: expected .*; export the model again"):
        load({**files, name: json.dumps(content).encode()}, tmp_path / "out")


@pytest.mark.parametrize("name", ["shared_vocabulary.json", "config.json", "transduce.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_files_that_are_not_json_are_refused(files: Files, tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(UserError, match=name):
        load({**files, name: content}, tmp_path / "out")


def test_a_configuration_of_larger_sizes_is_refused(files: Files, tmp_path: Path) -> None:
    config = json.loads(files["transduce.json"])
    others = [{"n_layers": 10_000}, {"n_decoder_layers": 1}, {"d_model": 1_000_000}, {"n_heads": 8}, {"norm": "pre"}]
    for number, sizes in enumerate(others):
        changed = {**config, "model": {**config["model"], **sizes}}
        with pytest.raises(UserError, match="model.bin: expected the content that fits transduce.json"):
            load({**files, "transduce.json": json.dumps(changed).encode()}, tmp_path / str(number))


def header(model: bytes) -> list[int]:
    """Return the positions of all bytes of model.bin that are not values of an array."""
    positions: list[int] = []

    def take(form: str) -> tuple[int, ...]:
        nonlocal place
        start, place = place, place + struct.calcsize("<" + form)
        positions.extend(range(start, place))
        return struct.unpack_from("<" + form, model, start)

    def name() -> None:
        take(f"{take('H')[0]}s")

    place = 0
    take("I")
    name()
    take("I")
    for _ in range(take("I")[0]):
        name()
        rank = take("B")[0]
        take(f"{rank}I")
        _, size = take("BI")
        if rank:
            place += size
        else:
            take(f"{size}s")
    for _ in range(take("I")[0]):
        name()
        name()
    assert place == len(model)
    return positions


def test_every_changed_bit_outside_of_the_values_is_found(files: Files, tmp_path: Path) -> None:
    where, random_bits = tmp_path / "transduce.json", random.Random(1)
    config = from_json(files["transduce.json"], where)
    tokenizer = Tokenizer.from_json(files["tokenizer.json"].decode())
    check_files(files, config, tokenizer, tmp_path)
    for position in random_bits.sample(header(files["model.bin"]), 300):
        model = bytearray(files["model.bin"])
        model[position] ^= 1 << random_bits.randrange(8)
        with pytest.raises(UserError, match=r"model\.bin: expected the content that fits"):
            check_files({**files, "model.bin": bytes(model)}, config, tokenizer, tmp_path)
