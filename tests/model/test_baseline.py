"""The recurrent and the convolutional model of Table 2: invariance, decoding step by step, and learning."""

import pytest
import torch
from torch import Tensor

from transduce.config.schema import ModelConfig
from transduce.model.baseline import Baseline
from transduce.model.convolutional import Convolutional
from transduce.model.lstm import Recurrent
from transduce.training.loss import projected_cross_entropy

CONFIG = ModelConfig(vocab_size=13, d_model=8, n_layers=2, dropout=0.0)
BOS, FIRST = 1, 4  # ids below FIRST are controls
both = pytest.mark.parametrize("kind", [Recurrent, Convolutional])


def model_of(kind: type[Baseline]) -> Baseline:
    torch.manual_seed(1)
    return kind(CONFIG).double().eval()


def ids(*shape: int, seed: int = 2) -> Tensor:
    return torch.randint(FIRST, 13, shape, generator=torch.Generator().manual_seed(seed))


def mask_of(*lengths: int) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@both
def test_padding_and_neighbours_do_not_change_the_output(kind: type[Baseline]) -> None:
    model = model_of(kind)
    src = ids(2, 6)
    tgt = ids(2, 5)
    mask = mask_of(6, 3)
    together = model(src, mask, tgt)
    wider = torch.cat([src, ids(2, 4, seed=3)], dim=1), torch.cat([mask, torch.zeros(2, 4, dtype=torch.bool)], dim=1)
    torch.testing.assert_close(model(*wider, tgt), together, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model(src[1:, :3], mask[1:, :3], tgt[1:]), together[1:], rtol=1e-10, atol=1e-10)


@both
def test_outputs_depend_on_every_source_token_and_no_later_target_token(kind: type[Baseline]) -> None:
    model = model_of(kind)
    src = ids(1, 6)
    tgt = ids(1, 5)
    mask = mask_of(6)
    plain = model(src, mask, tgt)
    for index in range(6):
        other = src.clone()
        other[0, index] = FIRST + (src[0, index] - FIRST + 1) % (13 - FIRST)
        assert ((model(other, mask, tgt) - plain).abs().amax(dim=2) > 1e-9).all(), index
    other_tgt = tgt.clone()
    other_tgt[0, 3] = FIRST + (tgt[0, 3] - FIRST + 1) % (13 - FIRST)
    difference = (model(src, mask, other_tgt) - plain).abs().amax(dim=2)[0]
    assert difference[:3].max() == 0 and difference[3:].min() > 0


@both
def test_a_source_of_padding_gives_finite_values_and_gradients(kind: type[Baseline]) -> None:
    model, mask = model_of(kind), mask_of(6, 0)
    logits = model(ids(2, 6), mask, ids(2, 5))
    assert logits.isfinite().all()
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@both
def test_a_step_with_the_cache_equals_decoding_the_prefix(kind: type[Baseline]) -> None:
    model = model_of(kind)
    src = ids(3, 6)
    mask = mask_of(6, 2, 4)
    cache = model.start(model.encode(src, mask), mask)
    prefixes = torch.full((3, 1), BOS)
    logits, cache = model.decode_step(prefixes[:, -1], cache)
    steps = [  # (rows to continue, sentences that remain)
        ([0, 0, 1, 1, 2, 2], [0, 1, 2]),
        ([1, 0, 2, 2, 5, 4], [0, 1, 2]),
        ([0, 1, 4, 5], [0, 2]),  # the middle sentence has ended
        ([1, 1, 2, 3], [0, 1]),
    ]
    owners = torch.arange(3)
    for number, (rows, stay) in enumerate(steps):
        cache = cache.select(torch.tensor(rows), torch.tensor(stay))
        owners = owners[rows]
        prefixes = torch.cat([prefixes[rows], ids(len(rows), 1, seed=number)], dim=1)
        logits, cache = model.decode_step(prefixes[:, -1], cache)
        reference = model(src[owners], mask[owners], prefixes)
        torch.testing.assert_close(logits, reference[:, -1], rtol=1e-10, atol=1e-10)


@both
def test_dropout_acts_in_training_only(kind: type[Baseline]) -> None:
    torch.manual_seed(1)
    model = kind(ModelConfig(vocab_size=13, d_model=8, n_layers=2, dropout=0.3))
    inputs = ids(2, 6), mask_of(6, 4), ids(2, 5)
    assert not model.train()(*inputs).equal(model(*inputs))
    assert model.eval()(*inputs).equal(model(*inputs))


@both
def test_each_model_learns_to_reverse_a_line(kind: type[Baseline]) -> None:
    torch.manual_seed(1)
    model = kind(ModelConfig(vocab_size=13, d_model=32, n_layers=2, dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(200):
        src = ids(32, 5, seed=100 + step)
        tgt = src.flip(1)
        tgt_in = torch.cat([torch.full((32, 1), BOS), tgt[:, :-1]], dim=1)
        mask = torch.ones_like(src, dtype=torch.bool)
        hidden = model.decode(tgt_in, model.encode(src, mask), mask).flatten(0, 1)
        loss = projected_cross_entropy(hidden, model.output.weight, tgt.flatten(), 0.0) / tgt.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.0, "log(9) = 2.2 is chance"
