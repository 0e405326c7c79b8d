"""Invariance: the future, padding, the batch and decoding step by step do not change the output."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.small_models import CONFIG, NARROW, both_dtypes, both_norms, ids, mask_of, model_of
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from transduce.config.schema import ModelConfig
from transduce.model.attention import LONG
from transduce.model.transformer import Cache

# ---- the future, padding, the batch ------------------------------------------------------------------------------

NOTHING = {torch.float32: 1e-6, torch.float64: 1e-14}  # most rounding error, relative to the largest value


def assert_unchanged(actual: Tensor, plain: Tensor) -> None:
    assert_close(actual, plain, rtol=0, atol=NOTHING[plain.dtype] * plain.abs().max().item())


@both_dtypes
@both_norms
@pytest.mark.parametrize("width", [8, LONG + 4], ids=["short", "long"])
def test_the_future_does_not_change_the_past(width: int, norm: Any, dtype: torch.dtype) -> None:
    model = model_of(replace(CONFIG, norm=norm), dtype)
    src = ids(2, 6)
    src_mask = mask_of(6, 4)
    tgt_in = ids(2, width, seed=5)
    plain = model(src, src_mask, tgt_in)
    for t in (1, 5, width - 1):
        other = tgt_in.clone()
        other[:, t:] = (other[:, t:] + 1) % 13
        actual = model(src, src_mask, other)
        assert_unchanged(actual[:, :t], plain[:, :t])
        assert ((actual - plain)[:, t:].abs().amax(-1) > 1e-3).all()


@both_dtypes
@both_norms
@pytest.mark.parametrize("width", [8, LONG + 4], ids=["short", "long"])
def test_ids_of_padding_do_not_change_the_output(width: int, norm: Any, dtype: torch.dtype) -> None:
    model = model_of(replace(CONFIG, norm=norm), dtype)
    src = ids(3, width)
    src_mask = mask_of(width, 3, 1)
    tgt_in = ids(3, 5, seed=5)
    memories = [model.encode(x, src_mask) for x in (torch.where(src_mask, src, (src + 1) % 13), src)]
    assert_unchanged(memories[0][src_mask], memories[1][src_mask])
    assert_unchanged(*(model.decode(tgt_in, memory, src_mask) for memory in memories))


def test_every_source_token_changes_every_output() -> None:
    model = model_of(CONFIG)
    src = ids(1, 6)
    src_mask = mask_of(6)
    tgt_in = ids(1, 5, seed=5)
    plain = model(src, src_mask, tgt_in)
    for s in range(6):
        other = src.clone()
        other[0, s] = (other[0, s] + 1) % 13
        assert ((model(other, src_mask, tgt_in) - plain).abs().amax(-1) > 1e-3).all()


# With LONG more columns, the padded sentence uses the fused kernel.
@both_dtypes
@both_norms
@pytest.mark.parametrize("more", [1, 9, LONG])
def test_padding_does_not_change_the_output(more: int, norm: Any, dtype: torch.dtype) -> None:
    model = model_of(replace(CONFIG, norm=norm), dtype)
    src = ids(2, 6)
    src_mask = mask_of(6, 4)
    tgt_in = ids(2, 5, seed=5)
    plain = model(src, src_mask, tgt_in)
    assert_unchanged(model(F.pad(src, (0, more)), F.pad(src_mask, (0, more)), tgt_in), plain)
    assert_unchanged(model(src, src_mask, F.pad(tgt_in, (0, more)))[:, :5], plain)


@both_dtypes
@both_norms
def test_a_sentence_does_not_depend_on_its_batch(norm: Any, dtype: torch.dtype) -> None:
    model = model_of(replace(CONFIG, norm=norm), dtype)
    src = ids(3, 6)
    src_mask = mask_of(3, 6, 1)
    tgt_in = ids(3, 5, seed=5)
    together = model(src, src_mask, tgt_in)
    for b, length in enumerate((3, 6, 1)):
        single = model(src[b : b + 1, :length], src_mask[b : b + 1, :length], tgt_in[b : b + 1])
        assert_unchanged(single[0], together[b])


@both_dtypes
@both_norms
@pytest.mark.parametrize("width", [5, LONG + 4], ids=["short", "long"])
def test_a_row_of_padding_gives_finite_values_and_gradients(width: int, norm: Any, dtype: torch.dtype) -> None:
    model = model_of(replace(CONFIG, norm=norm), dtype)
    src = ids(2, width)
    src_mask = mask_of(width, 0)
    tgt_in = ids(2, 4, seed=5)
    logits = model(src, src_mask, tgt_in)
    assert logits.isfinite().all()
    assert_unchanged(model(src[:1], src_mask[:1], tgt_in[:1])[0], logits[0])
    logits.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


# ---- decoding step by step ---------------------------------------------------------------------------------------

MODELS_WITH_CACHE = {
    "post": CONFIG,
    "pre": replace(CONFIG, norm="pre"),
    "narrow": NARROW,
    "learned": replace(CONFIG, positions="learned", max_positions=7),
    "untied": replace(CONFIG, tie_src_tgt=False, tie_output=False),
}


@pytest.mark.parametrize("config", MODELS_WITH_CACHE.values(), ids=MODELS_WITH_CACHE.keys())
def test_a_step_with_the_cache_equals_decoding_the_prefix(config: ModelConfig) -> None:
    model = model_of(config)
    src = ids(3, 6)
    src_mask = mask_of(6, 4, 1)
    tgt_in = ids(3, 7, seed=5)
    memory = model.encode(src, src_mask)
    cache = model.start(memory, src_mask)
    for t in range(7):
        assert cache.length == t
        actual, cache = model.decode_step(tgt_in[:, t], cache)
        expected = model.logits(model.decode(tgt_in[:, : t + 1], memory, src_mask)[:, -1])
        assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_steps_longer_than_long_equal_decoding() -> None:
    model = model_of(CONFIG)
    src_mask, tgt_in = mask_of(LONG + 4), ids(1, LONG + 3, seed=5)
    memory = model.encode(ids(1, LONG + 4), src_mask)
    full = model.logits(model.decode(tgt_in, memory, src_mask))
    cache = model.start(memory, src_mask)
    for t in range(tgt_in.size(1)):
        actual, cache = model.decode_step(tgt_in[:, t], cache)
        if t % 50 == 0 or t > LONG - 3:
            assert_close(actual, full[:, t], rtol=1e-9, atol=1e-9)


def test_a_step_does_not_change_its_cache() -> None:
    model = model_of(CONFIG)
    src_mask = mask_of(6, 4)
    _, cache = model.decode_step(ids(2), model.start(model.encode(ids(2, 6), src_mask), src_mask))
    first, _ = model.decode_step(ids(2, seed=6), cache)
    model.decode_step(ids(2, seed=7), cache)
    second, _ = model.decode_step(ids(2, seed=6), cache)
    assert cache.length == 1
    assert torch.equal(first, second)


@both_norms
def test_beams_that_branch_swap_and_end(norm: Any) -> None:
    """Decode three sentences with two rows each. Then the rows swap, and the second sentence ends."""
    model = model_of(replace(NARROW, norm=norm))
    src, src_mask = ids(3, 6), mask_of(6, 4, 5)
    memory = model.encode(src, src_mask)
    of_row, prefixes = [0, 1, 2], [[], [], []]  # the sentence and the tokens of every row
    cache = model.start(memory, src_mask)

    def step(cache: Cache) -> Cache:
        new = ids(len(of_row), seed=len(prefixes[0]) + 20)
        logits, cache = model.decode_step(new, cache)
        for row, token in enumerate(new.tolist()):
            prefixes[row] = [*prefixes[row], token]
            b = slice(of_row[row], of_row[row] + 1)
            expected = model.decode(torch.tensor([prefixes[row]]), memory[b], src_mask[b])
            assert_close(logits[row], model.logits(expected[0, -1]), rtol=1e-10, atol=1e-10)
        return cache

    def select(cache: Cache, rows: list[int], sentences: list[int]) -> Cache:
        of_row[:], prefixes[:] = [of_row[row] for row in rows], [prefixes[row] for row in rows]
        return cache.select(torch.tensor(rows), torch.tensor(sentences))

    cache = step(cache)
    branches = select(cache, [0, 0, 1, 1, 2, 2], [0, 1, 2])
    assert branches.cross is cache.cross  # the rows of a sentence share its keys and values, without a copy
    cache = step(step(branches))
    cache = step(select(cache, [1, 0, 2, 2, 5, 4], [0, 1, 2]))
    cache = select(cache, [0, 0, 5, 4], [0, 2])
    assert len(cache.cross[0][0]) == len(cache.src_mask) == 2
    cache = step(step(cache))
    step(select(cache, [3, 2], [1]))


def test_beams_may_branch_before_the_first_token() -> None:
    model = model_of(CONFIG)
    src_mask = mask_of(6, 4)
    cache = model.start(model.encode(ids(2, 6), src_mask), src_mask)
    one_row, _ = model.decode_step(torch.tensor([1, 1]), cache)
    two_rows, _ = model.decode_step(
        torch.tensor([1, 1, 1, 1]), cache.select(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1]))
    )
    assert_close(two_rows, one_row.repeat_interleave(2, dim=0))
