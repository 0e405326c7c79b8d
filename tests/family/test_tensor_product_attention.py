"""Tensor product attention, against its definition in a plain loop."""

import math

import torch
from torch import Tensor

from transduce.family.attention_configs import T6Config
from transduce.family.attention_wrappers import NO_PAST, Past
from transduce.family.tensor_product_attention import (
    T6,
    TensorProductAttention,
    products,
    with_products,
    with_rotation_of_factors,
)
from transduce.family.window import with_window
from transduce.model.attention import Mask, reference_attention

H, K, D = 4, 6, 12


def module() -> TensorProductAttention:
    torch.manual_seed(1)
    return TensorProductAttention(D, H, d_k=K, ranks=(3, 2, 2)).double()


def matrix_by_loop(weight: Tensor, x: Tensor, rank: int) -> list[list[float]]:
    """Return the numbers (H,K) of one token: the sum of R products A_r B_r, divided by R."""
    numbers = (weight @ x).tolist()
    size = H + K
    parts = [(numbers[r * size : r * size + H], numbers[r * size + H : (r + 1) * size]) for r in range(rank)]
    return [[sum(a[h] * b[k] for a, b in parts) / rank for k in range(K)] for h in range(H)]


def rotated(vectors: list[list[float]], angles: Tensor) -> list[list[float]]:
    result = []
    for vector in vectors:
        pairs = [
            complex(vector[i], vector[i + K // 2]) * complex(math.cos(angles[i]), math.sin(angles[i]))
            for i in range(K // 2)
        ]
        result.append([pair.real for pair in pairs] + [pair.imag for pair in pairs])
    return result


@torch.no_grad()
def test_attention_is_that_of_the_products() -> None:
    """With the rotation of RoPE, and the causal mask."""
    attention, x, angles = module(), torch.randn(1, 5, D).double(), torch.rand(5, K // 2).double() * 6
    output = attention.attend(
        *attention.projections(x), "causal", with_rotation_of_factors(angles, H, with_products(H))
    )
    queries, keys, values = (
        [matrix_by_loop(matrix.weight, x[0, t], rank) for t in range(5)]
        for matrix, rank in zip((attention.w_q, attention.w_k, attention.w_v), (3, 2, 2), strict=True)
    )
    queries, keys = ([rotated(x, angles[t]) for t, x in enumerate(side)] for side in (queries, keys))
    for t in range(5):
        heads: list[float] = []
        for h in range(H):
            scores = [sum(a * b for a, b in zip(queries[t][h], keys[s][h], strict=True)) for s in range(t + 1)]
            weights = [math.exp(score / math.sqrt(K)) for score in scores]
            heads += [sum(w * values[s][h][k] for s, w in enumerate(weights)) / sum(weights) for k in range(K)]
        torch.testing.assert_close(output[0, t], attention.w_o.weight @ torch.tensor(heads, dtype=torch.float64))


def test_scores_can_be_computed_from_the_factors() -> None:
    """q k = (1/R) sum over r of a_r (q b_r): no key is needed in full."""
    queries, factors = torch.randn(2, H, 5, K), torch.randn(2, 2, 5, H + K)
    a, b = factors.split([H, K], dim=-1)
    scores = torch.einsum("bhtk,brsk,brsh->bhts", queries, b, a) / 2
    torch.testing.assert_close(scores, queries @ products(factors, H).mT, atol=1e-5, rtol=1e-5)


def test_gradients_reach_all_factors() -> None:
    attention, x = module(), torch.randn(1, 3, D).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: attention.attend(*attention.projections(x), "causal", with_products(H, reference_attention)), x
    )
    attention.attend(*attention.projections(x), "causal", with_products(H)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in attention.parameters())


def test_the_cache_has_the_factors() -> None:
    """640 numbers of a token instead of 8,192, for 32 heads of 128."""
    attention = TensorProductAttention(64, 32, d_k=128).to("meta")
    keys, values = attention.keys_values(torch.empty(1, 1, 64, device="meta"))
    assert keys.numel() + values.numel() == 640 and 2 * 32 * 128 == 8_192


def t6() -> T6:
    torch.manual_seed(1)
    model = T6(T6Config(vocab_size=30, d_model=16, n_layers=2, n_heads=4, d_ff=32, tied=False))
    torch.nn.init.normal_(model.embedding.weight)
    return model


def test_steps_of_t6_with_a_cache_are_the_whole_text() -> None:
    model, ids = t6(), torch.randint(30, (2, 12))
    for attention in (reference_attention, with_window(3)):
        whole, _ = model.states(ids, NO_PAST, attention)
        past, parts = NO_PAST, []
        for chunk in ids.split([5, 1, 1, 3, 2], dim=1):
            states, past = model.states(chunk, past, attention)
            parts.append(states)
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-4)
        assert past.layers[0][0].shape == (2, 2, 12, 4 + 4)


def test_a_row_of_t6_with_padding_before_it_is_the_row_alone() -> None:
    model, ids = t6(), torch.randint(30, (2, 9))
    past, parts = Past((), torch.tensor([0, 4])), []
    for chunk in ids.split([6, 3], dim=1):
        states, past = model.states(chunk, past)
        parts.append(states)
    torch.testing.assert_close(torch.cat(parts, dim=1)[1:, 4:], model.states(ids[1:, 4:])[0], atol=1e-5, rtol=1e-4)


def test_an_attention_function_gets_whole_keys_and_values() -> None:
    shapes = []

    def measure(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        shapes.extend(x.shape for x in (queries, keys, values))
        return queries

    t6().states(torch.randint(30, (2, 7)), NO_PAST, measure)
    assert set(shapes) == {(2, 4, 7, 4)}
