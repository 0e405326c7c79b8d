"""Trees in the brackets of the Penn Treebank: reading, writing, and messages for brackets that are no tree."""

import random
from pathlib import Path

import pytest
from support.random_trees import random_tree
from support.toy_task import ROOT

from transduce.errors import UserError
from transduce.parsing.tree_picture import tree_picture
from transduce.parsing.trees import Phrase, Tree, read_trees, tree_of_line, trees_of, words_of


def tree(text: str) -> Tree:
    (only,) = trees_of([text], "test")
    return only


def test_a_tree_is_words_tags_and_phrases() -> None:
    assert tree("(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps))))") == Tree(
        ("The", "cat", "sleeps"), ("DT", "NN", "VBZ"), (Phrase("S", 0, 3), Phrase("NP", 0, 2), Phrase("VP", 2, 3))
    )


@pytest.mark.parametrize("top", ["", "TOP", "ROOT", "S1"])
def test_the_outermost_node_is_written_as_top(top: str) -> None:
    assert str(tree(f"({top} (S (NN a)))")) == "(TOP (S (NN a)))"


def test_a_tree_without_an_outermost_node_gets_one() -> None:
    assert str(tree("(S (NN a))")) == "(TOP (S (NN a)))"
    assert str(tree("(NN a)")) == "(TOP (NN a))"


def test_function_tags_and_empty_elements_are_removed() -> None:
    text = "( (S-TPC=2 (NP-SBJ-1 (PRP it)) (VP (VBZ is) (NP (-NONE- *T*-1)) (PRT|ADVP (-LRB- -LRB-)))) )"
    assert str(tree(text)) == "(TOP (S (NP (PRP it)) (VP (VBZ is) (PRT|ADVP (-LRB- -LRB-)))))"


def test_words_have_their_own_parentheses_in_memory() -> None:
    assert tree("(X (-LRB- -LRB-) (NN f-LRB-x-RRB-))").words == ("(", "f(x)")
    assert words_of(" -LRB- ( a\u00a0b\t\u3000 \u00a0 ") == ["(", "(", "a\u00a0b"]


def test_a_word_without_a_visible_character_is_none_in_a_tree_either() -> None:
    assert str(tree("(S (NN \u00a0) (NP (NN a\u00a0b) (X \u200b)))")) == "(TOP (S (NP (NN a\u00a0b))))"


def test_every_random_tree_survives_writing_and_reading() -> None:
    generator = random.Random(1)
    for n_words in [*range(1, 30)] * 20:
        expected = random_tree(generator, n_words)
        assert tree_of_line(str(expected), "test", 1) == expected


def test_a_tree_of_any_depth_is_read_and_written() -> None:
    text = "(TOP" + " (X" * 20_000 + " (NN a)" + ")" * 20_001
    assert str(tree(text)) == text


def test_a_file_may_have_trees_over_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "wsj.mrg"
    path.write_text("\n( (S\n    (NP (NN a))\n    (VP (VB b)) ))\n\n(X (NN c)) (X (NN d))\n")
    texts = ["(TOP (S (NP (NN a)) (VP (VB b))))", "(TOP (X (NN c)))", "(TOP (X (NN d)))"]
    assert [*map(str, read_trees(path))] == texts


@pytest.mark.parametrize(
    ("text", "expectation"),
    [
        ("(S (NN a) b)", "a tag before each word, but 'b' has none"),
        ("(NN a b)", "a tag before each word, but 'b' has none"),
        ("(NN a (NN b))", "a closing bracket after the word 'a'"),
        ("S (NN a)", "an opening bracket, not 'S'"),
        ("(S (NN a)))", "an opening bracket, not ')'"),
        ("(S (NN a) ())", "a word or another bracket within each pair of brackets"),
        ("(S ((NN a)))", "a label after each opening bracket, except the first of a tree"),
        ("(S (-NONE- *))", "a word that is not an empty element"),
    ],
)
def test_brackets_that_are_no_tree_are_refused(text: str, expectation: str) -> None:
    with pytest.raises(UserError) as problem:
        list(trees_of(["(NN a)", text], "trees.ptb"))
    assert str(problem.value) == f"trees.ptb:2: expected {expectation}; correct the brackets"


def test_a_tree_without_an_end_is_named_by_its_first_line() -> None:
    with pytest.raises(UserError, match="trees.ptb:2: expected a closing bracket .*, but the file ends 1 too early"):
        list(trees_of(["(NN a)", "(S (NN a)", "(NP", "(NN b))"], "trees.ptb"))


def test_a_line_holds_at_most_one_tree() -> None:
    assert tree_of_line(" ", "test", 1) is None
    with pytest.raises(UserError, match="test:7: expected one tree, not 2"):
        tree_of_line("(NN a) (NN b)", "test", 7)


def test_the_picture_in_the_documents_shows_its_tree() -> None:
    picture = (ROOT / "docs" / "tree.svg").read_text("utf-8")
    title = picture.partition("<title>")[2].partition("</title>")[0]
    assert picture == tree_picture(tree(title))
