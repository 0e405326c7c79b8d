"""Synthesizer: its scores against plain loops, and the model with them."""

from typing import Any

import pytest
import torch
from support.gradients import assert_same_with_gradients
from support.hugging_face import disturb
from torch import Tensor

from transduce.family.attention_configs import SynthesizerConfig
from transduce.family.attention_wrappers import NO_PAST, Past
from transduce.family.synthesizer import SynthesizerGPT2, SyntheticAttention
from transduce.family.synthetic_scores import Dense, FactorisedDense, Random
from transduce.model.attention import reference_attention
from transduce.model.transformer import parameter_count

D, H, K, P = 8, 2, 4, 11
KINDS = ["dense", "random", "factorised_dense", "factorised_random"]


def scores_of(kind: str) -> Any:
    match kind:
        case "dense":
            return Dense(H, K, P)
        case "factorised_dense":
            return FactorisedDense(H, K, P)
        case "random":
            return Random(H, P)
        case _:
            return Random(H, P, rank=3)


def dense_by_loop(scores: Any, query: Tensor, head: int) -> list[Tensor]:
    """Return W_2 relu(q) + b of one head."""
    return [
        sum((query[k].relu() * scores.w_2[head, k, j] for k in range(K)), scores.bias[head, 0, j])
        for j in range(scores.w_2.size(-1))
    ]


def score_by_loop(scores: Any, kind: str, query: Tensor, head: int, i: int, j: int) -> Tensor:
    match kind:
        case "dense":
            return dense_by_loop(scores, query, head)[j]
        case "factorised_dense":
            a, b = dense_by_loop(scores.a, query, head), dense_by_loop(scores.b, query, head)
            assert len(a) * len(b) >= P
            return a[j % len(a)] * b[j // len(a)]
        case "random":
            return scores.rows[head, i, j]
        case _:
            return sum((scores.rows[head, i, k] * scores.columns[head, j, k] for k in range(3)), torch.zeros(()))


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_that_of_a_loop(kind: str) -> None:
    """The last 4 of 7 positions attend. Gradients are compared too."""
    torch.manual_seed(1)
    attention: Any = disturb(SyntheticAttention(D, H, scores_of(kind), dropout=0.0))
    x, first = torch.randn(1, 7, D, requires_grad=True), 3
    mask = torch.ones(4, 7, dtype=torch.bool).tril(first)
    output = attention(x[:, first:], attention.keys_values(x), mask, reference_attention)
    queries = attention.w_q(x)[0].unflatten(-1, (H, K))
    values = (x[0] @ attention.w_v.weight.T + attention.w_v.bias).unflatten(-1, (H, K))
    rows = list[Tensor]()
    for i in range(first, 7):
        heads = list[Tensor]()
        for h in range(H):
            weights = [score_by_loop(attention.scores, kind, queries[i, h], h, i, j).exp() for j in range(i + 1)]
            head = sum((w * values[j, h] for j, w in enumerate(weights)), torch.zeros(K))
            heads.append(head / sum(weights, torch.zeros(())))
        rows.append(attention.w_o.weight @ torch.cat(heads) + attention.w_o.bias)
    assert_same_with_gradients(output[0], torch.stack(rows), [x, *attention.parameters()])


def model(kind: Any) -> Any:
    torch.manual_seed(1)
    return disturb(
        SynthesizerGPT2(
            SynthesizerConfig(vocab_size=30, d_model=16, n_layers=2, n_heads=2, max_positions=20, scores=kind)
        )
    )


@pytest.mark.parametrize("kind", KINDS)
def test_steps_with_a_cache_are_the_whole_text(kind: str) -> None:
    gpt, ids = model(kind), torch.randint(30, (2, 20))
    past, parts = NO_PAST, []
    for chunk in ids.split([7, 1, 1, 8, 3], dim=1):
        states, past = gpt.states(chunk, past)
        parts.append(states)
    torch.testing.assert_close(torch.cat(parts, dim=1), gpt.states(ids)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_before_a_row_changes_nothing(kind: str) -> None:
    gpt, ids = model(kind), torch.randint(30, (2, 9))
    past, parts = Past((), torch.tensor([0, 4])), []
    for chunk in ids.split([6, 3], dim=1):
        states, past = gpt.states(chunk, past)
        parts.append(states)
    torch.testing.assert_close(torch.cat(parts, dim=1)[1:, 4:], gpt.states(ids[1:, 4:])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_all_parameters_learn(kind: str) -> None:
    gpt, ids = model(kind), torch.randint(30, (2, 20))
    gpt(ids).log_softmax(-1)[..., 5].sum().backward()
    assert [name for name, parameter in gpt.named_parameters() if parameter.grad is None] == []
    assert [name for name, parameter in gpt.named_parameters() if "scores" in name and not parameter.grad.any()] == []


def test_only_dense_scores_depend_on_the_text() -> None:
    """Another first token changes the weights of later tokens by dense scores alone."""
    for kind in KINDS:
        layer, weights = model(kind).layers[0].self_attention, []
        for x in torch.randn(2, 1, 5, 16, generator=torch.Generator().manual_seed(3)):
            queries = layer._split(layer.w_q(x), 2)
            weights.append(layer.scores(queries, torch.arange(5)[None]))
        assert torch.equal(*weights) == (kind in ("random", "factorised_random"))


def test_factors_need_fewer_parameters() -> None:
    """For 512 positions: 2 (64 512 + 512) in a dense head, 2 (64 + 1) (23 + 23) in a factorised one, and so on."""
    counts = [parameter_count(scores) for scores in (Dense(2, 64, 512), FactorisedDense(2, 64, 512))]
    counts += [parameter_count(scores) for scores in (Random(2, 512), Random(2, 512, 8))]
    assert counts == [2 * 65 * 512, 2 * 65 * (23 + 23), 2 * 512 * 512, 2 * 512 * 2 * 8]
