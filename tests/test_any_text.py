"""Text that is no single sentence in usual spelling, and doubtful translations: `translate` and `configure`."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from support.attack_files import contents
from support.toy_task import CommandResult, Toy, write_lines

import transduce
from transduce import Translator
from transduce.decoding.translations import is_short


@pytest.fixture(scope="module")
def model(toy: Toy) -> Translator:
    return transduce.load(toy.model)


def test_white_space_and_invisible_characters_change_nothing(model: Translator) -> None:
    lines = ["a b c", " a b c ", "a\xa0b\u3000c", "a\tb  c", "\ufeffa b\u200b c\u200e"]
    assert {translation.text for translation in model.translate(lines)} == {"c b a"}
    assert model.config.data.normalization == "spaces" and model.config.data.sentences_per_line == 1


def test_a_text_keeps_its_line_breaks_in_json(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    lines = [json.dumps({"text": "a b\nc d\n\n***\ne f"})]
    source = write_lines(tmp_path / "in", lines)
    command = ["translate", toy.model, "--input", source, "--constraints", "json"]
    assert json.loads(cli(*command, "--json").out)["text"] == "b a\nd c\n\n***\nf e"
    assert cli(*command).out.decode() == "b a d c  *** f e\n"


def test_doubtful_translations_are_counted(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source = write_lines(tmp_path / "in", ["a b c d e", "", "a b c d", "a"])
    command = ["translate", toy.model, "--input", source, "--beam-size", 1]
    assert cli(*command).err == ""
    result = cli(*command, "--max-length", 3)
    assert result.out.decode().count("\n") == 4
    first, second = result.err.splitlines()
    assert first.endswith("in: 2 of 4 translations were cut at their maximum length (lines 1, 3)")
    assert "the text is unlike the training text" in second


def test_a_short_output_is_doubtful(model: Translator) -> None:
    lines = ["a b c d e f a b c d e f", "a b c d e"]
    assert [translation.doubts for translation in model.translate(lines)] == [[], []]
    short, other = model.translate(lines, max_length=3)
    assert short.is_short and "short" in short.doubts and not other.is_short


@pytest.mark.parametrize(("n_source", "n_output", "expected"), [(12, 3, True), (12, 4, False), (11, 1, False)])
def test_less_than_three_tenths_of_a_long_source_is_short(n_source: int, n_output: int, expected: bool) -> None:
    assert is_short([5] * n_source, [5] * n_output) is expected


def test_capitals_are_translated_in_small_letters(model: Translator) -> None:
    small, capitals = model.translate(["Aa bb. cc dd", "AA BB. CC DD"])
    assert capitals.text == " ".join(t.text.upper() for t in model.translate(["Aa bb.", "Cc dd"]))
    assert small == model.translate(["Aa bb. cc dd"], capitals="keep")[0]
    assert capitals != model.translate(["AA BB. CC DD"], capitals="keep")[0]


def test_capitals_stay_where_the_output_must_have_a_given_spelling(model: Translator) -> None:
    line = "AA BB CC"
    options: list[dict[str, Any]] = [
        {"terms": {"bb": "ef"}},
        {"constraints": [{"must": ["ef"]}]},
        {"prefixes": ["ef"]},
    ]
    for option in options:
        (translation,) = model.translate([line], **option)
        assert translation == model.translate([line], capitals="keep", **option)[0]
        assert "ef" in translation.text and translation.unmet == ()
    assert model.translate([line])[0].text == model.translate(["Aa bb cc"])[0].text.upper()


def test_the_search_of_a_model_can_be_configured(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    model = copytree(toy.model, tmp_path / "model")
    before = contents(model)
    assert b"search.max_length=null\n" in cli("configure", model).out and contents(model) == before
    result = cli("configure", model, "--set", "search.max_length=2", "--set", "search.beam_size=1")
    assert (result.code, result.err) == (0, "") and b"search.max_length=2\n" in result.out
    after = contents(model)
    assert {name for name in after if after[name] != before[name]} == {"config.json", "manifest.json"}
    source = write_lines(tmp_path / "in", ["a b c"])
    assert cli("translate", model, "--input", source).out == b"c b\n"
    for setting in ("train.seed=2", "search.beam_size=0", "search.beam=2"):
        assert cli("configure", model, "--set", setting).code == 2
    assert contents(model) == after
