"""Folders that transduce 0.1.0 wrote before the packages of today: they load, resume and give the same figures.

tests/support/golden holds a run after 300 steps, the weights of the same run after 320 steps, a model of each other
kind, and the translations and scores that 0.1.0 computed with them (beam 3, two outputs for each line).
"""

import json
import math
import shutil
from pathlib import Path

import pytest
import safetensors.torch
from support.toy_task import ROOT
from torch.testing import assert_close

import transduce
from transduce.storage.run_folder import average_run

GOLDEN = ROOT / "tests" / "support" / "golden"
MODELS = {"run": GOLDEN / "run" / "model", "recurrent": GOLDEN / "recurrent", "convolutional": GOLDEN / "convolutional"}


def lines_of(name: str) -> list[str]:
    return (GOLDEN / name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", MODELS)
def test_an_older_model_translates_as_before(name: str) -> None:
    expected = [json.loads(line) for line in lines_of(f"{name}.translations.jsonl")]
    translations = transduce.load(MODELS[name]).translate(lines_of("valid.src"), beam_size=3, n_best=2)
    for old, new in zip(expected, translations, strict=True):
        outputs = [new, *new.alternatives]
        assert [output.text for output in outputs] == [old["text"], *(other["text"] for other in old["alternatives"])]
        assert math.isclose(new.score, old["score"], abs_tol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_an_older_model_scores_as_before(name: str) -> None:
    expected = [json.loads(line)["log_prob"] for line in lines_of(f"{name}.scores.jsonl")]
    scores = transduce.load(MODELS[name]).score(lines_of("valid.src"), lines_of("valid.tgt"))
    assert [score.log_prob for score in scores] == pytest.approx(expected, abs=1e-4)


def test_an_older_run_gives_a_mean(tmp_path: Path) -> None:
    average_run(GOLDEN / "run", last=1, out=tmp_path / "model")
    expected = safetensors.torch.load_file(GOLDEN / "run" / "checkpoints" / "step-00000300" / "model.safetensors")
    weights = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert all(weights[name].equal(value) for name, value in expected.items())


def test_an_older_run_resumes_and_reaches_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The expected weights are newer than the run: BPE-dropout, which it has, now drops other merges (CHANGELOG.md).
    folder = tmp_path / "golden"
    shutil.copytree(GOLDEN, folder)
    monkeypatch.chdir(folder)
    transduce.fit(
        "train.src",
        "train.tgt",
        valid=("valid.src", "valid.tgt"),
        out="run",
        recipe="recipe.py:tiny",
        settings=["train.max_steps=320"],
        allow_change=["train.max_steps"],
    )
    files = folder / "run" / "model" / "model.safetensors", folder / "weights-at-step-320.safetensors"
    weights, expected = map(safetensors.torch.load_file, files)
    assert weights.keys() == expected.keys()
    for name in weights:
        # A bias of all keys changes no attention weight. Its gradient is rounding, which Adam makes as large as others.
        if not name.endswith("w_k.bias"):
            assert_close(
                weights[name], expected[name], rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
            )
