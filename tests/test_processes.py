"""A file in the working folder, such as queue.py, is never executed by the processes that the program starts."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.small_texts import open_one, sentences, write_corpus
from support.toy_task import write_lines

from transduce.cleaning import clean
from transduce.console import import_path, module_command
from transduce.data import tokenize_corpus
from transduce.data.corpora import Corpus
from transduce.data.tokenizer import Tokenizer
from transduce.studies.trainings import Texts, Training, TrainingProcess

MODULES = ("queue", "random", "signal", "socket", "tokenizers", "transduce", "sitecustomize")


@pytest.fixture(params=["", os.pathsep], ids=["", "an empty entry"])
def canary(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that modules of the working folder create when they are executed."""
    canary, folder = tmp_path / "canary", tmp_path / "working"
    folder.mkdir()
    for module in MODULES:
        (folder / f"{module}.py").write_text(f"open({str(canary)!r}, 'w')", encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", "") + request.param)
    return canary


def test_preparing_text_imports_nothing_from_the_working_folder(
    canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenize_corpus, "FILE_PAIRS", 40)
    monkeypatch.setattr(tokenize_corpus, "cores", lambda: 2)
    pairs = sentences(80)
    tokenizer = Tokenizer.learn((side for pair in pairs for side in pair), vocab_size=320)
    assert len(open_one(tmp_path / "data", write_corpus(tmp_path, pairs), tokenizer)) == 80
    assert not canary.exists()


def test_cleaning_imports_nothing_from_the_working_folder(
    canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean, "PORTION", 2)
    monkeypatch.setattr(clean, "cores", lambda: 2)
    corpus = Corpus(write_lines(tmp_path / "a", ["a"] * 10), write_lines(tmp_path / "b", ["b"] * 10))
    judge = clean._Judge(None, None, np.zeros(10, np.int8))
    assert not any(places.any() for places in judge.places(corpus, np.ones(10, bool), None).values())
    assert not canary.exists()


def test_a_study_imports_nothing_from_the_working_folder(canary: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.en", tmp_path / "missing.de"
    process = TrainingProcess(Training("row", 1, "mixture"), Texts(missing, missing), tmp_path / "row-1")
    process._all_stages = lambda: [("train", ["recipes", "multi30k-tiny"])]  # which needs no torch
    with (tmp_path / "lock").open("wb") as lock:
        process.start({**os.environ}, lock.fileno())
    assert process.process.wait() == 0
    assert "multi30k-tiny" in (tmp_path / "row-1.train.json").read_text(encoding="utf-8")
    assert not canary.exists()


def test_the_import_path_has_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "/a", "", "/b", ""]))
    *others, package = import_path().split(os.pathsep)
    assert others == ["/a", "/b"] and (Path(package) / "transduce" / "console.py").is_file()
    command = module_command("transduce", "--version")
    output = subprocess.check_output(command, cwd=tmp_path, env={"PYTHONPATH": import_path()}, text=True)
    assert command[0] == sys.executable and output.count(".") == 2
