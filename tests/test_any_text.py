"""Text that is no single sentence in usual spelling, and doubtful translations: `translate` and `configure`."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
from support.attack_files import contents
from support.toy_task import CommandResult, Toy, write_lines

import transduce
from transduce import Translator


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
    assert "add --capitals lower" in second


def test_capitals_are_translated_in_small_letters(toy: Toy) -> None:
    loaded = transduce.load(toy.model)
    small, capitals = loaded.translate(["Aa bb. cc dd", "AA BB. CC DD"], capitals="lower")
    assert capitals.text == " ".join(t.text.upper() for t in loaded.translate(["Aa bb.", "Cc dd"]))
    assert small == loaded.translate(["Aa bb. cc dd"])[0]


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
