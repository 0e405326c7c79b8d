"""`transduce linearize`: a treebank becomes three texts that match line by line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import assert_mistake
from support.toy_task import CommandResult

TREES = """( (S (NP-SBJ (DT The) (NN cat))
     (VP (VBZ sleeps) (NP (-NONE- *)))) )
(ROOT (X (-LRB- -LRB-)))
"""
COUNTS = {
    "top-down": "12 different symbols, at most 9 in a tree",
    "by-word": "8 different symbols, at most 6 in a tree",
}
SYMBOLS = {
    "top-down": "(S (NP DT NN )NP (VP VBZ )VP )S\n(X -LRB- )X\n",
    "by-word": "(S(NP DT - NN)S (VP VBZ\n(X -LRB-\n",
}


@pytest.mark.parametrize("form", SYMBOLS)
def test_a_treebank_becomes_words_symbols_and_trees(
    form: str, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    treebank, out = tmp_path / "wsj.mrg", tmp_path / "train"
    treebank.write_text(TREES)
    result = cli("linearize", treebank, treebank, "--out", out, "--form", form)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"4 trees, 8 words, {COUNTS[form]}\n".encode()
    assert (tmp_path / "train.words").read_text() == "The cat sleeps\n(\n" * 2
    assert (tmp_path / "train.symbols").read_text() == SYMBOLS[form] * 2
    trees = "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps))))\n(TOP (X (-LRB- -LRB-)))\n"
    assert (tmp_path / "train.trees").read_text() == trees * 2


def test_a_malformed_tree_leaves_the_files_as_they_were(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    good = tmp_path / "good.mrg"
    bad = tmp_path / "bad.mrg"
    out = tmp_path / "train"
    good.write_text(TREES)
    bad.write_text(TREES + "(S (NN a) b)\n")
    assert cli("linearize", good, "--out", out).code == 0
    assert_mistake(cli("linearize", good, bad, "--out", out), f"{bad}:4: expected a tag before each word")
    assert (tmp_path / "train.words").read_text() == "The cat sleeps\n(\n"


def test_a_treebank_without_a_tree_leaves_the_files_as_they_were(
    tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    good, blank, out = tmp_path / "good.mrg", tmp_path / "blank.mrg", tmp_path / "train"
    good.write_text(TREES)
    blank.write_text("\n")
    assert cli("linearize", good, "--out", out).code == 0
    assert_mistake(cli("linearize", blank, blank, "--out", out), f"{blank} {blank}: expected at least 1 tree")
    assert (tmp_path / "train.words").read_text() == "The cat sleeps\n(\n"
    assert len([*tmp_path.iterdir()]) == 5
    assert cli("linearize", blank, good, "--out", out).code == 0


def test_an_output_that_is_an_input_is_refused(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    treebank = tmp_path / "train.trees"
    treebank.write_text(TREES)
    assert_mistake(cli("linearize", treebank, "--out", tmp_path / "train"), "expected another file than the input")
    assert treebank.read_text() == TREES
