"""The constraint of trees: it allows every tree that fits, and nothing that is none."""

import random

import pytest
from support.random_trees import TAGS, random_tree

from transduce.data.vocabulary import CONTROLS, EOS
from transduce.errors import UserError
from transduce.parsing.linearize import FORMS, Form, linearize, tree_of
from transduce.parsing.tree_constraint import ByWord, Symbols, TopDown, TreeConstraint, symbols_of, tree_constraint

TREES = [random_tree(random.Random(seed), 1 + seed % 24) for seed in range(240)]


def table_of(form: Form) -> Symbols:
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
def test_every_tree_that_fits_is_allowed(form: Form) -> None:
    table = table_of(form)
    for tree in TREES:
        ids = [*map(table.symbols.index, linearize(tree, form)), EOS]
        written(tree_constraint(table, [len(tree.words)], [len(ids)]), ids)


@pytest.mark.parametrize("form", FORMS)
def test_whatever_a_model_chooses_becomes_a_tree_within_the_maximum_length(form: Form) -> None:
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


def test_the_tag_of_the_last_word_has_no_number_and_no_tag_ends_more_than_is_open() -> None:
    table = symbols_of([*CONTROLS, "-", "(S(NP", "NN", "NN)1", "NN)3"])
    nothing, two, tag, tag_1, tag_3 = range(len(CONTROLS), len(table.symbols))
    constraint = tree_constraint(table, [3], [7])
    assert constraint.allowed() == {0: [nothing, two]}
    constraint = written(constraint, [two])
    assert constraint.allowed() == {0: [tag, tag_1]}
    constraint = written(constraint, [tag_1, two])
    assert constraint.allowed() == {0: [tag, tag_1, tag_3]}
    constraint = written(constraint, [tag_3, nothing])
    assert constraint.allowed() == {0: [tag]}
    assert [*written(constraint, [tag]).allowed()[0]] == [EOS]


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_the_beam_has_given_up_takes_any_symbol(form: Form) -> None:
    table = table_of(form)
    constraint = tree_constraint(table, [1], [10])
    for i in [EOS, *range(len(table.symbols))] * 3:
        constraint = constraint.advance([i])


def test_a_model_without_tags_is_refused() -> None:
    for symbols in (["(S", ")S"], ["-", "(S"], ["-", "NN)1"]):
        with pytest.raises(UserError, match="the model: expected symbols of trees; train it on the output of"):
            symbols_of([*CONTROLS, *symbols])
