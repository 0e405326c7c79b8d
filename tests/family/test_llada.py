"""LLaDA: its loss by the definition, with all masks of a short line, and its attention to both sides."""

import math
from collections.abc import Callable, Iterator
from itertools import combinations, product

import numpy as np
import pytest
import torch
from support.small_diffusion import small_llada
from torch.nn import functional as F

from transduce.data.vocabulary import BOS, EOS
from transduce.family.attention_wrappers import causal
from transduce.family.inference.model_folder import MASK
from transduce.family.llada import LOWEST_RATE, weights_by_count, weights_by_rate, weights_of_count
from transduce.family.tasks.diffusion_bound import length_nats, masked_batch, spread_weights, summed_bound
from transduce.model.attention import fast_attention

N, V = 4, 3
Weights = Callable[[int, np.random.Generator], np.ndarray]


# ---- the expectation of the loss ---------------------------------------------------------------------------------


def line_and_nats() -> tuple[float, Callable[[tuple[int, ...]], float]]:
    """Return -log p(x) of a line in a joint distribution, and a function of masked places: their sum of -log p.

    The model that it stands for is perfect: it has the conditional distribution of each token by the visible ones.
    """
    lines = [*product(range(V), repeat=N)]
    p = dict(zip(lines, np.random.default_rng(4).dirichlet(np.full(len(lines), 0.3)), strict=True))
    line = (2, 0, 1, 1)

    def marginal(places: tuple[int, ...]) -> float:
        return sum(p[other] for other in lines if all(other[i] == line[i] for i in places))

    def nats(masked: tuple[int, ...]) -> float:
        visible = tuple(i for i in range(N) if i not in masked)
        return sum(-math.log(marginal((*visible, i)) / marginal(visible)) for i in masked)

    return -math.log(p[line]), nats


def subsets() -> Iterator[tuple[int, ...]]:
    for k in range(1, N + 1):
        yield from combinations(range(N), k)


def test_the_expectation_over_all_masks_is_the_log_probability_of_a_perfect_model() -> None:
    """With n/k and a k of 1 to n it is exact; with 1/t it is too, but for the rates below the lowest one."""
    expected, nats = line_and_nats()
    by_count = sum(N / len(masked) * nats(masked) / math.comb(N, len(masked)) / N for masked in subsets())
    assert by_count == pytest.approx(expected, rel=1e-12)

    points, sizes = np.polynomial.legendre.leggauss(40)  # exact for polynomials

    def by_rate(lowest: float) -> float:
        rates = (points + 1) / 2 * (1 - lowest) + lowest
        sums = (nats(masked) * rates ** (len(masked) - 1) * (1 - rates) ** (N - len(masked)) for masked in subsets())
        return float((sizes / 2 * sum(sums)).sum())

    assert by_rate(0.0) == pytest.approx(expected, rel=1e-12)
    assert 0 < abs(by_rate(LOWEST_RATE) / expected - 1) < 2 * LOWEST_RATE


@pytest.mark.parametrize("weights", [weights_by_rate, weights_by_count])
def test_the_mean_of_drawn_weights_is_that_expectation(weights: Weights) -> None:
    """The mean weight of a token is 1, and that of drawn losses is -log p(x), to five standard errors."""
    expected, nats = line_and_nats()
    generator, losses, all_weights = np.random.default_rng(5), list[float](), list[np.ndarray]()
    of_masked = {masked: nats(masked) for masked in subsets()} | {(): 0.0}
    for _ in range(4_000):
        drawn = weights(N, generator)
        masked = tuple(np.flatnonzero(drawn).tolist())
        losses.append(drawn.max() * of_masked[masked])
        all_weights.append(drawn)
    for values, mean in ((losses, expected), (np.array(all_weights).sum(axis=1) / N, 1.0)):
        assert abs(np.mean(values) - mean) < 5 * np.std(values) / math.sqrt(len(values)) + 1e-9


def test_the_weights_are_those_of_the_definition() -> None:
    for seed in range(50):
        drawn = weights_by_count(7, np.random.default_rng(seed))
        k = np.count_nonzero(drawn)
        assert set(drawn) <= {0.0, 7 / k} and k >= 1
        by_rate = weights_by_rate(7, np.random.default_rng(seed))
        t = 0.999 * np.random.default_rng(seed).random() + 0.001
        assert set(by_rate) <= {0.0, 1 / t} and 1 / t <= 1_000
    assert sorted(weights_of_count(5, 2, np.random.default_rng(1))) == [0, 0, 0, 2.5, 2.5]
    assert weights_by_count(1, np.random.default_rng(1)).tolist() == [1.0]


def test_masks_by_count_vary_less() -> None:
    variances = []
    for weights in (weights_by_rate, weights_by_count):
        generator = np.random.default_rng(6)
        losses = [(weights(14, generator) * np.arange(1, 15)).sum() for _ in range(2_000)]
        variances.append(np.var(losses))
    assert variances[1] < variances[0] / 2


def test_spread_samples_have_all_numbers_of_masks_equally_often() -> None:
    counts = [np.count_nonzero(one) for number in range(700) for one in spread_weights(7, 3, number)]
    assert np.bincount(counts, minlength=8)[1:] == pytest.approx([300] * 7, abs=60)
    for weights in (spread_weights(8, 4, number) for number in range(20)):
        assert sorted(-(-np.count_nonzero(one) // 2) for one in weights) == [1, 2, 3, 4]  # a quarter of 1 to 8 each
    assert all(a.tolist() == b.tolist() for a, b in zip(spread_weights(9, 4, 3), spread_weights(9, 4, 3), strict=True))


# ---- the loss of a batch, and the model --------------------------------------------------------------------------


def test_the_loss_of_a_batch_is_the_sum_of_its_definition() -> None:
    model, generator = small_llada(), np.random.default_rng(2)
    rows = [generator.integers(5, 20, n) for n in (4, 9, 1)]
    weights = [weights_by_count(len(row), generator) for row in rows]
    expected = 0.0
    assert model.lengths is not None
    for row, of_row in zip(rows, weights, strict=True):
        ids = [BOS, *(MASK if weight else int(token) for token, weight in zip(row, of_row, strict=True)), EOS]
        log_probs = model(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))[0].log_softmax(dim=-1)
        for i, (token, weight) in enumerate(zip(row, of_row, strict=True), start=1):
            expected -= weight * log_probs[i, token].item()
        expected -= model.lengths.log_softmax(dim=0)[len(row) - 1].item()
    batch = masked_batch(rows, weights, np.arange(3))
    assert summed_bound(model, batch).item() == pytest.approx(expected, rel=1e-5)
    assert batch.tgt_mask.sum() == 4 + 9 + 1 + 3  # what the sum is divided by, in a step: all tokens, and the ends


def test_each_place_sees_both_sides_and_no_padding() -> None:
    model = small_llada()
    ids, mask = torch.tensor([[1, 5, 6, 7, 2, 0, 0]]), torch.tensor([[True] * 5 + [False] * 2])
    logits = model(ids, mask)
    torch.testing.assert_close(model(ids[:, :5], mask[:, :5]), logits[:, :5], rtol=1e-5, atol=1e-5)
    for place in (0, 4):
        other = ids.clone()
        other[0, place] = 9
        assert (model(other, mask) - logits)[0, :5].abs().amax(dim=1).min() > 1e-3


def test_under_the_causal_mask_it_is_llama() -> None:
    """Only the mask differs: attention that is causal again gives the logits of the Llama."""
    model, ids = small_llada(), torch.tensor([[1, 5, 6, 7, 2]])
    expected = model.llama(ids)
    states = model.llama.states(
        ids, attention=lambda q, k, v, _, dropout: fast_attention(q, k, v, causal(5, 5), dropout)
    )[0]
    torch.testing.assert_close(model.output(states), expected)
    assert not torch.allclose(model(ids, torch.ones(1, 5, dtype=torch.bool)), expected, atol=1e-3)


def test_the_table_of_lengths_is_a_distribution() -> None:
    model = small_llada(n_lengths=6)
    lengths = torch.arange(1, 7)
    assert model.length_log_probs(lengths).exp().sum().item() == pytest.approx(1, abs=1e-6)
    rows = [np.full(n, 7) for n in (2, 6)]
    batch = masked_batch(rows, [np.ones(2), np.ones(6)], np.arange(2))
    assert model.lengths is not None
    expected = F.cross_entropy(model.lengths.expand(2, -1), torch.tensor([1, 5]), reduction="sum")
    torch.testing.assert_close(length_nats(model, batch), expected)
