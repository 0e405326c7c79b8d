"""Where models compute, tested without a GPU: the device "meta", which has no values, stands for one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_encoders import bert_folder
from support.small_members import gpt2_folder
from support.toy_task import Toy

import transduce
import transduce.family
from transduce.decoding.backends import fastest_precision
from transduce.storage.model_folder import load_model
from transduce.train import TranslationTask
from transduce.training import distributed
from transduce.training.notices import slow_precision
from transduce.training.run import Run
from transduce.training.weights import weights


@pytest.fixture(autouse=True)
def other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "device", lambda: torch.device("meta"))


def test_a_model_is_on_the_device_except_in_int8(toy: Toy) -> None:
    assert transduce.load(toy.model).models[0].output.weight.is_meta
    assert transduce.load(toy.model, precision="int8").translate(["a b c"])[0].text == "c b a"


def test_a_member_is_on_the_device_except_in_a_precision_of_the_kernels(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "gpt2")
    assert transduce.family.load(bert_folder(tmp_path / "bert", "pooler")).model.encoder.embedding.weight.is_meta
    assert transduce.family.load(folder, precision="auto").precision == "fp32"
    assert transduce.family.load(folder).prepared_model.embedding.weight.is_meta
    for precision in ("bf16", "int8"):
        assert transduce.family.load(folder, precision=precision).continue_("a dog").text


def test_a_sharded_run_evaluates_on_the_cpu(toy: Toy, tmp_path: Path) -> None:
    loaded, names = load_model(toy.model), ("src", "tgt")
    batches: Any = None  # an evaluation needs none
    texts = batches, [("a b", "b a")], names
    run = Run(tmp_path, TranslationTask(), loaded.config, loaded.tokenizer, *texts, [], is_sharded=True)
    assert run.evaluate(weights(loaded.model))["bleu"] >= 0


@pytest.mark.parametrize("is_supported", [True, False])
def test_bf16_is_the_fastest_only_on_a_gpu_that_has_it(is_supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: is_supported)
    monkeypatch.setattr(distributed, "device", lambda: torch.device("cuda"))
    assert fastest_precision(torch.device("cuda"), []) == ("bf16" if is_supported else "fp32")
    assert len(slow_precision("bf16")) == (not is_supported)
