"""Language models: text in, its continuation out."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.small_members import gpt2_folder
from tokenizers import Tokenizer

import transduce
from transduce import UserError
from transduce.family.continuation import continue_ids
from transduce.family.language_model import Continuation, LanguageModel

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
    (output,) = continue_ids(model.model, [prompt], model.ends)
    answer = model.continue_("two young")
    assert "two young" + answer.text == tokenizer.decode([*prompt, *output.ids])
    assert (answer.score, answer.finished) == (output.score, output.finished)


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"sampling": transduce.Sampling(1.5), "seed": 7}])
def test_the_other_texts_do_not_change_a_continuation(model: LanguageModel, options: Any) -> None:
    together = model.continue_texts(TEXTS, max_tokens=6, **options)
    for number, text in enumerate(TEXTS, start=1):
        (alone,) = model.continue_texts([text], max_tokens=6, first_number=number, **options)
        assert together[number - 1].text == alone.text
    assert together[1] == together[4] == Continuation()
    assert together[3].problem == "expected at most 39 tokens, not 100; split the line"


def test_generation_config_names_the_ends(folder: Path, tmp_path: Path) -> None:
    transduce.family.load(folder).save(tmp_path / "copy")
    assert transduce.family.load(tmp_path / "copy").ends == [0]
    (tmp_path / "copy" / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9, 10**9]}))
    assert transduce.family.load(tmp_path / "copy").ends == [7, 9]
    (tmp_path / "copy" / "generation_config.json").write_text(json.dumps({"eos_token_id": "7"}))
    with pytest.raises(UserError, match="eos_token_id: expected an id, or a list of ids"):
        transduce.family.load(tmp_path / "copy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens=0: expected an integer from 1"),
        ({"n_best": 2}, "n_best=2: expected no value for a continuation"),
        ({"beam_size": 0}, "beam_size=0"),
        ({"tag": "<2de>"}, "tag=<2de>: expected no value for a continuation"),
    ],
)
def test_options_that_cannot_be_met_are_refused(model: LanguageModel, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        model.continue_("a dog", **options)


def test_a_folder_without_a_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    model = transduce.family.load(folder)
    model.save(tmp_path / "copy")
    (tmp_path / "copy" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="expected tokenizer.json"):
        transduce.family.load(tmp_path / "copy").continue_("a dog")
