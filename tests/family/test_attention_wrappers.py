"""The functions around attention, each against a plain loop."""

import math

import pytest
import torch
from torch import Tensor

from transduce.family.attention_wrappers import (
    Past,
    causal,
    with_bias,
    with_cache,
    with_rotation,
    with_shared_heads,
    without_scale,
)
from transduce.model.attention import Mask, reference_attention

B, H, T, K = 2, 4, 5, 6


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def attention_by_loop(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, bias: Tensor | None = None, scale: float = K**-0.5
) -> Tensor:
    """Return eq. 1, number by number, with bias (H,T,S) added to the scores; mask (T,S)."""
    n_rows, n_heads, n_queries, width = queries.shape
    output = torch.zeros(n_rows, n_heads, n_queries, values.size(-1))
    for b in range(n_rows):
        for h in range(n_heads):
            for t in range(n_queries):
                scores = {}
                for s in range(keys.size(2)):
                    if mask[t, s]:
                        product = sum(float(queries[b, h, t, k] * keys[b, h, s, k]) for k in range(width))
                        scores[s] = product * scale + (0 if bias is None else float(bias[h, t, s]))
                total = sum(map(math.exp, scores.values()))
                for s, score in scores.items():
                    output[b, h, t] += math.exp(score) / total * values[b, h, s]
    return output


def random_inputs(n_kv_heads: int = H) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, T, K), torch.randn(B, n_kv_heads, T, K), torch.randn(B, n_kv_heads, T, K)


@pytest.mark.parametrize("chunks", [[5], [1, 1, 1, 1, 1], [2, 3], [3, 1, 1]])
def test_attention_with_a_cache_is_attention_over_all_positions(chunks: list[int]) -> None:
    queries, keys, values = random_inputs()
    whole = attention_by_loop(queries, keys, values, torch.ones(T, T).tril())
    past, parts, start = None, [], 0
    for size in chunks:
        so_far: list[tuple[Tensor, Tensor]] = []
        new = [x[:, :, start : start + size] for x in (queries, keys, values)]
        parts.append(with_cache(past, so_far)(*new, causal(size, start + size), 0.0))
        (past,) = so_far
        start += size
    torch.testing.assert_close(torch.cat(parts, dim=2), whole)
    torch.testing.assert_close(past, (keys, values))


def rotated_by_loop(x: Tensor, angles: Tensor) -> Tensor:
    """Multiply the complex numbers x_i + j x_(i + K/2) by e^(j angle)."""
    output, half = torch.empty_like(x), x.size(-1) // 2
    for t in range(x.size(2)):
        for i in range(half):
            turn = complex(math.cos(angles[t, i]), math.sin(angles[t, i]))
            for b in range(x.size(0)):
                for h in range(x.size(1)):
                    number = complex(x[b, h, t, i], x[b, h, t, i + half]) * turn
                    output[b, h, t, i], output[b, h, t, i + half] = number.real, number.imag
    return output


def test_rotation_is_a_product_of_complex_numbers() -> None:
    queries, keys, values = random_inputs()
    angles = torch.rand(T, K // 2) * 9
    expected = attention_by_loop(
        rotated_by_loop(queries, angles), rotated_by_loop(keys, angles), values, torch.ones(T, T).tril()
    )
    torch.testing.assert_close(with_rotation(angles)(queries, keys, values, "causal", 0.0), expected)


def test_a_rotated_product_depends_only_on_the_distance() -> None:
    queries, keys, rotated = torch.randn(1, 1, 1, K), torch.randn(1, 1, 1, K), []
    frequencies = torch.tensor([1.0, 0.3, 0.01])

    def keep(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        rotated.append((queries, keys))
        return values

    products = []
    for position in (0, 7, 100):
        with_rotation(position * frequencies[None], keep)(queries, keys, keys, "causal", 0.0)
        with_rotation((position + 3) * frequencies[None], keep)(queries, keys, keys, "causal", 0.0)
        products.append(float((rotated[-2][0] * rotated[-1][1]).sum()))
    assert products[1:] == pytest.approx([products[0]] * 2, rel=1e-4)


def test_the_first_pair_at_position_1_is_rotated_by_one_radian() -> None:
    one = torch.tensor([1.0, 0.0])[None, None, None]
    rotated = with_rotation(torch.ones(1, 1), lambda queries, *_: queries)(one, one, one, "causal", 0.0)
    assert rotated.flatten().tolist() == pytest.approx([0.5403, 0.8415], abs=1e-4)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_heads_share_keys_and_values(n_kv_heads: int) -> None:
    queries, keys, values = random_inputs(n_kv_heads)
    mask = torch.ones(T, T).tril()
    heads = []
    for h in range(H):
        shared = h // (H // n_kv_heads)
        one = slice(shared, shared + 1)
        heads.append(attention_by_loop(queries[:, h : h + 1], keys[:, one], values[:, one], mask))
    output = with_shared_heads()(queries, keys, values, "causal", 0.0)
    torch.testing.assert_close(output, torch.cat(heads, dim=1))


@pytest.mark.parametrize("mask", ["causal", "tensor"])
def test_a_bias_is_added_to_the_scores(mask: str) -> None:
    queries, keys, values = random_inputs()
    bias, lower = torch.randn(H, T, T), torch.ones(T, T, dtype=torch.bool).tril()
    expected = attention_by_loop(queries, keys, values, lower, bias)
    output = with_bias(bias)(queries, keys, values, "causal" if mask == "causal" else lower, 0.0)
    torch.testing.assert_close(output, expected)


def test_a_bias_belongs_to_the_last_positions_after_a_cache() -> None:
    queries, keys, values = random_inputs()
    bias = torch.randn(H, 2, T)
    expected = attention_by_loop(queries[:, :, 3:], keys, values, torch.ones(T, T).tril()[3:], bias)
    output = with_bias(bias)(queries[:, :, 3:], keys, values, "causal", 0.0)
    torch.testing.assert_close(output, expected)


def test_scores_without_a_scale_are_products_plus_bias() -> None:
    queries, keys, values = random_inputs()
    bias, lower = torch.randn(H, T, T), torch.ones(T, T).tril()
    expected = attention_by_loop(queries, keys, values, lower, bias, scale=1.0)
    output = with_bias(bias, without_scale())(queries, keys, values, "causal", 0.0)
    torch.testing.assert_close(output, expected)


def test_the_functions_compose() -> None:
    """In two steps with a cache: rotated queries and keys, shared heads."""
    queries, keys, values = random_inputs(2)
    angles = torch.rand(T, K // 2)
    turned = rotated_by_loop(queries, angles), rotated_by_loop(keys, angles).repeat_interleave(2, dim=1)
    expected = attention_by_loop(*turned, values.repeat_interleave(2, dim=1), torch.ones(T, T).tril())
    so_far: list[tuple[Tensor, Tensor]] = []
    parts = []
    for start, end in ((0, 3), (3, 5)):
        cache = with_cache(so_far.pop() if so_far else None, so_far, with_shared_heads(reference_attention))
        new = [x[:, :, start:end] for x in (queries, keys, values)]
        parts.append(with_rotation(angles[start:end], cache)(*new, causal(end - start, end), 0.0))
    torch.testing.assert_close(torch.cat(parts, dim=2), expected)


def test_padding_gives_each_row_its_own_positions_and_mask() -> None:
    past = Past([(torch.zeros(3, 1, 4, 2), torch.zeros(3, 1, 4, 2))], torch.tensor([0, 2, 4]))
    positions, mask = past.places(torch.zeros(3, 2, dtype=torch.int64))
    assert positions.tolist() == [[4, 5], [2, 3], [0, 1]]
    assert isinstance(mask, Tensor) and mask.shape == (3, 1, 2, 6)
    for row, padding in enumerate([0, 2, 4]):
        for t in range(2):
            assert mask[row, 0, t].tolist() == [padding <= s <= 4 + t for s in range(6)]


def test_without_padding_the_first_positions_have_the_causal_mask() -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    positions, mask = Past().places(ids)
    assert positions.tolist() == [0, 1, 2] and mask == "causal"
    positions, mask = Past([(torch.zeros(2, 1, 4, 2),) * 2]).places(ids)
    assert positions.tolist() == [4, 5, 6] and isinstance(mask, Tensor)
    assert mask.tolist() == [[s <= 4 + t for s in range(7)] for t in range(3)]


def test_rows_of_the_past_are_selected() -> None:
    keys = torch.randn(3, 1, 4, 2)
    past = Past([(keys, 2 * keys)], torch.tensor([0, 2, 4])).select(torch.tensor([2, 0]))
    assert past.padding is not None and past.padding.tolist() == [4, 0]
    assert torch.equal(past.layers[0][0], keys[[2, 0]]) and torch.equal(past.layers[0][1], 2 * keys[[2, 0]])
