"""The constraint of trees: it allows every tree that fits, and nothing that is none."""

import random

import pytest
from support.random_trees import TAGS, random_tree

from transduce.data.vocabulary import CONTROLS, EOS
from transduce.errors import UserError
from transduce.parsing.linearize import FORMS, TreeForm, linearize, tree_of
from transduce.parsing.tree_constraint import ByWord, Symbols, TopDown, TreeConstraint, symbols_of, tree_constraint

TREES = [random_tree(random.Random(seed), 1 + seed % 24) for seed in range(240)]


def table_of(form: TreeForm) -> Symbols:
    """Return the symbols of all trees of the tests."""
    symbols = {symbol for tree in TREES for symbol in linearize(tree, form)} | {*TAGS}
    return symbols_of([*CONTROLS, *sorted(symbols)])


def test_the_symbols_of_a_model_tell_their_form() -> None:
    assert isinstance(table_of("top-down"), TopDown) and isinstance(table_of("by-word"), ByWord)


def written(constraint: TreeConstraint, ids: list[int]) -> TreeConstraint:
    """Return the constraint after `ids`, each of which it must allow."""
    for i in ids:
        assert i in constraint.allowed()[0]
        constraint = constraint.advance([i])
    return constraint


@pytest.mark.parametrize("form", FORMS)
def test_every_tree_that_fits_is_allowed(form: TreeForm) -> None:
    table = table_of(form)
    for tree in TREES:
        ids = [*map(table.symbols.index, linearize(tree, form)), EOS]
        written(tree_constraint(table, [len(tree.words)], [len(ids)]), ids)


@pytest.mark.parametrize("form", FORMS)
def test_whatever_a_model_chooses_becomes_a_tree_within_the_maximum_length(form: TreeForm) -> None:
    generator, table = random.Random(4), table_of(form)
    deepest = 0
    for _ in range(300):
        n_words = generator.randint(1, 12)
        longest = table.shortest(n_words) + generator.randint(0, 40)
        constraint, ids = tree_constraint(table, [n_words], [longest]), list[int]()
        while not ids or ids[-1] != EOS:
            ids.append(generator.choice(constraint.allowed()[0]))
            constraint = constraint.advance(ids[-1:])
        assert len(ids) <= longest
        tree = tree_of([table.symbols[i] for i in ids[:-1]], ["word"] * n_words)
        deepest = max(deepest, len(tree.phrases))
    assert deepest > 15


def test_without_room_for_a_phrase_only_tags_are_allowed() -> None:
    table = table_of("top-down")
    assert isinstance(table, TopDown)
    constraint = tree_constraint(table, [2], [4])
    for _ in range(2):
        assert {*constraint.allowed()[0]} == table.tags
        constraint = constraint.advance([min(table.tags)])
    assert constraint.allowed()[0] == [EOS]


def test_rows_are_selected_and_advance_independently() -> None:
    table = table_of("top-down")
    assert isinstance(table, TopDown)
    tag, opening, end = (table.symbols.index(symbol) for symbol in ("NN", "(S", ")S"))
    both = tree_constraint(table, [1, 2], [20, 20]).advance([tag, opening])
    allowed = both.select([1, 0, 1]).allowed()
    assert allowed[1] == [EOS]
    assert allowed[0] == allowed[2] == sorted([*table.tags, *table.opens])  # an open phrase without a child cannot end
    after = both.select([1, 1]).advance([tag, opening]).allowed()
    assert end in after[0]
    assert end not in after[1]


def test_phrases_end_only_in_one_that_is_open_and_none_ends_before_the_last_word() -> None:
    table = symbols_of([*CONTROLS, "-", "(S(NP", "NN", "NN)S", "NN)S)2", "NN)NP", "NN)"])
    nothing, two, tag, tag_s, tag_s_2, tag_np, tag_all = range(len(CONTROLS), len(table.symbols))
    constraint = tree_constraint(table, [4], [9])
    assert constraint.allowed() == {0: [nothing, two]}
    assert written(constraint, [nothing]).allowed() == {0: [tag]}
    constraint = written(constraint, [two])
    assert constraint.allowed() == {0: [tag, tag_s, tag_all]}  # not NN)NP: no phrase ends in the innermost one
    constraint = written(constraint, [tag, two])
    assert constraint.allowed() == {0: [tag, tag_s, tag_s_2, tag_np, tag_all]}
    assert written(constraint, [tag_s_2, nothing]).allowed() == {0: [tag, tag_all]}
    assert written(constraint, [tag_all, nothing]).allowed() == {0: [tag]}
    constraint = written(constraint, [tag_np, nothing])
    assert constraint.allowed() == {0: [tag, tag_s, tag_all]}
    constraint = written(constraint, [tag_s, nothing])
    assert constraint.allowed() == {0: [tag]}
    assert [*written(constraint, [tag]).allowed()[0]] == [EOS]


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_the_beam_has_given_up_takes_any_symbol(form: TreeForm) -> None:
    table = table_of(form)
    constraint = tree_constraint(table, [1], [10])
    for i in [EOS, *range(len(table.symbols))] * 3:
        constraint = constraint.advance([i])


def test_a_model_of_the_form_with_numbers_of_phrases_is_refused() -> None:
    with pytest.raises(UserError, match=r"the model: expected tags such as NN\)S, not NN\)1 as in an older form"):
        symbols_of([*CONTROLS, "-", "(S(NP", "DT", "NN)1", "VBZ"])
    symbols_of([*CONTROLS, "-", "(S(NP", "DT", "NN)S", "VBZ)", "NN)S)2"])


def test_a_model_without_tags_is_refused() -> None:
    for symbols in (["(S", ")S"], ["-", "(S"], ["-", "NN)S"]):
        with pytest.raises(UserError, match="the model: expected symbols of trees; train it on the output of"):
            symbols_of([*CONTROLS, *symbols])
