"""EVALB's scores of trees, on cases worked by hand."""

from pathlib import Path

import pytest

from transduce.errors import UserError
from transduce.parsing.labelled_f1 import LabelledScores, labelled_scores, read_gold, read_outputs
from transduce.parsing.trees import Tree, tree_of_line

GOLD = "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sees) (NP (DT a) (NN dog)) (ADVP (RB well))) (. .)))"


def tree(text: str) -> Tree:
    result = tree_of_line(text, "test", 1)
    assert result is not None
    return result


def scores(*pairs: tuple[str, str | None]) -> LabelledScores:
    return labelled_scores([tree(gold) for gold, _ in pairs], [tree(text) if text else None for _, text in pairs])


def test_the_gold_tree_itself_is_perfect() -> None:
    score = scores((GOLD, GOLD))
    assert (score.precision, score.recall, score.f1, score.exact, score.tagging) == (100, 100, 100, 100, 100)
    assert (score.matched, score.gold, score.output, score.valid, score.sentences) == (5, 5, 5, 1, 1)  # S NP VP NP ADVP


def test_a_bracket_is_correct_if_label_and_span_are() -> None:
    # S and the first NP are correct. The gold VP and NP span 2-6 and 3-5; here they span 2-5 and 3-6.
    output = "(S (NP (DT The) (NN cat)) (X (VP (VBZ sees) (DT a) (NN dog))) (ADVP (RB well)) (. .))"
    score = scores((GOLD, output))
    assert (score.matched, score.gold, score.output) == (3, 5, 5)  # S, NP, ADVP
    assert (score.precision, score.recall, score.f1) == (60, 60, 60)
    assert (score.exact, score.tagging) == (0, 100)


def test_precision_and_recall_have_their_own_denominators() -> None:
    score = scores((GOLD, "(S (DT The) (NN cat) (VBZ sees) (NP (DT a) (NN dog)) (NN well) (. .))"))
    assert (score.precision, score.recall) == (100, 40)  # S and NP, of 5
    assert score.f1 == pytest.approx(2 * 100 * 40 / 140, abs=1e-4)
    assert score.tagging == pytest.approx(100 * 5 / 6, abs=1e-4)  # of six words without the full stop


def test_the_outermost_node_is_no_bracket_whatever_its_name() -> None:
    for name in ("ROOT", "TOP", "S1", ""):
        score = scores(
            (GOLD.replace("TOP", name), f"({name} (X (DT The) (NN cat) (VBZ sees) (DT a) (NN dog) (RB well) (. .)))")
        )
        assert (score.f1, score.output, score.gold) == (0, 1, 5)


def test_punctuation_is_deleted_by_the_gold_tags() -> None:
    gold = "(S (NP (NN a) (, ,) (NN b)) (. .))"
    inside = "(S (NP (NN a) (, ,) (NN b) (. .)))"  # the full stop within NP: the spans without it are the same
    assert scores((gold, inside)).exact == 100
    wrong_tag = "(S (NP (NN a) (NN ,) (NN b)) (SYM .))"
    assert scores((gold, wrong_tag)).f1 == 100
    assert scores((gold, wrong_tag)).tagging == 100  # of a and b
    missed = "(S (NP (NN a) (, ,) (, b)) (. .))"  # b is a comma in the output, and still a word
    assert (scores((gold, missed)).f1, scores((gold, missed)).tagging) == (100, 50)


def test_a_bracket_around_only_punctuation_does_not_count() -> None:
    assert scores(("(S (NN a) (X (. .)))", "(S (NN a) (. .))")).exact == 100


def test_quotes_colons_and_dashes_are_punctuation_and_brackets_are_words() -> None:
    gold = "(S (`` ``) (NP (-LRB- -LRB-) (NN a) (-RRB- -RRB-)) ('' '') (: --) (. ?))"
    score = scores((gold, "(S (`` ``) (-LRB- -LRB-) (NP (NN a) (-RRB- -RRB-)) ('' '') (: --) (. ?))"))
    assert (score.matched, score.tagging) == (1, 100)
    assert score.gold == 2


def test_advp_and_prt_are_the_same_label() -> None:
    assert scores(("(VP (VB go) (PRT (RP on)))", "(VP (VB go) (ADVP (RP on)))")).f1 == 100


def test_each_gold_bracket_counts_once() -> None:
    score = scores(("(NP (NP (NN a)))", "(NP (NP (NP (NN a))))"))
    assert (score.matched, score.gold, score.output) == (2, 2, 3)


@pytest.mark.parametrize("output", [None, "(S (NN a))", "(S (NN a) (NN c))"])
def test_an_output_that_cannot_be_aligned_counts_as_wrong(output: str | None) -> None:
    good = "(S (NP (NN a)) (VP (VB b)))"
    score = scores((good, good), ("(S (NN a) (NN b))", output))
    assert (score.sentences, score.valid) == (2, 1)
    assert (score.precision, score.recall) == (100, 75)  # 3 of 3, 3 of 4
    assert (score.exact, score.tagging) == (50, 50)
    assert "2 sentences, of which 1 have a tree over the same words" in str(score)


def test_no_output_at_all_gives_zero() -> None:
    score = scores((GOLD, None))
    assert (score.precision, score.recall, score.f1, score.exact, score.tagging, score.valid) == (0, 0, 0, 0, 0, 0)


def test_a_line_of_the_output_without_a_tree_is_none(tmp_path: Path) -> None:
    gold, output = tmp_path / "gold.mrg", tmp_path / "output.trees"
    gold.write_text("((S\n (NN a)))\n(S (NN b))(S (NN c))\n")
    output.write_text("(S (NN a))\n\n(S (NN c\n")
    trees = read_outputs(output, gold, len(read_gold(gold)))
    assert [*map(str, trees)] == ["(TOP (S (NN a)))", "None", "None"]
    output.write_text("(S (NN a))\n")
    with pytest.raises(UserError, match="expected the same number of lines, not 1 and 3"):
        read_outputs(output, gold, 3)
    gold.write_text("\n")
    with pytest.raises(UserError, match="gold.mrg: expected at least 1 tree"):
        read_gold(gold)
