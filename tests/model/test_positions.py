"""Positional encoding: the layouts of the sinusoids, their growth, and learned positions."""

import copy
from dataclasses import replace

import pytest
import torch
from support import reference
from support.small_models import (
    CONFIG,
    ids,
    mask_of,
    model_of,
)
from torch import nn
from torch.testing import assert_close

from transduce.config.schema import PositionLayout
from transduce.errors import UserError
from transduce.model.positions import SinusoidalPositions, sinusoids
from transduce.model.transformer import Transformer

LAYOUTS: tuple[PositionLayout, ...] = ("interleaved", "halves", "tensor2tensor")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d_model", [4, 10, 512])
def test_every_layout_follows_its_formula(layout: PositionLayout, d_model: int) -> None:
    actual = sinusoids(300, d_model, layout)
    some = [0, 1, 2, 255, 256, 299]
    expected = torch.tensor([reference.position(pos, d_model, layout) for pos in some], dtype=torch.float64)
    assert actual.shape == (300, d_model)
    assert_close(actual[some], expected.float(), rtol=1.2e-7, atol=1e-12)


def test_the_table_has_the_worked_numbers() -> None:
    expected = [[0.0, 1.0, 0.0, 1.0], [0.841, 0.540, 0.010, 1.000], [0.909, -0.416, 0.020, 1.000]]
    assert_close(sinusoids(3, 4), torch.tensor(expected), atol=5e-4, rtol=0)


def test_halves_are_the_interleaved_columns_in_another_order() -> None:
    interleaved = sinusoids(20, 10)
    assert torch.equal(sinusoids(20, 10, "halves"), torch.cat([interleaved[:, ::2], interleaved[:, 1::2]], dim=1))
    assert not torch.equal(sinusoids(20, 10, "tensor2tensor"), sinusoids(20, 10, "halves"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sinusoids_have_no_limit(layout: PositionLayout) -> None:
    positions = Transformer(replace(CONFIG, positions=layout)).positions
    first = positions(0, 4).clone()
    for end in (256, 257, 700, 5000):
        assert_close(positions(end - 3, end), sinusoids(end, 8, layout)[-3:], rtol=0, atol=0)
    assert torch.equal(positions(0, 4), first)


def test_sinusoids_are_neither_trained_nor_stored() -> None:
    model = Transformer(CONFIG)
    names = {name for name, _ in model.named_parameters()} | set(model.state_dict())
    assert not any("position" in name for name in names)


def test_a_table_that_grew_in_inference_works_in_training() -> None:
    model = Transformer(CONFIG)
    src, src_mask = ids(1, 300), mask_of(300)
    with torch.inference_mode():
        model.encode(src, src_mask)
    copy.deepcopy(model).encode(src, src_mask).sum().backward()
    model.encode(src, src_mask).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_table_that_grows_keeps_its_dtype(dtype: torch.dtype) -> None:
    model = model_of(CONFIG, dtype)
    assert model.encode(ids(1, 300), mask_of(300)).dtype == dtype


class OtherThread(SinusoidalPositions):
    """Positions whose table another thread replaces by a shorter one, at once after each growth."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value[:300] if name == "table" and isinstance(value, torch.Tensor) else value)


def test_a_table_that_another_thread_replaces_still_gives_all_rows() -> None:
    assert_close(OtherThread(8)(0, 1000), sinusoids(1000, 8))


def test_a_sequence_beyond_the_learned_positions_is_refused() -> None:
    model = model_of(replace(CONFIG, positions="learned", max_positions=9))
    assert isinstance(model.positions.table, nn.Parameter)
    assert torch.equal(model.positions(2, 9), model.positions.table[2:9])
    src_mask = mask_of(9)
    cache = model.start(model.encode(ids(1, 9), src_mask), src_mask)
    with pytest.raises(UserError, match=r"sequence of 10 tokens: expected at most model.max_positions=9"):
        model.encode(ids(1, 10), mask_of(10))
    for _ in range(9):
        _, cache = model.decode_step(ids(1), cache)
    with pytest.raises(UserError, match="sequence of 10 tokens"):
        model.decode_step(ids(1), cache)
