"""The figures of attention heads, and pruning: gates and W_O agree, gradients are derivatives, shares are shares."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.random_models import CONFIG, random_model
from support.toy_task import Toy, write_lines, write_pairs

from transduce import UserError
from transduce.data.batches import Batch
from transduce.evaluation import heads as heads_module
from transduce.evaluation.attention import all_weights
from transduce.evaluation.heads import (
    Head,
    HeadReport,
    heads_of,
    is_pruned,
    least_gradient,
    least_important,
    loss_without,
    measure_heads,
    prune_heads,
    read_batches,
    transformer_of,
)
from transduce.model.transformer import Transformer
from transduce.storage.model_folder import LoadedModel, load_model
from transduce.translate import Translator


def batches_of(loaded: LoadedModel, pairs: Sequence[tuple[str, str]], folder: Path) -> list[Batch]:
    sides = [write_lines(folder / f"text.{side}", [pair[side] for pair in pairs]) for side in (0, 1)]
    return read_batches(sides[0], sides[1], loaded.tokenizer, transformer_of(loaded.model), len(pairs))


@pytest.fixture
def loaded() -> LoadedModel:
    """A random model of 3 + 2 layers with 4 heads; d_v is not d_model / n_heads."""
    return random_model(replace(CONFIG, n_encoder_layers=3, d_k=6, d_v=5))


@pytest.fixture
def model(loaded: LoadedModel) -> Transformer:
    return transformer_of(loaded.model)


PAIRS = [("the cat sat", "a b c d"), ("on the mat", "e f"), ("a", "the cat"), ("ist schön", "Zürich ist schön")]


@pytest.fixture
def batches(loaded: LoadedModel, tmp_path: Path) -> list[Batch]:
    return batches_of(loaded, PAIRS, tmp_path)


# ---- figures -----------------------------------------------------------------------------------------------------


def test_heads_are_named_by_part_layer_and_number(model: Transformer) -> None:
    names = [str(head) for head in heads_of(model)]
    assert len(names) == 28 and names[:5] == ["encoder 1.1", "encoder 1.2", "encoder 1.3", "encoder 1.4", "encoder 2.1"]
    assert names[12] == "decoder 1.1" and names[-1] == "cross 2.4"


def test_the_loss_equals_the_translators(loaded: LoadedModel, model: Transformer, batches: list[Batch]) -> None:
    scores = Translator([loaded]).score([src for src, _ in PAIRS], [tgt for _, tgt in PAIRS])
    report = measure_heads(model, batches)
    assert (report.pairs, report.tokens) == (4, sum(len(score.pieces) for score in scores))
    assert report.loss == pytest.approx(-sum(score.log_prob for score in scores) / report.tokens, rel=1e-5)


def test_a_head_that_is_off_is_a_head_that_is_pruned(model: Transformer, batches: list[Batch]) -> None:
    """Each single head, for which the encoder may run once, and several of all parts together."""
    figures = measure_heads(model, batches)
    off = [Head("encoder", 1, 2), Head("decoder", 2, 4), Head("cross", 1, 1)]
    together = loss_without(model, batches, off)
    state = {name: values.clone() for name, values in model.state_dict().items()}
    for head, of_head in zip(heads_of(model), figures.heads, strict=True):
        assert not is_pruned(model, head) and not of_head.is_pruned
        prune_heads(model, [head])
        assert is_pruned(model, head)
        assert loss_without(model, batches, []) - figures.loss == pytest.approx(of_head.loss_increase, abs=1e-6)
        model.load_state_dict(state)
    prune_heads(model, off)
    assert loss_without(model, batches, []) == pytest.approx(together, abs=1e-6)
    assert [head.name for head in measure_heads(model, batches).heads if head.is_pruned] == [str(head) for head in off]


def test_gradients_are_derivatives_of_the_loss_of_each_sentence(loaded: LoadedModel, tmp_path: Path) -> None:
    """Against finite differences, in float64, sentence by sentence. The batch has them together, with padding."""
    model = transformer_of(loaded.model)
    together = batches_of(loaded, PAIRS, tmp_path)
    singles = [batches_of(loaded, [pair], tmp_path) for pair in PAIRS]
    gradients = [figures.gradient for figures in measure_heads(model, together).heads]
    tokens = sum(len(batch.tgt_indices) for batch in together)
    model.double()
    step = 1e-4
    for head, gradient in zip(heads_of(model), gradients, strict=True):
        columns = heads_module._columns(model, head)
        original, slopes = columns.clone(), []
        for batches in singles:
            losses = []
            for factor in (1 + step, 1 - step):
                columns.copy_(original * factor)
                losses.append(heads_module._loss(model, batches, None))
            slopes.append(abs(losses[0] - losses[1]) / (2 * step))
        columns.copy_(original)
        assert gradient == pytest.approx(sum(slopes) / tokens, rel=1e-3, abs=1e-6), str(head)


def test_entropy_and_shares_follow_from_the_weights(loaded: LoadedModel, model: Transformer, tmp_path: Path) -> None:
    """Sums over the weights of each single sentence, against one batch with padding."""
    report = {figures.name: figures for figures in measure_heads(model, batches_of(loaded, PAIRS, tmp_path)).heads}
    weights = [all_weights(model, batches_of(loaded, [pair], tmp_path)[0]) for pair in PAIRS]
    for head in heads_of(model):
        part = ("encoder", "decoder", "cross").index(head.part)
        tables = [of_pair[part][head.layer - 1, head.number - 1] for of_pair in weights]
        n_rows, figures = sum(map(len, tables)), report[str(head)]
        assert figures.entropy == pytest.approx(-sum((w * np.log(w + 1e-30)).sum() for w in tables) / n_rows, abs=1e-5)
        shares = {
            "previous": None if part == 2 else sum(np.trace(w, -1) for w in tables),
            "same": None if part == 2 else sum(np.trace(w) for w in tables),
            "next": None if part else sum(np.trace(w, 1) for w in tables),
            "end": None if part == 1 else sum(w[:, -1].sum() for w in tables),
            "begin": sum(w[:, 0].sum() for w in tables) if part == 1 else None,
        }
        for name, total in shares.items():
            expected = None if total is None else pytest.approx(total / n_rows, abs=1e-5)
            assert getattr(figures, name) == expected, (str(head), name)


# ---- the choice of heads -----------------------------------------------------------------------------------------


def test_pruned_heads_are_the_least_important() -> None:
    """Also if the model is better without another head."""
    loaded = random_model(CONFIG)
    model = transformer_of(loaded.model)
    prune_heads(model, [Head("cross", 2, 4)])
    figures = [
        heads_module.HeadFigures(
            str(head), 0.1 * i - 1, 5 - 0.1 * i, 1, None, None, None, None, None, is_pruned(model, head)
        )
        for i, head in enumerate(heads_of(model))
    ]
    report = HeadReport(1, 1, 1.0, tuple(figures))
    assert [str(head) for head in least_important(report, 3)] == ["cross 2.4", "encoder 1.1", "encoder 1.2"]
    assert [str(head) for head in least_important(report, 2, "gradient")] == ["cross 2.4", "cross 2.3"]


def test_the_least_gradients_agree_with_the_report(model: Transformer, batches: list[Batch]) -> None:
    prune_heads(model, [Head("decoder", 2, 3)])
    report = measure_heads(model, batches)
    assert least_gradient(model, batches, 24) == least_important(report, 24, "gradient")
    assert least_gradient(model, batches, 1) == [Head("decoder", 2, 3)]


@pytest.mark.parametrize("by", ["loss", "gradient"])
def test_pruning_by_importance_costs_less_than_at_random(toy: Toy, tmp_path: Path, by: heads_module.Measure) -> None:
    """At every number of heads, on other text than the importance was measured on, than the mean of five."""
    loaded = load_model(toy.model)
    model = transformer_of(loaded.model)
    report = measure_heads(model, read_batches(*toy.valid, loaded.tokenizer, model, 60))
    other = write_pairs(tmp_path, "other", toy.unseen[:60])
    batches = read_batches(*other, loaded.tokenizer, model, 60)
    rng = random.Random(1)
    for keep in range(1, 24):
        off = 24 - keep
        by_chance = [loss_without(model, batches, rng.sample(heads_of(model), off)) for _ in range(5)]
        assert loss_without(model, batches, least_important(report, off, by)) < np.mean(by_chance), keep


# ---- text --------------------------------------------------------------------------------------------------------


def test_pairs_are_spread_over_the_text_without_blank_lines(loaded: LoadedModel, tmp_path: Path) -> None:
    lines = ["", *(f"{letter} a" for letter in "abcdefgh"), " "]
    files = [write_lines(tmp_path / name, lines) for name in ("src", "tgt")]
    model = transformer_of(loaded.model)
    batches = read_batches(files[0], files[1], loaded.tokenizer, model, 4)
    rows = [row for batch in batches for row in batch.src.tolist()]
    assert sorted(loaded.tokenizer.decode(row) for row in rows) == ["a a", "c a", "e a", "g a"]
    assert sum(len(batch.src) for batch in read_batches(files[0], files[1], loaded.tokenizer, model, 99)) == 8


def test_a_text_that_cannot_be_measured_is_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    model = transformer_of(loaded.model)
    blank = write_lines(tmp_path / "blank", ["", " "])
    with pytest.raises(UserError, match="blank: expected a line that is not blank"):
        read_batches(blank, blank, loaded.tokenizer, model, 5)
    long = write_lines(tmp_path / "long", ["", "a", "b c " * 5_000])
    with pytest.raises(UserError, match="long:3: expected at most 8,192 tokens"):
        read_batches(long, long, loaded.tokenizer, model, 5)


def test_a_rival_of_the_transformer_is_refused() -> None:
    loaded = random_model(replace(CONFIG, kind="recurrent", n_heads=8, d_ff=2048))
    with pytest.raises(UserError, match="expected a Transformer"):
        transformer_of(loaded.model)


def test_measuring_leaves_no_gradients_and_no_changes(model: Transformer, batches: list[Batch]) -> None:
    before = {name: values.clone() for name, values in model.state_dict().items()}
    first, n_done = measure_heads(model, batches), []
    assert measure_heads(model, batches, n_done.append) == first and n_done == [*range(1, 29)]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
