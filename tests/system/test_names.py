"""File names that are not UTF-8: commands use them, and store and print them with escapes."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.toy_task import CommandResult
from support.trainings import Texts, train

from transduce.data.corpora import Corpus
from transduce.data.text import decode_names, encode_names
from transduce.data.token_store import open_store
from transduce.data.tokenizer import Tokenizer
from transduce.interop.ctranslate2_export import export_ctranslate2
from transduce.storage.checkpoints import checkpoints, load_state

LATIN = os.fsdecode(b"\xe4")  # a letter in ISO-8859-1


def renamed(path: Path, folder: Path) -> Path:
    """Copy a file to `folder` under a name that is not UTF-8."""
    return Path(shutil.copy(path, folder / f"{path.stem}{LATIN}{path.suffix}"))


@pytest.fixture
def latin_texts(run_texts: Texts, tmp_path: Path) -> Texts:
    return {name: (renamed(src, tmp_path), renamed(tgt, tmp_path)) for name, (src, tgt) in run_texts.items()}


def test_a_run_stores_and_resumes_with_every_name(
    latin_texts: Texts, finished_runs: dict[str, Path], tmp_path: Path
) -> None:
    program = "from support.trainings import USES\nrecipe = lambda: USES['ema']\n"
    (tmp_path / f"r{LATIN}.py").write_text(program, encoding="utf-8")
    parent, out = tmp_path / f"m{LATIN}", tmp_path / f"run{LATIN}"
    shutil.copytree(finished_runs["ema"] / "model", parent)
    recipe = f"{tmp_path / f'r{LATIN}.py'}:recipe"
    for steps in (9, 10):
        settings = [f"train.max_steps={steps}"]
        train(
            recipe, out=out, start_from=parent, settings=settings, resume=True, allow_change=["train.max_steps"],
            **latin_texts,
        )  # fmt: skip
    facts = load_state(checkpoints(out)[-1])["made_of"]
    assert "r\\xe4.py:recipe" in facts["recipe"] and "m\\xe4" in facts["recipe"]
    assert facts["training text"] == "train\\xe4.src and train\\xe4.tgt"
    assert "on valid\\xe4.src and valid\\xe4.tgt" in (out / "model" / "README.md").read_text("utf-8")
    assert "train\\xe4.src" in (out / "report.html").read_text("utf-8")


def test_a_packed_text_is_not_unpacked_again(run_texts: Texts, finished_runs: dict[str, Path], tmp_path: Path) -> None:
    packed = tmp_path / f"t{LATIN}.gz"
    packed.write_bytes(gzip.compress(run_texts["train"][0].read_bytes()))
    tokenizer = Tokenizer.load(finished_runs["ema"] / "tokenizer.json")
    corpus = Corpus(packed, run_texts["train"][1])
    open_store(tmp_path / "store", [corpus], tokenizer)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    store = open_store(tmp_path / "store", [corpus], tokenizer)
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    assert "t\\xe4.gz" in store.where(np.arange(2))


def test_json_for_other_processes_keeps_names() -> None:
    assert decode_names(encode_names({LATIN: [LATIN]}), dict[str, list[str]]) == {LATIN: [LATIN]}


def test_results_have_escaped_names(latin_texts: Texts, cli: Callable[..., CommandResult]) -> None:
    src, tgt = latin_texts["valid"]
    result = cli("check", src, tgt, "--valid", src, tgt, "--json")
    assert result.code in (0, 2) and "valid\\xe4.src" in json.loads(result.out)["sides"][0]["name"]
    assert b"valid\\xe4.src" in cli("check", src, tgt).out
    result = cli("evaluate", "--hyp", src, "--ref", tgt, "--json")
    (name,) = json.loads(result.out)["systems"]
    assert result.code == 0 and name.endswith("valid\\xe4.src")


def test_exported_cards_have_escaped_names(finished_runs: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    model = tmp_path / f"m{LATIN}"
    shutil.copytree(finished_runs["ema"] / "model", model)
    export_ctranslate2(model, tmp_path / "out")
    assert "m\\xe4, with weights" in (tmp_path / "out" / "README.md").read_text("utf-8")
