"""The plan of an epoch: batches of pairs of similar length, in a random order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import transduce.data.batch_plan
from transduce.data.batch_plan import Plan, SortKeys, plan

LENGTHS = st.lists(st.tuples(st.integers(2, 40), st.integers(2, 40)), min_size=1, max_size=200)


def plan_of(lengths: np.ndarray, batch_tokens: int, seed: int = 1, epoch: int = 0) -> Plan:
    """Return the plan for pairs of these lengths (n,2)."""
    generator = np.random.default_rng([seed, epoch])
    sort_keys = SortKeys(int(lengths.max()), len(lengths))
    keys = sort_keys.pack(np.arange(len(lengths)), lengths, generator)
    return plan(keys, sort_keys, batch_tokens=batch_tokens, generator=generator)


def as_lists(batches: Plan) -> list[list[int]]:
    return [members.tolist() for members in batches]


@given(LENGTHS, st.integers(40, 300), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_an_epoch_has_every_pair_once_within_the_budget(
    pairs: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int
) -> None:
    lengths = np.array(pairs)
    batches = plan_of(lengths, batch_tokens, seed, epoch)
    assert sorted(pair for members in as_lists(batches) for pair in members) == list(range(len(lengths)))
    for members in batches:
        assert members.dtype == np.int64
        assert (lengths[members].sum(0) > 0).all() and (lengths[members].sum(0) <= batch_tokens).all()
    assert as_lists(plan_of(lengths, batch_tokens, seed, epoch)) == as_lists(batches)


def plain_plan(lengths: np.ndarray, batch_tokens: int) -> list[list[tuple[int, int]]]:
    """Return the lengths in each batch by a direct implementation, before the order of batches is drawn."""

    def sort_key(pair: tuple[int, int]) -> tuple[int, int, int]:
        band = pair[1] // 2
        return band, pair[0] if band % 2 == 0 else -pair[0], pair[1]

    batches: list[list[tuple[int, int]]] = [[]]
    for pair in sorted(map(tuple, lengths.tolist()), key=sort_key):
        fits = all(sum(member[side] for member in batches[-1]) + pair[side] <= batch_tokens for side in (0, 1))
        if batches[-1] and not fits:
            batches.append([])
        batches[-1].append(pair)
    return batches


@given(st.lists(st.tuples(st.integers(2, 300), st.integers(2, 300)), min_size=1, max_size=100), st.integers(2, 500))
def test_the_plan_equals_a_direct_implementation(pairs: list[tuple[int, int]], batch_tokens: int) -> None:
    lengths, original = np.array(pairs), transduce.data.batch_plan.CUT_PAIRS
    try:
        for transduce.data.batch_plan.CUT_PAIRS in (1, 7, original):
            batches = plan_of(lengths, batch_tokens)
            inverse = np.argsort(batches.batch_order)
            batches_of_lengths = [[tuple(pair) for pair in lengths[batches[i]].tolist()] for i in inverse]
            assert batches_of_lengths == plain_plan(lengths, batch_tokens)
    finally:
        transduce.data.batch_plan.CUT_PAIRS = original


@given(st.integers(2, 65_534), st.integers(1, 1 << 32), st.data())
def test_sort_keys_keep_lengths_and_numbers(longest: int, pairs: int, data: st.DataObject) -> None:
    length, number = st.integers(2, longest), st.integers(0, pairs - 1)
    rows = np.array(data.draw(st.lists(st.tuples(number, length, length), min_size=1, max_size=20)))
    sort_keys = SortKeys(longest, pairs)
    keys = sort_keys.pack(rows[:, 0], rows[:, 1:].astype(np.uint16), np.random.default_rng(1))
    assert (keys & np.uint64((1 << sort_keys.pair_bits) - 1)).tolist() == rows[:, 0].tolist()
    src, tgt = sort_keys.lengths(keys)
    assert src.tolist() == rows[:, 1].tolist() and tgt.tolist() == rows[:, 2].tolist()


def test_a_pair_over_the_budget_has_its_own_batch() -> None:
    batches = plan_of(np.array([[5, 5], [90, 5], [5, 5]]), 10)
    assert sorted(sorted(members) for members in as_lists(batches)) == [[0, 2], [1]]


def random_lengths(count: int = 20_000) -> np.ndarray:
    """Return lengths as translations have them: correlated, and mostly short."""
    chance = np.random.default_rng(1)
    src = np.clip(chance.gamma(4, 4, count).astype(np.int64), 2, 100)
    return np.stack([src, np.clip((src * chance.normal(1.1, 0.2, count)).astype(np.int64), 2, 100)], axis=1)


def test_seed_and_epoch_change_batches_and_their_order() -> None:
    lengths = random_lengths()
    plans = {(seed, epoch): as_lists(plan_of(lengths, 2_000, seed, epoch)) for seed, epoch in [(1, 0), (1, 1), (2, 0)]}
    for key, other in [((1, 0), (1, 1)), ((1, 0), (2, 0)), ((1, 1), (2, 0))]:
        common = {frozenset(members) for members in plans[key]} & {frozenset(members) for members in plans[other]}
        assert len(common) < len(plans[key]) / 10


def test_pairs_of_equal_length_meet_by_chance() -> None:
    """Neighbours in the text are not neighbours in a batch."""
    batches = plan_of(np.full((20_000, 2), 10), 1_000)
    steps_between = np.concatenate([np.diff(members) for members in batches])
    assert np.mean(np.abs(steps_between)) == pytest.approx(20_000 / 3, rel=0.05)


def test_the_order_of_batches_does_not_follow_their_lengths() -> None:
    lengths = random_lengths()
    means = [lengths[members, 1].mean() for members in plan_of(lengths, 2_000)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2


def test_batches_are_full_and_hold_pairs_of_similar_length() -> None:
    lengths = random_lengths()
    batches = plan_of(lengths, 2_000)
    padded_size = sum(len(members) * lengths[members].max(0).sum() for members in batches)
    assert padded_size < 1.075 * lengths.sum()
    fill = [lengths[members].sum(0).max() / 2_000 for members in batches]
    assert sorted(fill)[1] > 0.9  # of all but the last
