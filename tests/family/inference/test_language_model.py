"""Language models: text in, its continuation out."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_members import gpt2_folder
from tokenizers import Tokenizer

import transduce
from transduce import UserError
from transduce.errors import NotFiniteError
from transduce.family.inference.continuation import GREEDY, continue_ids
from transduce.family.inference.cpu_language_model import CpuLanguageModel
from transduce.family.inference.language_model import LanguageModel
from transduce.family.inference.text_generator import Output

TEXTS = ["two young men", "", "a dog", "x" * 100, " \t", "a man"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("original") / "gpt2")


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return transduce.family.load(folder)


def test_text_and_continuation_are_the_text_of_all_ids(model: LanguageModel, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode("two young").ids
    (output,) = continue_ids(model.prepared_model, [prompt], model.ends)
    answer = model.continue_("two young")
    assert "two young" + answer.text == tokenizer.decode([*prompt, *output.ids])
    assert (answer.score, answer.finished) == (output.score, output.finished)


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"sampling": transduce.Sampling(1.5), "seed": 7}])
def test_the_other_texts_do_not_change_a_continuation(model: LanguageModel, options: Any) -> None:
    together = model.continue_texts(TEXTS, max_tokens=6, **options)
    for number, text in enumerate(TEXTS, start=1):
        (alone,) = model.continue_texts([text], max_tokens=6, first_number=number, **options)
        assert together[number - 1].text == alone.text
    assert together[1] == together[4] == Output()
    assert together[3].problem == "expected at most 39 tokens, not 100; split the line"


def test_a_precision_is_of_all_continuations(folder: Path) -> None:
    model = transduce.family.load(folder, precision="int8")
    together = model.continue_texts(TEXTS, max_tokens=6)
    prompts = [model.tokenizer.encode(TEXTS[i]).ids for i in (0, 2, 5)]
    outputs = continue_ids(
        CpuLanguageModel(model.model, "int8"), prompts, model.ends, replace(GREEDY, max_extra_tokens=6)
    )
    assert [together[i].score for i in (0, 2, 5)] == [output.score for output in outputs]
    assert together[0].score != transduce.family.load(folder).continue_texts(TEXTS, max_tokens=6)[0].score
    assert copy.deepcopy(model).continue_texts(TEXTS, max_tokens=6) == together
    assert transduce.family.load(folder, precision="auto").precision in ("int8", "bf16", "fp32")
    with pytest.raises(UserError, match="precision='fp8': expected one of fp32, bf16, int8, auto"):
        transduce.family.load(folder, precision="fp8")


def test_generation_config_names_the_ends(folder: Path, tmp_path: Path) -> None:
    transduce.family.load(folder).save(tmp_path / "copy")
    assert transduce.family.load(tmp_path / "copy").ends == [0]
    (tmp_path / "copy" / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9, 10**9]}))
    assert transduce.family.load(tmp_path / "copy").ends == [7, 9]
    (tmp_path / "copy" / "generation_config.json").write_text(json.dumps({"eos_token_id": "7"}))
    with pytest.raises(UserError, match="eos_token_id: expected an id, or a list of ids"):
        transduce.family.load(tmp_path / "copy")
    (tmp_path / "copy" / "generation_config.json").write_text(json.dumps({"eos_token_id": [*range(2_000)]}))
    with pytest.raises(
        UserError, match=r"^eos_token_id: 2,000 ids: expected at most 100 in gen.*; leave the others out$"
    ):
        transduce.family.load(tmp_path / "copy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens=0: expected an integer from 1"),
        ({"n_best": 2}, "n_best=2: must not be set for a model of the family"),
        ({"beam_size": 0}, "beam_size=0"),
        ({"tag": "<2de>"}, "tag=<2de>: must not be set for a model of the family"),
        ({"shortlist": True}, "shortlist=True: must not be set for a model of the family"),
    ],
)
def test_options_that_cannot_be_met_are_refused(model: LanguageModel, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        model.continue_("a dog", **options)


def test_a_model_whose_outputs_are_not_finite_is_named(folder: Path, tmp_path: Path) -> None:
    model = transduce.family.load(folder)
    with torch.no_grad():
        model.model.embedding.weight.fill_(torch.nan)
    with pytest.raises(NotFiniteError, match=f"{folder}: expected outputs that are finite numbers"):
        model.continue_("a dog")


def test_a_folder_without_a_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    model = transduce.family.load(folder)
    model.save(tmp_path / "copy")
    (tmp_path / "copy" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="expected tokenizer.json"):
        transduce.family.load(tmp_path / "copy").continue_("a dog")
