"""The online softmax and the merge of parts, against the attention of eq. 1."""

import math
from pathlib import Path

import pytest
import torch
from support.attention_inputs import B, compare, random_inputs, real
from support.ranks import ring_attention, run_on_ranks
from torch import Tensor

from transduce.family.around import causal
from transduce.family.online import attention_part, merge, online_attention
from transduce.model.attention import Mask, reference_attention


def in_blocks_of_4(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
    return attention_part(queries, keys, values, mask, dropout, block=4)[0]


@pytest.mark.parametrize("mask", ["causal", "padding", "lower"])
@pytest.mark.parametrize("n", [1, 4, 13])
def test_blocks_of_keys_give_the_attention_of_all(n: int, mask: str) -> None:
    masks: dict[str, Mask] = {"causal": "causal", "padding": real(n), "lower": causal(n, n)}
    compare(in_blocks_of_4, reference_attention, masks[mask], n)
    compare(online_attention, reference_attention, masks[mask], n)


def test_known_sums() -> None:
    """Scores 1, 2 and then 3: the sum of e^(s - m) is 1.3679, then 1.5032; the log-sum-exp is 3.4076."""
    queries, keys = torch.ones(1, 1, 1, 1), torch.tensor([1.0, 2.0, 3.0])[None, None, :, None]
    everything = torch.ones(1, 1, dtype=torch.bool)
    _, lse = attention_part(queries, keys[:, :, :2], keys[:, :, :2], everything)
    assert math.exp(lse.item() - 2) == pytest.approx(1.3679, abs=1e-4)
    output, lse = attention_part(queries, keys, keys, everything, block=2)
    assert math.exp(lse.item() - 3) == pytest.approx(1.5032, abs=1e-4)
    assert lse.item() == pytest.approx(3.4076, abs=1e-4)
    assert output.item() == pytest.approx((math.exp(-2) + 2 * math.exp(-1) + 3) / 1.5032, abs=1e-4)


def test_the_fused_kernel_of_torch_returns_the_same_log_sum_exp() -> None:
    queries, keys, _ = random_inputs(37)
    values = torch.randn_like(keys)
    theirs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0.0, True)
    ours = attention_part(queries, keys, values, "causal", block=8)
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1][..., 0], theirs[1])


def test_gradients_of_output_and_log_sum_exp() -> None:
    """One query sees no key: its output is 0, and so are its gradients."""
    inputs = [x[:1, :1].double().requires_grad_() for x in random_inputs(5)]
    mask = causal(5, 5)
    mask[2] = False
    assert torch.autograd.gradcheck(lambda *inputs: attention_part(*inputs, mask, block=2), inputs)
    assert not attention_part(*inputs, mask, block=2)[0][:, :, 2].any()


def test_large_scores_do_not_overflow() -> None:
    queries, keys, values = random_inputs(9)
    expected = reference_attention(queries * 1e4, keys, values, "causal", 0.0)
    torch.testing.assert_close(in_blocks_of_4(queries * 1e4, keys, values, "causal", 0.0), expected)


def test_dropout_is_the_same_in_the_backward_pass() -> None:
    """The output is linear in the values: the gradient of its sum gives the weights that the forward pass had."""
    queries, keys, values = random_inputs(16)
    torch.manual_seed(1)
    output = in_blocks_of_4(queries, keys, values.requires_grad_(), "causal", 0.5)
    (gradient,) = torch.autograd.grad(output.sum(), values)
    torch.testing.assert_close((gradient * values).sum(), output.sum())
    assert (output - in_blocks_of_4(queries, keys, values, "causal", 0.0)).abs().max() > 0.1


def test_dropout_keeps_the_mean() -> None:
    queries, keys, values = random_inputs(12)
    torch.manual_seed(1)
    mean = sum(in_blocks_of_4(queries, keys, values, "causal", 0.2) for _ in range(200)) / 200
    assert isinstance(mean, Tensor)
    torch.testing.assert_close(mean, reference_attention(queries, keys, values, "causal", 0.0), atol=0.2, rtol=0)


# ---- parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 5, 8])
def test_two_parts_make_the_whole(cut: int) -> None:
    queries, keys, values = random_inputs(9)
    mask = torch.broadcast_to(real(9), (B, 1, 1, 9))
    parts = [attention_part(queries, keys[:, :, s], values[:, :, s], mask[..., s]) for s in (slice(cut), slice(cut, 9))]
    whole = attention_part(queries, keys, values, mask)
    torch.testing.assert_close(merge(*parts), whole)
    torch.testing.assert_close(merge(*parts[::-1]), whole)


def test_a_part_without_visible_keys_has_no_weight() -> None:
    queries, keys, values = random_inputs(9)
    nothing, everything = (torch.full((1, 1), value) for value in (False, True))
    whole = attention_part(queries, keys, values, everything)
    hidden = attention_part(queries, keys, values + 1, nothing)
    torch.testing.assert_close(merge(hidden, whole), whole)
    torch.testing.assert_close(merge(hidden, hidden)[0], torch.zeros_like(whole[0]))


def test_gradients_pass_the_merge() -> None:
    inputs = [x[:1, :1].double().requires_grad_() for x in random_inputs(4)]
    everything = torch.ones(1, 1, dtype=torch.bool)

    def in_two_parts(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        parts = [attention_part(queries, keys[:, :, s], values[:, :, s], everything) for s in (slice(1), slice(1, 4))]
        return merge(*parts)[0]

    assert torch.autograd.gradcheck(in_two_parts, inputs)


def test_ranks_in_a_ring_make_the_whole(tmp_path: Path) -> None:
    parts = run_on_ranks(tmp_path, 3, ring_attention, 12)
    masks: tuple[Mask, Mask] = "causal", torch.ones(1, 1, dtype=torch.bool)
    for i, mask in enumerate(masks):
        output = torch.cat([torch.tensor(part[i]) for part in parts], dim=2)
        torch.testing.assert_close(output, reference_attention(*random_inputs(12), mask, 0.0))
