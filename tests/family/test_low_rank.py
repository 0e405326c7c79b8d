"""Linformer and Performer, against their definitions in plain loops."""

import math

import pytest
import torch
from support.attention_inputs import compare, random_inputs, real
from support.documents import code_blocks
from support.toy_task import ROOT
from torch import Tensor

from transduce.family.attention_wrappers import causal, with_bias
from transduce.family.bert import BertEncoder
from transduce.family.configs import BertConfig, GPT2Config, T5Config
from transduce.family.gpt2 import GPT2
from transduce.family.linformer import Linformer
from transduce.family.performer import BLOCK, Performer, orthogonal_directions
from transduce.family.t5 import T5
from transduce.model.attention import Mask, reference_attention

EVERYTHING = torch.ones(1, 1, dtype=torch.bool)

# ---- Linformer ---------------------------------------------------------------------------------------------------


def linformer_by_loop(module: Linformer, queries: Tensor, keys: Tensor, values: Tensor, n_real: int) -> Tensor:
    """Return the output (T,W) of one row and head."""
    mixtures = []
    for weight, x in ((module.keys.weight, keys), (module.values.weight, values)):
        mixtures.append([sum(weight[r, s] * x[s] for s in range(n_real)) for r in range(len(weight))])
    outputs = []
    for query in queries:
        scores = [math.exp(query @ key / math.sqrt(len(query))) for key in mixtures[0]]
        outputs.append(sum(score * value for score, value in zip(scores, mixtures[1], strict=True)) / sum(scores))
    return torch.stack(outputs)


@torch.no_grad()
def test_linformer_attends_to_mixtures_of_real_positions() -> None:
    torch.manual_seed(1)
    module, (queries, keys, values) = Linformer(20, 4), random_inputs(9)
    output = module(queries, keys, values, real(9), 0.0)
    for row, n_real in enumerate((9, 6)):
        expected = linformer_by_loop(module, queries[row, 1], keys[row, 1], values[row, 1], n_real)
        torch.testing.assert_close(output[row, 1], expected)


def test_linformer_with_one_mixture_for_each_position_is_dense() -> None:
    module = Linformer(7, 7)
    torch.nn.init.eye_(module.keys.weight)
    torch.nn.init.eye_(module.values.weight)
    compare(module, reference_attention, EVERYTHING, 7)


def test_the_mixtures_of_linformer_are_learned() -> None:
    module = Linformer(9, 4)
    module(*random_inputs(9), real(9), 0.0).sum().backward()
    for weight in module.parameters():
        assert weight.grad is not None and weight.grad.abs().min() > 0


@pytest.mark.parametrize("mask", ["causal", "lower"])
def test_linformer_refuses_a_mask_of_pairs(mask: str) -> None:
    masks: dict[str, Mask] = {"causal": "causal", "lower": causal(9, 9)}
    with pytest.raises(ValueError, match="mask: expected a boolean one of padding"):
        Linformer(9, 4)(*random_inputs(9), masks[mask], 0.0)


@pytest.mark.parametrize("module", [Performer(8, 64), Linformer(9, 4)], ids=["performer", "linformer"])
def test_a_bias_is_refused(module: Performer | Linformer) -> None:
    """Under a bias alone, under that of T5, and in a step, where the bias is that of one query."""
    model, ids = (
        T5(T5Config(vocab_size=30, d_model=16, n_layers=2, n_heads=2, d_ff=32, d_k=8, dropout=0.0), n_sentinels=0),
        torch.randint(4, 30, (1, 9)),
    )
    with pytest.raises(ValueError, match="mask: expected a boolean one"):
        model.encode(ids, torch.ones_like(ids, dtype=torch.bool), module)
    for n_queries in (9, 1):
        with pytest.raises(ValueError, match="mask: expected a boolean one"):
            with_bias(torch.zeros(3, n_queries, 9), module)(*random_inputs(9, n_queries), real(9), 0.0)


def test_linformer_refuses_a_longer_text() -> None:
    with pytest.raises(ValueError, match="expected at most 8 positions, not 9"):
        Linformer(8, 4)(*random_inputs(9), real(9), 0.0)


def test_the_encoder_of_the_page_learns_its_mixtures_and_sees_no_padding() -> None:
    code: dict[str, type[BertEncoder]] = {}
    exec(code_blocks(ROOT / "docs" / "family-attention.md", "py")[3], code)
    torch.manual_seed(1)
    encoder = code["LinformerEncoder"](BertConfig(vocab_size=30, d_model=12, n_layers=2, n_heads=3, dropout=0.0))
    ids, mask = torch.randint(30, (2, 9)), real(9)[:, 0, 0]
    changed = ids.clone()
    changed[1, 7] = (ids[1, 7] + 1) % 30  # padding
    states = encoder(ids, mask)
    torch.testing.assert_close(encoder(changed, mask)[1, :6], states[1, :6])
    states[0].square().sum().backward()
    names = [name for name, parameter in encoder.named_parameters() if parameter.grad is not None]
    assert {"attention.keys.weight", "attention.values.weight"} <= {*names}


# ---- Performer ---------------------------------------------------------------------------------------------------


def performer_by_loop(directions: Tensor, queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Return the output (T,W) of one row and head, with the features of lemma 1; visible (T,S)."""

    def features(x: Tensor) -> list[float]:
        x = x / len(x) ** 0.25
        return [math.exp(w @ x - x @ x / 2) / math.sqrt(len(directions)) for w in directions]

    output = torch.zeros(len(queries), values.size(1))
    for t in range(len(queries)):
        weights = {}
        for s in range(len(keys)):
            if visible[t, s]:
                pairs = zip(features(queries[t]), features(keys[s]), strict=True)
                weights[s] = sum(a * b for a, b in pairs)
        for s, weight in weights.items():
            output[t] += weight / sum(weights.values()) * values[s]
    return output


@pytest.mark.parametrize("name", ["causal", "lower", "padding"])
def test_performer_is_the_quotient_of_sums_of_features(name: str) -> None:
    queries, keys, values = random_inputs(7)
    module = Performer(8, 12)
    masks: dict[str, Mask] = {"causal": "causal", "lower": causal(7, 7), "padding": real(7)}
    output = module(queries, keys, values, masks[name], 0.0)
    visible = real(7)[1, 0].expand(7, 7) if name == "padding" else causal(7, 7)
    expected = performer_by_loop(module.directions, queries[1, 2], keys[1, 2], values[1, 2], visible)
    torch.testing.assert_close(output[1, 2], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("n", [1, BLOCK, 2 * BLOCK + 3])
def test_causal_sums_in_blocks_are_those_under_the_mask(n: int) -> None:
    module = Performer(8, 12)

    def masked(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        return module(queries, keys, values, causal(n, n), dropout)

    compare(module, masked, "causal", n, tolerance=1e-4)


def test_many_features_come_near_to_attention() -> None:
    queries, keys, values = (x / 2 for x in random_inputs(20))
    expected = reference_attention(queries, keys, values, "causal", 0.0)
    errors = []
    for n_features in (16, 256, 4_096):
        outputs = [Performer(8, n_features, seed=seed)(queries, keys, values, "causal", 0.0) for seed in range(4)]
        errors.append(float(torch.stack([(output - expected).square().mean() for output in outputs]).mean().sqrt()))
    assert errors[2] < 0.01 and errors[0] > 2.5 * errors[1] > 6 * errors[2]


def test_a_weight_is_right_on_average_with_the_known_variance() -> None:
    """The relative variance of one feature is e^(|q + k|^2) - 1."""
    query, key = torch.tensor([0.3, -0.2, 0.4, 0.1]), torch.tensor([0.2, 0.3, 0.1, -0.4])
    norms = (query.square().sum() + key.square().sum()) / 2
    ratios = torch.stack(
        [(orthogonal_directions(1, 4, seed) @ (query + key) - norms - query @ key).exp() for seed in range(4_000)]
    )
    variance = math.exp((query + key).square().sum()) - 1
    assert ratios.mean() == pytest.approx(1, abs=4 * math.sqrt(variance / 4_000))
    assert ratios.var() == pytest.approx(variance, rel=0.25)


def test_directions_are_orthogonal_in_groups_and_have_normal_lengths() -> None:
    directions = orthogonal_directions(200, 8, 0)
    products = directions[:8] @ directions[:8].T
    assert (products - products.diag().diag()).abs().max() < 1e-5
    assert directions.square().sum(dim=-1).mean() == pytest.approx(8, rel=0.1)


def test_large_keys_do_not_overflow() -> None:
    queries, keys, values = random_inputs(30)
    keys = torch.cat([keys] * 32, dim=-1) * 4
    queries = torch.cat([queries] * 32, dim=-1)
    assert Performer(256, 64)(queries, keys, values, "causal", 0.0).isfinite().all()


def test_a_row_without_real_keys_is_0() -> None:
    nothing = torch.zeros(1, 1, dtype=torch.bool)
    assert not Performer(8)(*random_inputs(3), nothing, 0.0).any()


def test_redrawn_directions_are_saved_with_a_model() -> None:
    one, other = Performer(8, 16), Performer(8, 16)
    one.redraw(7)
    assert not torch.equal(one.directions, other.directions)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.directions, other.directions)


def test_steps_of_performer_with_a_cache_are_the_whole_text() -> None:
    torch.manual_seed(1)
    model, ids, attention = (
        GPT2(GPT2Config(vocab_size=30, d_model=16, n_layers=2, n_heads=2, dropout=0.0)),
        torch.randint(30, (2, 12)),
        Performer(8, 16),
    )
    whole, _ = model.states(ids, attention=attention)
    states, past = model.states(ids[:, :7], attention=attention)
    parts = [states]
    for chunk in ids[:, 7:].split([1, 1, 3], dim=1):
        states, past = model.states(chunk, past, attention)
        parts.append(states)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-4, rtol=1e-4)
