"""Linearized trees: both forms, exact round trips, and symbols that are no tree."""

import os
import random
from pathlib import Path

import pytest
from support.random_trees import random_tree
from support.toy_task import ROOT

from transduce.parsing.linearize import FORMS, TreeForm, linearize, tree_of
from transduce.parsing.trees import read_trees, trees_of

DATA = Path(os.environ.get("TRANSDUCE_DATA", ROOT / "data"))
TREEBANKS = [
    DATA / name / f"{part}.clean.trees" for name in ("craft_const", "gum") for part in ("train", "dev", "test")
]
CAT = "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps))))"


@pytest.mark.parametrize(
    ("form", "symbols"),
    [
        ("top-down", "(S (NP DT NN )NP (VP VBZ )VP )S"),
        ("by-word", "(S(NP DT - NN)S (VP VBZ"),
    ],
)
def test_a_tree_becomes_symbols(form: TreeForm, symbols: str) -> None:
    (cat,) = trees_of([CAT], "test")
    assert linearize(cat, form) == symbols.split()
    assert tree_of(symbols.split(), ["The", "cat", "sleeps"]) == cat


@pytest.mark.parametrize("form", FORMS)
def test_every_random_tree_returns_from_its_symbols(form: TreeForm) -> None:
    generator = random.Random(2)
    for n_words in [*range(1, 30)] * 20:
        tree = random_tree(generator, n_words)
        assert tree_of(linearize(tree, form), tree.words) == tree


@pytest.mark.slow
@pytest.mark.parametrize("path", TREEBANKS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_tree_of_a_treebank_returns_from_its_symbols_and_from_its_line(path: Path) -> None:
    if not path.is_file():
        pytest.skip(f"{path} does not exist; TRANSDUCE_DATA names the folder of the treebanks")
    lines = path.read_text("utf-8").split("\n")
    for line, tree in zip(lines, read_trees(path), strict=False):
        assert str(tree) == line.replace("(ROOT", "(TOP", 1)
        for form in FORMS:
            assert tree_of(linearize(tree, form), tree.words) == tree


@pytest.mark.parametrize(
    ("symbols", "reason"),
    [
        (")S NN", ")S ends no phrase"),
        ("(S )S NN", ")S ends no phrase"),
        ("(S NN )NP", ")NP ends no phrase"),
        ("(S )S", ")S ends no phrase"),
        ("- NN)", "no open phrase is TOP number 1"),
        ("(S NN)S", "no open phrase is S number 1"),
        ("(S(S NN)S)2", "no open phrase is S number 2"),
        ("(S(S NN)S)x", "NN)S)x is no tag with a phrase"),
        ("(S(S NN)S)0", "NN)S)0 is no tag with a phrase"),
        ("(S(S NN)S)1)1", "NN)S)1)1 is no tag with a phrase"),
        ("(S NN(", "NN( is no tag with a phrase"),
        ("(S (NP NN )NP", "1 phrases do not end"),
        ("(S NN NN )S", "2 tags for 1 words"),
        ("", "0 tags for 1 words"),
    ],
)
def test_symbols_that_are_no_tree_are_refused(symbols: str, reason: str) -> None:
    with pytest.raises(ValueError) as problem:
        tree_of(symbols.split(), ["word"])
    assert str(problem.value) == reason
