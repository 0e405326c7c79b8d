"""Model folders: a saved model loads unchanged; folders that are damaged, mixed or of another kind are refused."""

import ast
import dataclasses
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transduce
from transduce.config.files import to_json
from transduce.config.schema import Config, DataConfig, ModelConfig
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError
from transduce.model.transformer import Transformer
from transduce.storage.atomic_folder import write_folder
from transduce.storage.checkpoints import Checkpoint, save_checkpoint
from transduce.storage.model_folder import load_model, save_model
from transduce.training.weights import set_weights, weights

# ---- models ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tiny:
    """A model with configuration and tokenizer, in memory."""

    model: Transformer
    config: Config
    tokenizer: Tokenizer

    def save(self, path: Path) -> Path:
        save_model(path, weights(self.model), self.config, self.tokenizer, "# A card\n")
        return path


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(["a dog runs and a cat runs"] * 2, vocab_size=300)


@pytest.fixture
def tiny(tokenizer: Tokenizer) -> Iterator[Tiny]:
    torch.manual_seed(1)
    model = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=8, n_layers=2, n_heads=2, d_ff=16)
    yield Tiny(Transformer(model), Config(model=model, data=DataConfig(vocab_size=300)), tokenizer)


@pytest.fixture
def model_path(tiny: Tiny, tmp_path: Path) -> Path:
    return tiny.save(tmp_path / "model")


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_saved_model_loads_unchanged(tiny: Tiny, model_path: Path) -> None:
    names = {"model.safetensors", "config.json", "tokenizer.json", "README.md", "manifest.json"}
    assert {path.name for path in model_path.iterdir()} == names
    loaded = load_model(model_path)
    assert loaded.config == tiny.config and loaded.tokenizer.to_json() == tiny.tokenizer.to_json()
    assert equal(weights(loaded.model), weights(tiny.model))
    assert not loaded.model.training
    src = torch.tensor([[5, 6, 7]])
    mask = torch.ones_like(src, dtype=torch.bool)
    assert torch.equal(loaded.model(src, mask, src), tiny.model.eval()(src, mask, src))


def test_a_moved_and_linked_model_loads(model_path: Path, tmp_path: Path) -> None:
    new_path = model_path.rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(new_path)
    load_model(tmp_path / "link")


def test_every_file_of_a_model_is_verified(model_path: Path) -> None:
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        content = (model_path / name).read_bytes()
        (model_path / name).write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        with pytest.raises(UserError, match=f"{name}: expected the SHA-256 in manifest.json"):
            load_model(model_path)
        (model_path / name).write_bytes(content)
    load_model(model_path)


def replace_file(folder: Path, name: str, content: bytes | None) -> None:
    """Replace a file of a folder, or remove it, and write a manifest that fits."""
    files = {path.name: [path.read_bytes()] for path in folder.iterdir() if path.name != "manifest.json"}
    if content is None:
        del files[name]
    else:
        files[name] = [content]
    shutil.rmtree(folder)
    write_folder(folder, files)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_model_without_one_of_its_files_is_refused(model_path: Path, name: str) -> None:
    replace_file(model_path, name, None)
    with pytest.raises(UserError, match=f"expected a model folder with {name}"):
        load_model(model_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"null", b"[" * 100_000, b"\x80\x04\x95"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_of_foreign_content_is_refused(model_path: Path, name: str, content: bytes) -> None:
    replace_file(model_path, name, content)
    with pytest.raises(UserError, match=name):
        load_model(model_path)


def test_the_tokenizer_of_another_model_is_refused(model_path: Path) -> None:
    other = Tokenizer.learn(["another text with other letters: xyz"] * 2, vocab_size=310)
    other.save(model_path / "tokenizer.json")
    with pytest.raises(UserError, match="tokenizer.json"):
        load_model(model_path)
    replace_file(model_path, "tokenizer.json", other.to_json().encode())
    with pytest.raises(UserError, match=f"as many as the model has embedding rows, not {other.vocab_size}"):
        load_model(model_path)


@pytest.mark.parametrize(
    "sizes",
    [
        {"d_model": 10**6},
        {"d_ff": 10**6},
        {"n_layers": 10**4},
        {"n_heads": 1, "d_k": 10**6},
        {"n_heads": 10**4, "d_k": 4, "d_v": 4},
        {"positions": "learned", "max_positions": 10**6},
        {"d_model": 16},
        {"n_layers": 3},
        {"n_encoder_layers": 1, "n_decoder_layers": 3},
        {"n_decoder_layers": 10**4},
        {"n_heads": 4},
        {"d_ff": 4096},
        {"norm": "pre"},
        {"tie_src_tgt": False},
        {"attention_bias": False},
    ],
)
def test_a_configuration_of_another_size_is_refused_within_two_seconds(
    tiny: Tiny, model_path: Path, sizes: dict[str, Any]
) -> None:
    model = dataclasses.replace(tiny.config.model, **sizes)
    replace_file(model_path, "config.json", to_json(dataclasses.replace(tiny.config, model=model)).encode())
    if sizes == {"n_heads": 4}:  # changes no shape
        load_model(model_path)
        return
    started_at = time.monotonic()
    with pytest.raises(UserError, match="expected the tensors of its configuration"):
        load_model(model_path)
    assert time.monotonic() - started_at < 2


def test_weights_that_are_not_finite_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    with torch.no_grad():
        tiny.model.src_embedding.weight[3, 3] = float("nan")
    with pytest.raises(UserError, match="expected finite numbers in src_embedding.weight"):
        load_model(tiny.save(tmp_path / "model"))


def test_runs_and_checkpoints_are_refused_with_a_remedy(tiny: Tiny, tmp_path: Path) -> None:
    run = tmp_path / "run"
    path = save_checkpoint(run, Checkpoint({}, {}, None, {"step": 5}))
    with pytest.raises(UserError, match="run: expected a model folder, not an unfinished run"):
        load_model(run)
    tiny.save(run / "model")
    with pytest.raises(UserError, match=f"run: expected a model folder, not a run; use {run / 'model'}"):
        load_model(run)
    with pytest.raises(UserError, match=f"not a checkpoint; use transduce average {run} --last 1"):
        load_model(path)
    with pytest.raises(
        UserError, match="expected a model folder such as RUN/model, but it does not exist; check the path"
    ):
        load_model(tmp_path / "absent")
    with pytest.raises(UserError, match="expected a folder written by transduce"):
        load_model(tmp_path)
    (tmp_path / "transduce.json").touch()
    with pytest.raises(UserError, match="not an export to CTranslate2, which `transduce translate`"):
        load_model(tmp_path)


# ---- weights -----------------------------------------------------------------------------------------------------


def test_weights_are_copies(tiny: Tiny) -> None:
    copies = weights(tiny.model)
    before = copies["src_embedding.weight"].clone()
    with torch.no_grad():
        tiny.model.src_embedding.weight.add_(1)
    assert torch.equal(copies["src_embedding.weight"], before)
    set_weights(tiny.model, copies, "here")
    assert equal(weights(tiny.model), copies)
    assert "output.weight" not in copies and "tgt_embedding.weight" not in copies  # tied to the source embedding


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("encoder_extra.weight", torch.zeros(1), "encoder_extra.weight is in only one of the two"),
        ("src_embedding.weight", None, "src_embedding.weight is in only one of the two"),
        ("src_embedding.weight", torch.zeros(2, 2), r"src_embedding.weight has the shape \(2, 2\), not "),
        (
            "encoder.0.feed_forward.w_1.bias",
            torch.full((16,), float("nan")),
            "expected finite numbers in .*w_1.bias",
        ),
        (
            "encoder.0.feed_forward.w_1.bias",
            torch.full((16,), float("inf")),
            "expected finite numbers in .*w_1.bias",
        ),
        ("encoder.0.feed_forward.w_1.bias", torch.ones(16, dtype=torch.int64), "in .*w_1.bias, not torch.int64"),
    ],
)
def test_weights_that_do_not_fit_leave_the_model_unchanged(
    tiny: Tiny, name: str, value: Tensor | None, words: str
) -> None:
    before = weights(tiny.model)
    tensors = {key: torch.zeros_like(tensor) for key, tensor in before.items()}
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    with pytest.raises(UserError, match=words):
        set_weights(tiny.model, tensors, "here")
    assert equal(weights(tiny.model), before)


# ---- no pickle ---------------------------------------------------------------------------------------------------


def test_no_module_unpickles_or_executes_text() -> None:
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    calls = {"torch.load", "torch.jit.load", "np.load", "numpy.load", "eval", "exec", "pickle.loads", "torch.save"}
    package = Path(transduce.__file__).parent
    files = sorted(package.rglob("*.py"))
    assert package / "storage" / "tensors.py" in files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not modules & {alias.name.split(".")[0] for alias in node.names}, file
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in modules, file
            elif isinstance(node, ast.Call):
                if "weights_only=True" not in map(ast.unparse, node.keywords):  # which runs no code of a file
                    assert ast.unparse(node.func) not in calls, f"{file}:{node.lineno}"


@pytest.mark.parametrize("beam_size", [b"5", b"16"])
def test_an_edited_setting_is_refused_with_the_command_that_changes_it(model_path: Path, beam_size: bytes) -> None:
    path = model_path / "config.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"beam_size": 4', b'"beam_size": ' + beam_size))
    command = rf"or undo the edit; transduce configure {model_path} --set search\.KEY=VALUE changes a setting"
    with pytest.raises(UserError, match=command):
        load_model(model_path)
    path.write_bytes(text)
    assert load_model(model_path)
