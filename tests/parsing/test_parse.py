"""Parsers with random weights: every line gets a tree over its words, in every batch, beam and precision."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.random_models import CONFIG, random_model
from support.random_parsers import random_parser
from support.random_trees import WORDS

from transduce.data.batches import collate
from transduce.data.vocabulary import BOS, EOS, PAD, UNK
from transduce.decoding.options import DecodingOptions, Sampling
from transduce.errors import UserError
from transduce.interop.parity import require_transformer
from transduce.parsing.linearize import FORMS, TreeForm, linearize
from transduce.parsing.parse import Parser
from transduce.parsing.tree_constraint import tree_constraint
from transduce.parsing.trees import tree_of_line, words_of
from transduce.storage.model_folder import LoadedModel
from transduce.translate import Translator

LINES = [" ".join(random.Random(n).choices(WORDS, k=n)) for n in (1, 2, 3, 5, 9, 17)] + ["( ( -LRB- ) </s> <s> (S"]


def parser_of(*loaded: LoadedModel, precision: str = "fp32") -> Parser:
    return Parser(Translator(loaded, precision=precision))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", ["fp32", "int8", "bf16"])
@pytest.mark.parametrize("beam_size", [1, 4, 21])
def test_every_line_gets_a_tree_over_its_words(form: TreeForm, precision: str, beam_size: int) -> None:
    parser = parser_of(random_parser(form), precision=precision)
    for line, parse in zip(LINES, parser.parse(LINES, DecodingOptions(beam_size=beam_size)), strict=True):
        assert parse.tree is not None
        assert parse.tree.words == tuple(words_of(line))
        assert tree_of_line(str(parse.tree), "output", 1) == parse.tree
        assert parse.n_symbols == len(linearize(parse.tree, form)) + 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_sentence_has_the_same_tree_in_any_batch(form: TreeForm, precision: str) -> None:
    parser = parser_of(random_parser(form, 2), precision=precision)
    together = parser.parse([*LINES, *reversed(LINES)])
    for line, parse, other in zip(LINES, together, reversed(together), strict=False):
        assert parse.tree == other.tree == parser.parse([line])[0].tree


def test_an_ensemble_of_two_parsers_gives_trees() -> None:
    for parse in parser_of(random_parser("by-word"), random_parser("by-word", 2)).parse(LINES):
        assert parse.tree is not None


def test_blank_lines_have_no_tree_and_long_ones_a_problem() -> None:
    parser = parser_of(random_parser("top-down", beam_size=1))
    blank, also_blank, long, too_long = parser.parse([" ", "\u200b", "cat " * 200, "cat " * 9_000])
    assert blank == also_blank
    assert (blank.tree, blank.problem) == (None, None)
    assert long.tree is not None  # longer than data.max_tokens: it is not split
    assert len(long.tree.words) == 200
    assert too_long.tree is None
    assert too_long.problem is not None
    assert too_long.problem.startswith("expected at most 8,192 tokens, not 36,000")


def test_a_line_without_room_for_a_tree_has_a_problem() -> None:
    """A word is one token of the source here, and two symbols of its tree."""
    parser = parser_of(random_parser("by-word", has_words=True, beam_size=1))
    fits, too_long = parser.parse(["the " * 19, "the " * 20])
    assert fits.tree is not None
    assert too_long.tree is None
    assert too_long.problem == "expected a tree of at most 39 symbols, not the 40 of 20 words; split the line"


def test_a_model_with_learned_positions_refuses_what_it_has_no_positions_for() -> None:
    loaded = random_parser("top-down", beam_size=1)
    model = replace(loaded.config.model, positions="learned", max_positions=64)
    network = type(loaded.model)(model).eval()
    parser = parser_of(LoadedModel(network, replace(loaded.config, model=model), loaded.tokenizer))
    fits, too_long = parser.parse(["( " * 31, "( " * 32])
    assert fits.tree is not None
    assert too_long.problem == "expected at most 63 tokens, not 64; split the line"


@pytest.mark.parametrize("form", FORMS)
def test_overruled_symbols_are_those_at_which_the_most_likely_one_was_not_allowed(form: TreeForm) -> None:
    loaded = random_parser(form, 3)
    parser, total = parser_of(loaded), 0
    for line in LINES:
        (parse,) = parser.parse([line])
        assert parse.tree is not None
        src = loaded.tokenizer.encode(" ".join(parse.tree.words))
        ids = loaded.tokenizer.target.encode(" ".join(linearize(parse.tree, form)))
        batch = collate([torch.tensor(src).numpy()], [torch.tensor(ids).numpy()])
        with torch.no_grad():
            scores = loaded.model(batch.src, batch.src_mask, batch.tgt_in)[0]
        scores[:, [PAD, BOS, UNK]] = -torch.inf
        constraint = tree_constraint(parser.table, [len(parse.tree.words)], [len(src) + 20])
        expected = 0
        for i, likely in zip([*ids, EOS], scores.argmax(1).tolist(), strict=True):
            expected += likely not in constraint.allowed()[0]
            constraint = constraint.advance([i])
        assert parse.n_overruled == expected
        total += expected
    assert total > 0


@pytest.mark.parametrize(
    "options", [{"sampling": Sampling()}, {"capitals": "keep"}, {"n_best": 2}, {"alignment": True}]
)
def test_options_without_a_meaning_for_trees_are_refused(options: Any) -> None:
    with pytest.raises(UserError, match=f"{next(iter(options))}=.*: must not be set for trees"):
        parser_of(random_parser("top-down")).parse(["a"], DecodingOptions(**options))


def test_a_parser_is_not_exported_to_programs_without_symbols() -> None:
    with pytest.raises(UserError, match="data.target_tokens='symbols': expected 'subwords' for an export"):
        require_transformer(random_parser("top-down"))


def test_a_model_of_translations_is_refused() -> None:
    with pytest.raises(UserError, match="the model: expected symbols of trees"):
        parser_of(random_model(CONFIG))
