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
from transduce.family.inference.text_generator import GeneratedText

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


def with_generation(folder: Path, copy: Path, **values: Any) -> LanguageModel:
    """Return the model of a copy of the folder, with these values in its generation_config.json."""
    transduce.family.load(folder).save(copy)
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, "use_cache": True, **values}))
    return transduce.family.load(copy)


@pytest.mark.parametrize(
    "values",
    [
        {"repetition_penalty": 1.8, "max_new_tokens": 9},
        {"no_repeat_ngram_size": 2, "num_beams": 3, "temperature": 0.1},
        {"num_beams": 2, "length_penalty": 0.5, "min_new_tokens": 3},
    ],
)
def test_the_settings_of_a_folder_are_those_of_hugging_face(folder: Path, tmp_path: Path, values: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    model = with_generation(folder, tmp_path / "copy", pad_token_id=0, **{"max_new_tokens": 12, **values})
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "copy").eval()
    ids = torch.tensor([model.tokenizer.encode("two young").ids])
    expected = theirs.generate(ids, attention_mask=torch.ones_like(ids))[0]
    text = model.tokenizer.decode([i for i in expected.tolist() if i])
    assert "two young" + model.continue_("two young").text == text


def test_a_draw_or_a_search_of_the_caller_replaces_that_of_the_folder(folder: Path, tmp_path: Path) -> None:
    plain = transduce.family.load(folder)
    sampled = with_generation(folder, tmp_path / "copy", do_sample=True, temperature=1.5, top_k=0, top_p=0.9)
    draw = transduce.Sampling(1.5, top_p=0.9)
    assert sampled.continue_("a dog") == plain.continue_("a dog", sampling=draw) != plain.continue_("a dog")
    assert sampled.continue_("a dog", beam_size=1) == plain.continue_("a dog")
    top = transduce.Sampling(0.5, top_k=3)
    assert sampled.continue_("a dog", sampling=top, seed=3) == plain.continue_("a dog", sampling=top, seed=3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bad_words_ids": [[5]]}, r"bad_words_ids=\[\[5\]\]: expected no value or \[\] or {}; remove it"),
        ({"do_sample": True, "min_p": 0.1}, "min_p=0.1: expected no value or 0; remove it from a copy"),
        ({"num_beams": 2, "early_stopping": True}, "early_stopping=True: expected no value or False"),
        ({"do_sample": True, "temperature": 0}, "generation_config.json: temperature=0"),
        ({"repetition_penalty": "1.8"}, "generation_config.json: expected the settings of a generation"),
        ({"max_new_tokens": 0}, "max_tokens=0: expected an integer from 1"),
    ],
)
def test_what_is_not_supported_of_a_folder_is_refused(folder: Path, tmp_path: Path, values: Any, message: str) -> None:
    model = with_generation(folder, tmp_path / "copy", **values)
    with pytest.raises(UserError, match=message):
        model.continue_texts([])


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"sampling": transduce.Sampling(1.5), "seed": 7}])
def test_the_other_texts_do_not_change_a_continuation(model: LanguageModel, options: Any) -> None:
    together = model.continue_texts(TEXTS, max_tokens=6, **options)
    for number, text in enumerate(TEXTS, start=1):
        (alone,) = model.continue_texts([text], max_tokens=6, first_number=number, **options)
        assert together[number - 1].text == alone.text
    assert together[1] == together[4] == GeneratedText()
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
