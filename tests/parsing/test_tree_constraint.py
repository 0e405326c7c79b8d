"""The constraint of trees: it allows every tree that fits, and nothing that is none."""

import random

import pytest
from support.random_trees import LABELS, TAGS, random_tree

from transduce.data.vocabulary import CONTROLS, EOS
from transduce.errors import UserError
from transduce.parsing.linearize import FORMS, Form, linearize, tree_of
from transduce.parsing.tree_constraint import SymbolTable, TreeConstraint, tree_constraint

OPENS = {"top-down": [f"({label}" for label in LABELS], "in-order": [f"{label}(" for label in LABELS]}


def table_of(form: Form) -> SymbolTable:
    return SymbolTable([*CONTROLS, *TAGS, *(f"){label}" for label in LABELS), *OPENS[form]])


def written(constraint: TreeConstraint, ids: list[int]) -> TreeConstraint:
    """Return the constraint after `ids`, each of which it must allow."""
    for i in ids:
        assert i in constraint.allowed()[0]
        constraint = constraint.advance([i])
    return constraint


@pytest.mark.parametrize("form", FORMS)
def test_every_tree_that_fits_is_allowed(form: Form) -> None:
    generator, table = random.Random(3), table_of(form)
    for n_words in [*range(1, 25)] * 10:
        symbols = linearize(random_tree(generator, n_words), form)
        ids = [*map(table.symbols.index, symbols), EOS]
        written(tree_constraint(table, [n_words], [len(ids)]), ids)


@pytest.mark.parametrize("form", FORMS)
def test_whatever_a_model_chooses_becomes_a_tree_within_the_maximum_length(form: Form) -> None:
    generator, table = random.Random(4), table_of(form)
    deepest = 0
    for _ in range(300):
        n_words = generator.randint(1, 12)
        longest = n_words + 1 + generator.randint(0, 40)
        constraint, ids = tree_constraint(table, [n_words], [longest]), list[int]()
        while not ids or ids[-1] != EOS:
            ids.append(generator.choice(constraint.allowed()[0]))
            constraint = constraint.advance(ids[-1:])
        assert len(ids) <= longest
        tree = tree_of([table.symbols[i] for i in ids[:-1]], ["word"] * n_words)
        deepest = max(deepest, len(tree.phrases))
    assert deepest > 15


@pytest.mark.parametrize("form", FORMS)
def test_without_room_for_a_phrase_only_tags_are_allowed(form: Form) -> None:
    table = table_of(form)
    constraint = tree_constraint(table, [2], [4])
    for _ in range(2):
        assert {*constraint.allowed()[0]} == table.tags
        constraint = constraint.advance([min(table.tags)])
    assert constraint.allowed()[0] == [EOS]


def test_rows_are_selected_and_advance_independently() -> None:
    table = table_of("top-down")
    tag, opening, end = (table.symbols.index(symbol) for symbol in ("NN", "(S", ")S"))
    both = tree_constraint(table, [1, 2], [20, 20]).advance([tag, opening])
    allowed = both.select([1, 0, 1]).allowed()
    assert allowed[1] == [EOS]
    assert allowed[0] == allowed[2] == sorted([*table.tags, *table.opens])  # an open phrase without a child cannot end
    after = both.select([1, 1]).advance([tag, opening]).allowed()
    assert end in after[0]
    assert end not in after[1]


def test_a_row_that_the_beam_has_given_up_takes_any_symbol() -> None:
    table = table_of("in-order")
    constraint = tree_constraint(table, [1], [10])
    for i in [EOS, *range(len(table.symbols))] * 3:
        constraint = constraint.advance([i])


def test_a_model_without_tags_is_refused() -> None:
    with pytest.raises(UserError, match="the model: expected symbols of trees; train it on the output of"):
        SymbolTable([*CONTROLS, "(S", ")S"])
