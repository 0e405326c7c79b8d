"""`transduce fill`, `embed` and `classify` as Unix filters."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import assert_mistake
from support.small_encoders import bert_folder
from support.toy_task import ROOT, CommandResult, write_lines

LINES = ["A [MASK] runs", "", "the cat", "the [MASK] [MASK]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert_folder(tmp_path_factory.mktemp("bert") / "model", "words")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert_folder(tmp_path_factory.mktemp("bert") / "model", "pooler", "classifier")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "source", LINES)


def objects(result: CommandResult) -> list[Any]:
    return [json.loads(line) for line in result.out.splitlines()]


def test_fill_prints_words_with_probabilities(folder: Path, source: Path, cli: Callable[..., CommandResult]) -> None:
    result = cli("fill", folder, "--input", source, "--n-best", 2)
    assert result.code == 0
    assert result.err == f"transduce: {source}:3: expected [MASK] in the line; put it in place of a word\n"
    first, blank, without, second = [line.split("\t") for line in result.out.decode().split("\n")[:-1]]
    assert blank == without == [""] and len(first) == 1 and len(second) == 2
    record = objects(cli("fill", folder, "--input", source, "--n-best", 2, "--json"))
    assert record[1] is None and record[2] == []
    for fields, places in ((first, record[0]), (second, record[3])):
        assert fields == [" ".join(f"{x['word']} {x['probability']:.4f}" for x in words) for words in places]


def test_embed_prints_a_vector_of_length_one(folder: Path, source: Path, cli: Callable[..., CommandResult]) -> None:
    result = cli("embed", folder, "--input", source)
    assert (result.code, result.err) == (0, "")
    vectors = [[float(number) for number in line.split()] for line in result.out.decode().split("\n")[:-1]]
    assert [len(vector) for vector in vectors] == [48, 0, 48, 48]
    assert math.hypot(*vectors[0]) == pytest.approx(1, abs=1e-5)
    in_json = objects(cli("embed", folder, "--input", source, "--json"))
    assert in_json[1] is None and in_json[2] == pytest.approx(vectors[2], abs=1e-6)


def test_classify_prints_a_label_in_one_line(classifier: Path, source: Path, cli: Callable[..., CommandResult]) -> None:
    """A label of a file may hold characters that a terminal obeys."""
    result = cli("classify", classifier, "--input", source)
    assert (result.code, result.err) == (0, "")
    lines = result.out.decode().split("\n")[:-1]
    in_json = objects(cli("classify", classifier, "--input", source, "--json"))
    assert lines[1] == "" and in_json[1] is None
    for line, classes in zip(lines[2:], in_json[2:], strict=True):
        label, probability = line.split("\t")
        assert label in ("good", "bad\\n\\x1b", "neither")
        assert float(probability) == pytest.approx(max(classes.values()), abs=1e-4)
        assert sum(classes.values()) == pytest.approx(1)


def test_a_line_is_answered_while_the_input_is_open(classifier: Path) -> None:
    command = [sys.executable, "-m", "transduce", "classify", str(classifier)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env={"PYTHONPATH": str(ROOT / "src")}) as process:
        assert process.stdin is not None and process.stdout is not None
        for _ in range(2):
            process.stdin.write(b"a dog\n")
            process.stdin.flush()
            assert process.stdout.readline().count(b"\t") == 1
        process.stdin.close()
        assert process.wait(60) == 0


def test_mistakes_are_refused_before_any_line_is_read(
    folder: Path, classifier: Path, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    assert_mistake(cli("classify", folder), f"{folder}: expected a classifier")
    assert_mistake(cli("fill", classifier), f"{classifier}: expected a head for masked words")
    assert_mistake(cli("fill", folder, "--n-best", 0), "--n-best=0: expected an integer from 1 to 20")
    assert_mistake(cli("embed", tmp_path / "none"), "none: expected a folder with config.json and model.safetensors")


def test_the_lines_before_a_line_that_is_not_utf8_are_answered(
    classifier: Path, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"a dog\n\xff\n")
    result = cli("classify", classifier, "--input", source)
    assert (result.code, result.out.count(b"\n")) == (2, 1)
    assert f"{source}:2: " in result.err
