"""`transduce parse`, and `transduce evaluate --trees`: a parser from the command line."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import assert_mistake
from support.random_models import save_to
from support.random_parsers import random_parser
from support.toy_task import CommandResult, Toy, write_lines

from transduce.parsing.trees import tree_of_line

LINES = ["The cat sleeps .", "", "( </s> -LRB- )", "a \u00a0b <&> \x01", "x" * 600_000]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_to(random_parser("by-word", 3), tmp_path_factory.mktemp("parser") / "model")


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "sentences", LINES)


def test_parse_writes_one_tree_for_each_line(
    model: Path, sentences: Path, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    pictures = tmp_path / "pictures"
    result = cli("parse", model, "--input", sentences, "--beam-size", 2, "--svg", pictures)
    assert result.code == 0
    trees = [tree_of_line(line, "output", 1) for line in result.out.decode().split("\n")[:-1]]
    words = [None if tree is None else tree.words for tree in trees]
    assert words == [
        ("The", "cat", "sleeps", "."),
        None,
        ("(", "</s>", "(", ")"),
        ("a", "\u00a0b", "<&>"),
        None,
    ]
    problem, counts = result.err.splitlines()
    assert problem == f"transduce: {sentences}:5: expected at most 524,288 characters, not 600,000; split the line"
    pattern = (
        r"transduce: the most likely symbol would have broken the tree at (\d+) of (\d+) symbols, in (\d) of 3 trees"
    )
    match = re.fullmatch(pattern, counts)
    assert match is not None

    objects = [
        json.loads(line)
        for line in cli("parse", model, "--input", sentences, "--beam-size", 2, "--json").out.splitlines()
    ]
    assert [values["tree"] for values in objects] == [None if tree is None else str(tree) for tree in trees]
    assert sum(values["n_overruled"] for values in objects) == int(match[1])
    assert sum(values["n_symbols"] for values in objects) == int(match[2])
    assert objects[4]["problem"].startswith("expected at most")

    assert sorted(path.name for path in pictures.iterdir()) == ["1.svg", "3.svg", "4.svg"]
    for number in (1, 3, 4):
        root = ElementTree.parse(pictures / f"{number}.svg").getroot()
        texts = [element.text for element in root.iter() if element.get("class") == "word"]
        assert texts == [word.replace("\x01", "\ufffd") for word in words[number - 1] or ()]


def test_a_parser_is_evaluated_on_gold_trees(model: Path, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    gold = write_lines(
        tmp_path / "gold.mrg", ["( (S (NP-SBJ (DT The) (NN cat))", "(VP (VBZ sleeps)) (. .)) )", "(X (NN a))"]
    )
    output = tmp_path / "output.trees"
    write_lines(tmp_path / "sentences", ["The cat sleeps .", "a"])
    assert cli("parse", model, "--input", tmp_path / "sentences", "--output", output).code == 0
    by_model = cli("evaluate", model, "--trees", gold, "--json")
    by_file = cli("evaluate", "--hyp", output, "--trees", gold, "--json")
    assert by_model.out == by_file.out
    assert json.loads(by_model.out)["valid"] == json.loads(by_model.out)["sentences"] == 2
    perfect = write_lines(tmp_path / "perfect", ["(S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .))", "(X (NN a))"])
    assert b"labelled F1           100.00  EVALB" in cli("evaluate", "--hyp", perfect, "--trees", gold).out


def test_mistakes_are_named(
    model: Path, toy: Toy, tmp_path: Path, sentences: Path, cli: Callable[..., CommandResult]
) -> None:
    assert_mistake(cli("parse", toy.model, "--input", sentences), "the model: expected symbols of trees")
    assert_mistake(cli("parse", model, "--input", sentences, "--svg", sentences), "expected a folder, but it is a file")
    assert_mistake(cli("parse", model, "--input", sentences, "--beam-size", 0), "beam-size=0: expected 1 to 500")
    assert_mistake(cli("evaluate", model), "give one of the two")
    assert_mistake(cli("evaluate", model, "--trees", sentences, "--ref", sentences), "give one of the two")
    assert_mistake(
        cli("evaluate", model, "--trees", sentences), f"{sentences}:1: expected an opening bracket, not 'The'"
    )
    assert_mistake(cli("evaluate", model, "--trees", sentences, "--src", sentences), "must not be set with --trees")
    assert_mistake(cli("translate", model, "--input", sentences), "writes text, not trees; use transduce parse")
