"""Longformer's and BigBird's attention, against dense masks and the implementations of transformers."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from support.attention_inputs import B, H, compare, random_inputs, real
from support.documents import code_blocks
from support.toy_task import ROOT
from torch import Tensor, nn

from transduce.family.attention_patterns import first, restricted, union, with_pattern
from transduce.family.bert import BertEncoder
from transduce.family.big_bird import big_bird, big_bird_blocks, of_blocks
from transduce.family.longformer import LongformerAttention
from transduce.model.attention import MultiHeadAttention, reference_attention

D = 12


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


# ---- Longformer --------------------------------------------------------------------------------------------------


def longformer(reach: int, n_global: int) -> LongformerAttention:
    torch.manual_seed(1)
    module = LongformerAttention(D, H, reach, n_global=n_global)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


@pytest.mark.parametrize(("n", "n_global"), [(24, 0), (24, 1), (24, 3), (7, 2), (40, 20)])
def test_longformer_is_two_attentions_under_dense_masks(n: int, n_global: int) -> None:
    module, x, mask = longformer(4, n_global), torch.randn(B, n, D), real(n)
    inputs = x.clone().requires_grad_(), x.clone().requires_grad_()
    output = module.attend(*module.projections(inputs[0]), mask)

    def dense(x: Tensor) -> Tensor:
        parts = []
        for projections in (module.of_global, module.local):
            queries, keys, values = (split(f(x)) for f in (projections.w_q, projections.w_k, projections.w_v))
            near = with_pattern(union(restricted(4), first(n_global)), reference_attention)
            parts.append(near(queries, keys, values, mask, 0.0).transpose(1, 2).flatten(2))
        return module.local.w_o(torch.where((torch.arange(n) < n_global)[:, None], *parts))

    expected, shown = dense(inputs[1]), mask[:, 0].mT
    torch.testing.assert_close(output * shown, expected * shown, atol=1e-5, rtol=1e-5)
    gradients = [
        torch.autograd.grad((side * shown).square().sum(), x)[0]
        for side, x in zip((output, expected), inputs, strict=True)
    ]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_longformer_begins_with_equal_projections_and_has_one_output() -> None:
    module = LongformerAttention(D, H, 4)
    assert torch.equal(module.of_global.w_k.weight, module.local.w_k.weight)
    assert module.of_global.w_k.weight is not module.local.w_k.weight
    assert module.of_global.w_o is module.local.w_o
    assert sum(p.numel() for p in module.parameters()) == 7 * (D * D + D)


@pytest.mark.parametrize("n_global", [0, 1, 3])
def test_longformer_is_that_of_transformers(n_global: int) -> None:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    module, x, mask = longformer(4, n_global), torch.randn(B, 24, D), real(24)
    config = LongformerConfig(hidden_size=D, num_attention_heads=H, attention_window=[8], num_hidden_layers=1)
    theirs = LongformerSelfAttention(config, layer_id=0).eval()
    names = {"query": "w_q", "key": "w_k", "value": "w_v"}
    for suffix, part in (("", module.local), ("_global", module.of_global)):
        for name, ours in names.items():
            getattr(theirs, name + suffix).load_state_dict(getattr(part, ours).state_dict())
    nn.init.eye_(module.local.w_o.weight)
    nn.init.zeros_(module.local.w_o.bias)
    is_global = (torch.arange(24) < n_global).expand(B, -1)
    kinds = torch.where(mask[:, 0, 0], torch.where(is_global, 1e4, 0.0), -1e4)
    flags: dict[str, Any] = {"is_index_masked": kinds < 0, "is_index_global_attn": kinds > 0}
    (expected,) = theirs(x, kinds, **flags, is_global_attn=n_global > 0)
    shown = mask[:, 0].mT
    torch.testing.assert_close(
        module.attend(*module.projections(x), mask) * shown, expected * shown, atol=1e-5, rtol=1e-5
    )


def test_longformer_in_the_layers_of_an_encoder() -> None:
    torch.manual_seed(1)
    code: dict[str, BertEncoder] = {}
    page = code_blocks(ROOT / "docs" / "family-attention.md", "py")[4]
    exec(re.sub(r"d_model=\d+", f"d_model={D}", page).replace("n_heads=4", f"n_heads={H}").replace("32", "4"), code)
    encoder, ids = code["encoder"].eval(), torch.randint(30, (B, 24))
    states = encoder(ids, real(24)[:, 0, 0])
    changed = ids.clone()
    changed[1, 20] += 1  # padding
    torch.testing.assert_close(encoder(changed, real(24)[:, 0, 0])[1, :16], states[1, :16])
    states.square().sum().backward()
    assert all(p.grad is not None for layer in encoder.layers for p in layer.parameters())


# ---- BigBird -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_random", [0, 1, 3])
def test_blocks_of_big_bird(n_random: int) -> None:
    blocks = big_bird_blocks(12, n_random, 5, seed=1)
    chosen = set()
    for h in range(5):
        for i in range(12):
            visible = {j for j in range(12) if blocks[h, i, j]}
            if i in (0, 11):
                assert visible == set(range(12))
                continue
            always = {0, i - 1, i, i + 1, 11}
            assert always <= visible and len(visible - always) == n_random
            chosen |= {(h, i, j) for j in visible - always}
    assert len({j for _, _, j in chosen}) == (10 if n_random else 0)  # all but the edges
    assert torch.equal(blocks, big_bird_blocks(12, n_random, 5, seed=1))
    assert not n_random or not torch.equal(blocks, big_bird_blocks(12, n_random, 5, seed=2))


@pytest.mark.parametrize("n_blocks", [1, 2, 3, 5])
def test_a_short_text_is_seen_in_full(n_blocks: int) -> None:
    assert big_bird_blocks(n_blocks, 2, H, seed=1).all()


def test_big_bird_is_attention_under_its_blocks() -> None:
    n, size = 29, 3
    blocks = big_bird_blocks(10, 1, H, seed=3)
    visible = torch.tensor([[[bool(blocks[h, i // 3, j // 3]) for j in range(n)] for i in range(n)] for h in range(H)])

    def dense(queries: Tensor, keys: Tensor, values: Tensor, mask: Any, dropout: float) -> Tensor:
        return reference_attention(queries, keys, values, mask & visible, dropout)

    compare(with_pattern(big_bird(size, 1, H, seed=3)), dense, real(n), n)


def test_big_bird_is_that_of_transformers() -> None:
    """In training mode: in evaluation theirs draws no random blocks, and counts the first block twice."""
    from transformers import BigBirdConfig, BigBirdModel
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    n, size = 40, 4
    config = BigBirdConfig(
        hidden_size=D, num_attention_heads=H, block_size=size, num_random_blocks=2, attention_probs_dropout_prob=0.0
    )
    theirs = BigBirdBlockSparseAttention(config, seed=5).train()
    torch.manual_seed(1)
    ours = MultiHeadAttention(D, H)
    for name, matrix in {"query": ours.w_q, "key": ours.w_k, "value": ours.w_v}.items():
        nn.init.normal_(matrix.weight, std=0.3)
        getattr(theirs, name).load_state_dict(matrix.state_dict())
    x, mask = torch.randn(B, n, D), real(n)
    blocked, band, of_queries, of_keys = BigBirdModel.create_masks_for_block_sparse_attn(mask[:, 0, 0].float(), size)
    expected, _ = theirs(x, band, of_queries, of_keys, blocked, blocked)

    np.random.seed(5)
    plan = theirs._get_rand_attn_plan(n, size, 2)
    drawn = np.stack(theirs._bigbird_block_rand_mask_with_head(n, n, size, size, H, *plan))  # (H,N-2,2)
    blocks = big_bird_blocks(n // size, 0, H, seed=0)
    blocks[:, 1:-1] = blocks[:, 1:-1].scatter(-1, torch.tensor(drawn, dtype=torch.int64), True)
    nn.init.eye_(ours.w_o.weight)
    nn.init.zeros_(ours.w_o.bias)
    output = ours.attend(*ours.projections(x), mask, with_pattern(of_blocks(blocks, size)))
    shown = mask[:, 0].mT
    torch.testing.assert_close(output * shown, expected * shown, atol=1e-5, rtol=1e-5)


def test_heads_of_big_bird_see_other_blocks() -> None:
    queries, keys, values = (x[:, :1].expand(-1, H, -1, -1) for x in random_inputs(40))
    output = with_pattern(big_bird(4, 2, H))(queries, keys, values, real(40), 0.0)
    assert (output[:, 0] - output[:, 1]).abs().max() > 0.01
