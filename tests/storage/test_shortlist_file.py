"""The shortlist in a model folder: written into it with nothing lost, verified, and refused where it does not fit."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.attack_files import contents, forge
from support.random_models import CONFIG, random_model, save_to

from transduce.decoding.shortlist.table import Shortlist
from transduce.errors import UserError
from transduce.storage.model_folder import SHORTLIST_FILE, load_model, save_model, save_shortlist
from transduce.storage.tensors import encode_tensors
from transduce.training.weights import weights


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_to(random_model(CONFIG), tmp_path_factory.mktemp("models") / "plain")


@pytest.fixture
def model(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "model"))


def shortlist_for(model: Path, seed: int = 1) -> Shortlist:
    size = load_model(model).tokenizer.vocab_size
    candidates = np.random.default_rng(seed).integers(0, size, (size, 3), dtype=np.int32)
    return Shortlist(np.array([0, 1, 2, 3, 7, 30], dtype=np.int32), candidates)


def test_a_shortlist_is_added_and_replaced(model: Path) -> None:
    (model / "README.md").write_bytes(b"my card \xff\n")
    (model / "notes").mkdir()
    (model / "notes" / "mine.txt").write_bytes(b"mine")
    before = contents(model)
    for seed in (1, 2):
        shortlist = shortlist_for(model, seed)
        save_shortlist(model, shortlist)
        loaded = load_model(model).shortlist
        assert loaded is not None
        assert (loaded.common == shortlist.common).all() and (loaded.candidates == shortlist.candidates).all()
    after = contents(model)
    assert after.keys() - before.keys() == {SHORTLIST_FILE}
    assert {name for name in before if after[name] != before[name]} == {"manifest.json"}
    assert [path.name for path in model.parent.iterdir()] == ["model"]


def test_a_folder_is_found_by_its_link_and_from_inside(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model.parent / "link").symlink_to(model)
    save_shortlist(model.parent / "link", shortlist_for(model))
    assert (model.parent / "link").is_symlink() and load_model(model).shortlist is not None
    monkeypatch.chdir(model)
    save_shortlist(Path(), shortlist_for(model))
    assert load_model(model).shortlist is not None


def test_a_failed_write_leaves_the_folder(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, shortlist = contents(model), shortlist_for(model)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transduce.storage.atomic_folder._write_synced", full)
    with pytest.raises(OSError, match="No space"):
        save_shortlist(model, shortlist)
    assert contents(model.parent) == {"model": b""} | {f"model/{name}": content for name, content in before.items()}


def test_a_new_model_folder_can_have_one(model: Path, tmp_path: Path) -> None:
    loaded, out = load_model(model), tmp_path / "out"
    save_model(out, weights(loaded.model), loaded.config, loaded.tokenizer, "", shortlist_for(model))
    assert load_model(out).shortlist is not None and load_model(model).shortlist is None


# ---- damaged ones ------------------------------------------------------------------------------------------------


def with_candidates(change: Callable[[np.ndarray], object]) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda arrays: change(arrays["candidates"])


def replaced(name: str, values: object, dtype: type = np.int32) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda arrays: arrays.update({name: np.array(values, dtype=dtype)})


HOSTILE: dict[str, tuple[Callable[[dict[str, np.ndarray]], object], str]] = {
    "an id too high": (with_candidates(lambda table: table.__setitem__((5, 1), 1 << 30)), "ids that are not below"),
    "an id below 0": (with_candidates(lambda table: table.__setitem__((5, 1), -1)), "ids that are not below"),
    "a common id too high": (replaced("common", [0, 1, 2, 3, 10**6]), "ids that are not below"),
    "ids twice": (replaced("common", [0, 1, 2, 3, 9, 9]), "do not ascend"),
    "no EOS": (replaced("common", [0, 1, 3, 5, 7]), "do not begin with the control ids"),
    "nothing common": (replaced("common", [0]), "do not begin with the control ids"),
    "another vocabulary": (replaced("candidates", [[4, 5]] * 9), "for .* source pieces"),
    "one dimension": (replaced("candidates", [4, 5]), "its shapes are"),
    "other numbers": (replaced("common", [0, 1, 2, 3], np.float32), "int32 tensors common and candidates"),
    "half numbers": (replaced("common", [0, 1, 2, 3], np.float16), "int32 tensors common and candidates"),
    "a name too many": (replaced("more", [1]), "int32 tensors common and candidates"),
    "a name too few": (lambda arrays: arrays.pop("common"), "int32 tensors common and candidates"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_shortlist_that_does_not_fit_is_refused(name: str, model: Path) -> None:
    change, message = HOSTILE[name]
    shortlist = shortlist_for(model)
    arrays = {"common": shortlist.common, "candidates": shortlist.candidates}
    change(arrays)
    content = b"".join(encode_tensors({name: torch.from_numpy(array) for name, array in arrays.items()}))
    forge(model, SHORTLIST_FILE, content)
    with pytest.raises(UserError, match=rf"{SHORTLIST_FILE}: expected .*{message}.*; learn it again"):
        load_model(model)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 99, b"\x10" + bytes(7) + b"{" * 16])
def test_foreign_content_is_refused(content: bytes, model: Path) -> None:
    forge(model, SHORTLIST_FILE, content)
    with pytest.raises(UserError, match=f"{SHORTLIST_FILE}: expected readable tensors"):
        load_model(model)


def test_a_shortlist_is_verified(model: Path) -> None:
    save_shortlist(model, shortlist_for(model))
    path = model / SHORTLIST_FILE
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=f"{SHORTLIST_FILE}: expected the SHA-256 in manifest.json"):
        load_model(model)
    path.write_bytes(content[:-1])
    with pytest.raises(UserError, match=f"{SHORTLIST_FILE}: expected .* bytes"):
        load_model(model)
    path.unlink()
    with pytest.raises(UserError, match=SHORTLIST_FILE):
        load_model(model)
