"""`transduce shortlist`, and the options --shortlist: the file, what a translation is with it, and mistakes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from support.attack_files import contents
from support.random_models import CONFIG, random_model, save_to
from support.random_parsers import random_parser
from support.toy_task import CommandResult, Toy, write_lines

import transduce
from transduce.storage.model_folder import SHORTLIST_FILE, load_model

Cli = Callable[..., CommandResult]


@pytest.fixture
def model(toy: Toy, tmp_path: Path) -> Path:
    return Path(copytree(toy.model, tmp_path / "model"))


@pytest.fixture
def text(toy: Toy) -> list[object]:
    return ["--src", toy.train[0], "--tgt", toy.train[1]]


def test_a_model_learns_a_shortlist_and_translates_with_it(
    toy: Toy, model: Path, text: list[object], cli: Cli, tmp_path: Path
) -> None:
    """The letters of a line are likely in its output: so a line with its letters has the output without a shortlist."""
    before = contents(model)
    result = cli("shortlist", model, *text, "--candidates", 2, "--common", 3, "--pairs", 2_000)
    assert (result.code, result.err) == (0, "")
    expected = (
        "/shortlist.safetensors: 7 of 281 pieces for every sentence, up to 2 for each source piece, learned from "
    )
    assert result.out.decode().endswith(f"{expected}2,000 pairs\n")
    after = contents(model)
    assert {name for name in after if after[name] != before.get(name)} == {SHORTLIST_FILE, "manifest.json"}
    source = write_lines(tmp_path / "lines", toy.unseen[:50])
    without = cli("translate", model, "--input", source).out.decode().splitlines()
    with_it = cli("translate", model, "--input", source, "--shortlist")
    assert with_it.code == 0
    same = sum(a == b for a, b in zip(with_it.out.decode().splitlines(), without, strict=True))
    assert without == [" ".join(reversed(line.split())) for line in toy.unseen[:50]] and same >= 48
    other = cli("translate", toy.model, "--input", source)
    assert other.out.decode().splitlines() == without  # the file changes nothing without the option


def test_a_pruned_model_keeps_it_and_an_export_has_none(toy: Toy, model: Path, text: list[object], cli: Cli) -> None:
    assert cli("shortlist", model, *text, "--pairs", 100).code == 0
    pruned = model.parent / "pruned"
    valid = ["--src", toy.valid[0], "--tgt", toy.valid[1]]
    assert cli("prune", model, "--keep", 20, *valid, "--out", pruned, "--pairs", 20).code == 0
    assert (pruned / SHORTLIST_FILE).read_bytes() == (model / SHORTLIST_FILE).read_bytes()
    assert load_model(pruned).shortlist is not None


def test_mistakes_are_refused_in_words(toy: Toy, model: Path, text: list[object], cli: Cli, tmp_path: Path) -> None:
    parser = save_to(random_parser("top-down"), tmp_path / "parser")
    lines, blank = write_lines(tmp_path / "lines", ["a b"]), write_lines(tmp_path / "blank", ["", " "])
    before = contents(model)
    for command, message in (
        (["translate", model, "--input", lines, "--shortlist"], f"--shortlist=True: expected a model folder with {SHORTLIST_FILE}; run transduce shortlist {model} --src TEXT --tgt TEXT"),  # noqa: E501
        (["serve", model, "--from", "en", "--to", "de", "--port", 0, "--shortlist"], "; run transduce shortlist "),
        (["shortlist", model, *text, "--candidates", 0], "--candidates=0: expected 1 to 1,000"),
        (["shortlist", model, *text, "--candidates", 1_001], "--candidates=1001: expected 1 to 1,000"),
        (["shortlist", model, *text, "--common", -1], "--common=-1: expected at least 0"),
        (["shortlist", model, *text, "--pairs", 0], "--pairs=0: expected at least 1"),
        (["shortlist", parser, *text], "expected a model that writes text"),
        (["shortlist", tmp_path / "none", *text], "it does not exist"),
        (["shortlist", model, "--src", blank, "--tgt", blank], "blank: expected a pair of lines of up to 32 tokens"),
        (["shortlist", model, "--src", lines, "--tgt", blank], "lines"),
    ):  # fmt: skip
        result = cli(*command)
        assert (result.code, result.out) == (2, b"") and message in result.err, (command, result)
    assert contents(model) == before


def test_every_kind_of_model_has_one(text: list[object], cli: Cli, tmp_path: Path) -> None:
    rival = save_to(random_model(replace(CONFIG, kind="recurrent", n_heads=8, d_ff=2048)), tmp_path / "lstm")
    assert cli("shortlist", rival, *text, "--pairs", 50).code == 0
    (translation,) = transduce.load(rival).translate(["a b c"], shortlist=True)
    assert translation.pieces
