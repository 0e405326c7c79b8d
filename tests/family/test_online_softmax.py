"""The online softmax and the merge of parts, against the attention of eq. 1."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.attention_inputs import B, H, compare, random_inputs, real
from support.ranks import ring_attention, run_on_ranks
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transduce.family.attention_wrappers import causal, with_bias
from transduce.family.configs import T5Config
from transduce.family.online_softmax import attention_part, merge, online_attention
from transduce.family.t5 import T5
from transduce.model.attention import Mask, reference_attention


def in_blocks_of_4(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
    return attention_part(queries, keys, values, mask, dropout, block=4)[0]


@pytest.mark.parametrize("mask", ["causal", "padding", "lower"])
@pytest.mark.parametrize("n", [1, 4, 13])
def test_blocks_of_keys_give_the_attention_of_all(n: int, mask: str) -> None:
    masks: dict[str, Mask] = {"causal": "causal", "padding": real(n), "lower": causal(n, n)}
    compare(in_blocks_of_4, reference_attention, masks[mask], n)
    compare(online_attention, reference_attention, masks[mask], n)


@pytest.mark.parametrize(("n_queries", "n_keys"), [(5, 13), (13, 5)])
def test_the_causal_mask_is_that_of_the_last_positions(n_queries: int, n_keys: int) -> None:
    inputs = random_inputs(n_keys, n_queries)
    outputs = [attention_part(*inputs, mask, block=4) for mask in ("causal", causal(n_queries, n_keys))]
    torch.testing.assert_close(*outputs)


class LargestTensor(TorchDispatchMode):
    """Records the most numbers of a tensor that torch makes."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for x in tree_leaves(output):
            if isinstance(x, Tensor):
                self.size = max(self.size, x.numel())
        return output


@pytest.mark.parametrize("mask", ["causal", "padding"])
def test_no_tensor_grows_with_the_square_of_the_length(mask: str) -> None:
    sizes = []
    for n in (128, 256, 512):
        inputs = [x.requires_grad_() for x in random_inputs(n)]
        with LargestTensor() as largest:
            output, _ = attention_part(*inputs, "causal" if mask == "causal" else real(n), block=32)
            output.sum().backward()
        sizes.append(largest.size)
    assert sizes == [2 * 3 * n * 32 for n in (128, 256, 512)]  # the weights of one block


def test_a_bias_is_added_to_the_scores_and_has_a_gradient() -> None:
    queries, keys, values = random_inputs(13)
    for shape in ((3, 13, 13), (13, 1), (1, 1, 1, 13)):
        figures = []
        for attention in (in_blocks_of_4, reference_attention):
            bias = torch.linspace(-2, 2, math.prod(shape)).view(shape).requires_grad_()
            output = with_bias(bias, attention)(queries, keys, values, "causal", 0.0)
            figures.append((output, *torch.autograd.grad(output.square().sum(), bias)))
        torch.testing.assert_close(*figures)


def test_a_query_without_a_visible_key_gives_0_under_a_bias() -> None:
    queries, keys, values = random_inputs(5)
    mask = causal(5, 5)
    mask[2] = False
    output = with_bias(torch.randn(H, 5, 5), online_attention)(queries, keys, values, mask, 0.0)
    assert not output[:, :, 2].any() and output[:, :, 3].all()


def test_the_encoder_of_t5_has_the_same_states() -> None:
    torch.manual_seed(1)
    model = T5(T5Config(vocab_size=30, d_model=16, n_layers=2, n_heads=2, d_ff=32, d_k=8, dropout=0.0), n_sentinels=0)
    src, mask = torch.randint(4, 30, (2, 9)), real(9)[:, 0, 0]
    states, expected = (model.encode(src, mask, attention) for attention in (online_attention, reference_attention))
    torch.testing.assert_close(states[0], expected[0])
    torch.testing.assert_close(states[1, :6], expected[1, :6])


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
